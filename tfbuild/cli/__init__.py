"""One function a verb: its options and help in the decorator, its body below; importing this registers them all.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

# Each of these registers its verbs. They import what is slow to import inside their functions: every command reads all.
from tfbuild.cli import bench, building, planning, publishing, repository
from tfbuild.cli.verbs import collection

__all__ = ["bench", "building", "collection", "planning", "publishing", "repository"]
