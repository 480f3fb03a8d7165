"""Many CPUs -> the fewest builds that cover them."""

from tfbuild.fleet.fleet import Fleet, choose, gather, read_fleet, show, to_json

__all__ = ["Fleet", "choose", "gather", "read_fleet", "show", "to_json"]
