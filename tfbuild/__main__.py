"""The command `tfbuild` of an installed package, and `python -m tfbuild`: the verbs without Invoke.

To import Invoke takes nearly as long as all of `tfbuild plan`.
"""

import sys

from tfbuild.cli import VERBS, command_line


def main() -> None:
    """Run the verbs on the command line, and exit with tfbuild's exit code."""
    calls = command_line.handle(sys.argv, VERBS)
    if calls is None:
        from tfbuild.cli import tasks

        tasks.run(VERBS)
        return
    for call in calls:
        call.run()


if __name__ == "__main__":
    main()
