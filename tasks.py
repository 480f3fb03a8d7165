"""The command line: one Invoke task a verb. Each selects, calls and prints; what they do is in tfbuild/."""

import sys

# Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from tfbuild.cli import VERBS, command_line  # noqa: E402
from tfbuild.cli.tasks import collection  # noqa: E402
from tools import verbs as development  # noqa: E402

namespace = collection(command_line.checked(sys.argv, {**VERBS, **development.VERBS}))
