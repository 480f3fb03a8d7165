"""Many CPUs -> the fewest builds that cover them."""

from tfbuild.fleet.fleet import Fleet, choose, read_fleet, read_hosts, show_fleet

__all__ = ["Fleet", "choose", "read_fleet", "read_hosts", "show_fleet"]
