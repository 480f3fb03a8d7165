"""The command `tfbuild` of an installed package: Invoke's own program with the verbs that need no clone."""

import sys

from invoke.program import Program

from tfbuild import __doc__ as purpose
from tfbuild import __version__
from tfbuild.cli import VERBS, collection
from tfbuild.util.installation import COMMAND, command

# Invoke has more options, for tasks that run shell commands: they are parsed, and do nothing here.
OPTIONS = (
    ("--help [VERB]", "this help, or the options of a verb"),
    ("--list", "the verbs"),
    ("--print-completion-script SHELL", "completion for bash, zsh or fish"),
    ("--version", "tfbuild's version"),
)


class InstalledProgram(Program):
    """Speaks of tfbuild and its verbs where Invoke speaks of tasks."""

    def parse_core(self, argv: list[str] | None) -> None:
        # Invoke keeps Python from writing byte code, so that each command would compile all of tfbuild again.
        before = sys.dont_write_bytecode
        try:
            super().parse_core(argv)
        finally:
            sys.dont_write_bytecode = before

    def print_help(self) -> None:
        print(f"Usage: {self.binary} VERB [--options]\n\n{purpose}\n\nOptions:\n")
        self.print_columns(OPTIONS)
        self.list_tasks()

    def task_list_opener(self, extra: str = "") -> str:
        return "Verbs"


def main() -> None:
    """Run the verbs on the command line, and leave with tfbuild's exit code."""
    InstalledProgram(name=COMMAND, binary=command(), version=__version__, namespace=collection(VERBS)).run()
