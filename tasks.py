"""The command line: one Invoke task a verb. Each selects, calls and prints; what they do is in tfbuild/."""

import sys

# Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from tfbuild.cli import VERBS, collection, command_line, repository  # noqa: E402

command_line.handle_own({**VERBS, **repository.VERBS})
namespace = collection(VERBS, repository.VERBS)
