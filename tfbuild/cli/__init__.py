"""The verbs, one function each, with its options and help in the decorator.

Importing this registers the verbs of every tfbuild; tools/verbs.py has those that need a clone. Every command imports
all of them, so they import slow modules inside functions.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

from tfbuild.cli import building, command_line, many, planning, publishing  # noqa: F401
from tfbuild.cli.verbs import VERBS as VERBS
