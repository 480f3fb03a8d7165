"""The verbs for developing tfbuild itself, as tasks for `invoke` in a clone."""

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

    stale = []
    # The figures come after the reference, because the README has sections of both.
    for pages in (partial(reference.pages, VERBS), figures.pages, bars.pages):
        for name, text in pages().items():
            if not _is_current(root / name, text):
                stale.append(str(name))
                if not check:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    files.replace_file(root / name, text)
    folder, digests = root / committed.FOLDER, committed.ask_registries(certificates(ca_cert)) if pin else None
    of_folder = committed.stale(folder, digests) if check else committed.write(folder, digests)
    stale += [f"{committed.FOLDER}/{name}" for name in of_folder]
    print("".join(f"{name}\n" for name in stale), end="")
    if check and stale:
        raise TfbuildError(f"{stale[0]} is out of date, and {len(stale) - 1} more", hint="invoke generate")


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


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
