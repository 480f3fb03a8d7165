"""The verbs, one function each, with its options and help in the decorator.

Importing this registers the verbs of every tfbuild; `repository` has those that need a clone.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

# Each module registers its verbs. Every command imports all of them, so they import slow modules inside functions.
from tfbuild.cli import bench, building, command_line, planning, publishing
from tfbuild.cli.verbs import VERBS, collection

__all__ = ["VERBS", "bench", "building", "collection", "command_line", "planning", "publishing"]
