"""The verbs, one function each, with its options and help in the decorator; importing this registers them all.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

# Each module registers its verbs. Every command imports all of them, so they import slow modules inside functions.
from tfbuild.cli import bench, building, planning, publishing, repository
from tfbuild.cli.verbs import collection

__all__ = ["bench", "building", "collection", "planning", "publishing", "repository"]
