"""The verbs, one function each, with its options and help in the decorator.

Importing this registers the verbs of every tfbuild; tools/verbs.py has those that need a clone.

Data is printed to stdout; progress, notes and errors go to stderr.
"""

import gc
import resource
import sys

# Python keeps byte code that such a limit has cut, and cannot read it then (github.com/python/cpython, issue 126606).
if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
    sys.dont_write_bytecode = True

# What imports make is kept: looking for garbage among it would take a seventh of the time until a verb runs.
gc.disable()
try:
    # Each module registers its verbs. Every command imports all of them, so they import slow modules inside functions.
    from tfbuild.cli import building, command_line, many, planning, publishing  # noqa: F401
    from tfbuild.cli.verbs import VERBS as VERBS
finally:
    gc.freeze()
    gc.enable()
