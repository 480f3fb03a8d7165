"""Many CPUs -> the fewest builds that cover them."""

from tfbuild.fleet.fleet import Fleet, choose, read_fleet, read_hosts, show_fleet, to_json

__all__ = ["Fleet", "choose", "read_fleet", "read_hosts", "show_fleet", "to_json"]
