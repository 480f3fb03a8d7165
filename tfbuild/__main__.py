"""The command `tfbuild` of an installed package, and `python -m tfbuild`."""

import sys

from tfbuild.cli import VERBS, command_line


def main() -> None:
    """Run the verbs on the command line, and exit with tfbuild's exit code."""
    command_line.main(sys.argv[1:], VERBS)


if __name__ == "__main__":
    main()
