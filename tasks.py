"""The verbs for `invoke`, which runs this file: tfbuild reads the command line itself, and Invoke gets no tasks."""

import sys

# Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from tfbuild.cli import VERBS, command_line  # noqa: E402
from tools import verbs as development  # noqa: E402

command_line.main(sys.argv[1:], {**VERBS, **development.VERBS}, by_invoke=True)
raise SystemExit(0)
