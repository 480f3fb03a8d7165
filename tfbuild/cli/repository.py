"""The verbs for those who work on tfbuild itself."""

from pathlib import Path

from tfbuild.cli.options import ROOT
from tfbuild.cli.output import up_to_date
from tfbuild.cli.verbs import verb
from tfbuild.errors import TfbuildError


@verb({"check": (False, "compare only, and fail where a file is stale")})
def dockerfiles(*, check: bool, folder: Path = ROOT / "dockerfiles") -> None:
    """Write the committed build contexts under dockerfiles/ again."""
    from tfbuild.context import committed

    stale = committed.stale(folder) if check else committed.write(folder)
    for name in stale:
        print(name)
    if check and stale:
        raise TfbuildError(
            "files under dockerfiles/ are not what the facts and templates say now", hint="invoke dockerfiles"
        )


@verb({"check": (False, "compare only, and fail where a page is stale")})
def docs(*, check: bool, root: Path = ROOT) -> None:
    """Write the generated pages again: docs/support.md and docs/reference/exit-codes.md."""
    from tfbuild.cli import exit_codes
    from tfbuild.plan import support as table

    pages = {table.FILE: table.to_markdown(table.rows()), exit_codes.FILE: exit_codes.to_markdown()}
    stale = [name for name, text in pages.items() if not up_to_date(root / name, text)]
    if check and stale:
        raise TfbuildError(f"not up to date: {', '.join(map(str, stale))}", hint="invoke docs")
    for name in stale:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(pages[name], encoding="utf-8")
        print(name)


@verb(
    {
        "pure": (False, "only the tests that need neither an engine nor sshd nor a browser"),
        "nightly": (False, "only those that take long and change seldom, which the others leave out"),
    }
)
def test(path: str = "", *, pure: bool, nightly: bool) -> None:  # noqa: PT028 - no test
    """Lint, types, generated files and all tests but the nightly ones; or every test of one folder or file, PATH."""
    from tfbuild.cli import testing

    testing.run(ROOT, path=path, pure=pure, nightly=nightly)
