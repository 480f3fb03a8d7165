"""Many CPUs -> the fewest builds that cover them."""

from tfbuild.fleet.fleet import Fleet, choose, read, show, to_json

__all__ = ["Fleet", "choose", "read", "show", "to_json"]
