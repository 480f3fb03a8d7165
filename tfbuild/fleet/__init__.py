"""Many CPUs -> the fewest builds that cover them."""

from tfbuild.fleet.fleet import Fleet, choose, read_fleet, to_json
from tfbuild.fleet.listing import show

__all__ = ["Fleet", "choose", "read_fleet", "show", "to_json"]
