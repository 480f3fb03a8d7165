"""The verbs for developing tfbuild itself, as tasks for `invoke` in a clone."""

from pathlib import Path

from tfbuild.cli.options import ROOT, RUN, certificates
from tfbuild.cli.verbs import Verb, verb
from tfbuild.errors import TfbuildError
from tfbuild.util import files

VERBS: dict[str, Verb] = {}


@verb(
    {
        "check": (False, "only compare, and fail where a file is out of date"),
        "pin": (False, "ask the registries for the base images' digests (default: keep those in the Dockerfiles)"),
        "ca-cert": RUN["ca-cert"],
    },
    table=VERBS,
)
def dockerfiles(*, check: bool, pin: bool = False, ca_cert: str = "", folder: Path = ROOT / "dockerfiles") -> None:
    """Regenerate dockerfiles/: the committed build contexts, their README and docker-bake.hcl."""
    from tools import committed

    digests = committed.ask_registries(certificates(ca_cert)) if pin else None
    stale = committed.stale(folder, digests) if check else committed.write(folder, digests)
    for name in stale:
        print(name)
    if check and stale:
        raise TfbuildError("files in dockerfiles/ are out of date", hint="invoke dockerfiles")


@verb({"check": (False, "only compare, and fail where a page is out of date")}, table=VERBS)
def docs(*, check: bool, root: Path = ROOT) -> None:
    """Regenerate what is made from the code: the support tables, the reference and the actions' inputs."""
    from tools import reference

    pages = {name: page() for name, page in reference.pages(VERBS).items()}
    stale = [name for name, text in pages.items() if not _is_current(root / name, text)]
    if check and stale:
        raise TfbuildError(f"not up to date: {', '.join(map(str, stale))}", hint="invoke docs")
    for name in stale:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(root / name, pages[name])
        print(name)


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
