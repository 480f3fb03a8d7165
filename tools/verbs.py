"""The verbs for developing tfbuild itself, as tasks for `invoke` in a clone."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tfbuild.cli.options import RUN, certificates
from tfbuild.cli.verbs import Verb, verb
from tfbuild.errors import TfbuildError
from tfbuild.util import files

ROOT = Path(__file__).parents[1]
VERBS: dict[str, Verb] = {}


@verb(
    {
        "check": (False, "only compare, and fail where a file is out of date"),
        "pin": (False, "ask the registries for the base images' digests (default: keep those in dockerfiles/)"),
        "ca-cert": RUN["ca-cert"],
    },
    table=VERBS,
    examples=("invoke generate", "invoke generate --check"),
)
def generate(*, check: bool, pin: bool = False, ca_cert: str = "", root: Path = ROOT) -> None:
    """Regenerate everything that is made from the code, the facts and the reports, and print what changed.

    The reference, the support tables, the figures, the actions' inputs and dockerfiles/.
    """
    from tools import committed, figures, reference
    from tools.pictures import bars

    digests = committed.ask_registries(certificates(ca_cert)) if pin else None
    # The figures come after the reference, because the README has sections of both.
    stale = update(root, reference.pages(VERBS), check=check)
    for pages in (figures.pages, bars.pages, partial(committed.pages, root, digests)):
        stale += update(root, pages(), check=check)
    print("".join(f"{name}\n" for name in stale), end="")
    if check and stale:
        more = f", and {len(stale) - 1} more" if stale[1:] else ""
        raise TfbuildError(f"{stale[0]} is out of date{more}", hint="invoke generate")


def update(root: Path, pages: Mapping[Path, str | None], *, check: bool) -> list[str]:
    """Write those of the files that differ, and return their paths; a page of None is removed. `check`: write nothing.

    Raises UsageError or DiskFull.
    """
    stale = [name for name, text in pages.items() if text is None or not _has(root / name, text)]
    with files.writing(root):
        for path, text in ((root / name, pages[name]) for name in stale if not check):
            if path.is_dir() or path.is_symlink() or text is None:
                files.remove(path)
            if text is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.replace_file(path, text)
            elif not any(path.parent.iterdir()):
                os.removedirs(path.parent)
    return [str(name) for name in stale]


def _has(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()


@verb(
    {
        "path": ("", "run only the tests of this file or folder, such as tests/plan"),
        "pure": (False, "run only the quick tests that need no engine, sshd or browser"),
        "nightly": (False, "run only the long tests that other runs leave out"),
    },
    table=VERBS,
    examples=(
        "invoke test --pure",
        "invoke test --path tests/with_engine/test_verify.py",
    ),
)
def test(*, path: str, pure: bool, nightly: bool) -> None:
    """Check lint, types and generated files, and run all but the nightly tests."""
    from tools import testing

    testing.run(ROOT, path=path, pure=pure, nightly=nightly)
