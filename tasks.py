"""The command line for `invoke`: it loads this file, which runs the verbs itself."""

import sys
from pathlib import Path

# Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

from invoke.collection import Collection  # noqa: E402

from tfbuild.cli import VERBS, command_line  # noqa: E402
from tools import verbs as development  # noqa: E402

# Options of Invoke that say where this file and its settings are.
OF_INVOKE = ("--search-root", "-r", "--collection", "-c", "--config", "-f")
# Without tasks: one parser knows the options, and Invoke would copy those of every verb.
namespace = Collection()

if Path(sys.argv[0]).name in ("invoke", "inv") or Path(sys.argv[0]).parts[-2:] == ("invoke", "__main__.py"):
    words = sys.argv[1:]
    while words and words[0].partition("=")[0] in OF_INVOKE:
        words = words[1 if "=" in words[0] else 2 :]
    command_line.main(words, {**VERBS, **development.VERBS})
    raise SystemExit(0)
