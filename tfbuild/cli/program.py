"""The command `tfbuild` of an installed package: Invoke's own program with the verbs that need no clone."""

import sys

from invoke.program import Program

from tfbuild import __version__
from tfbuild.cli import VERBS, collection, command_line
from tfbuild.util.installation import COMMAND, command


class InstalledProgram(Program):
    """Speaks of tfbuild and its verbs where Invoke speaks of tasks."""

    def parse_core(self, argv: list[str] | None) -> None:
        # Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
        before = sys.dont_write_bytecode
        try:
            super().parse_core(argv)
        finally:
            sys.dont_write_bytecode = before
        command_line.handle(self.argv, VERBS)

    def task_list_opener(self, extra: str = "") -> str:
        return "Verbs"


def main() -> None:
    """Run the verbs on the command line, and leave with tfbuild's exit code."""
    verbs = collection(command_line.named(sys.argv, VERBS))
    InstalledProgram(name=COMMAND, binary=command(), version=__version__, namespace=verbs).run()
