"""The command `tfbuild` of an installed package, and `python -m tfbuild`: the verbs without Invoke.

To import Invoke takes nearly as long as all of `tfbuild plan`.
"""

import sys
from collections.abc import Mapping

from tfbuild.cli import VERBS, command_line
from tfbuild.cli.verbs import Verb
from tfbuild.util.installation import clone


def main() -> None:
    """Run the verbs on the command line, and exit with tfbuild's exit code."""
    verbs = _verbs()
    calls = command_line.handle(sys.argv, verbs)
    if calls is None:
        from tfbuild.cli import tasks

        tasks.run(verbs)
        return
    for call in calls:
        call.run()


def _verbs() -> Mapping[str, Verb]:
    if clone() is None:
        return VERBS
    # An installed package does not have it.
    from tfbuild.cli import repository

    return {**VERBS, **repository.VERBS}
