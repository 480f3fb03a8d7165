"""The documentation: a short README, valid links, and generated pages that are up to date."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from ruamel.yaml import YAML

from tfbuild import errors
from tfbuild.errors import TfbuildError
from tools import verbs as development

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = (*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")), *PAGES)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
# Of pictures that the theme shows in one of its two modes.
MODES = {"only-light", "only-dark"}
# Pages of GitHub itself beside the files of a repository: workflows, badges, advisories.
GITHUB_PAGES = re.compile(r"(\.\./)+(actions|security|issues|pulls)/")


def prose(path: Path) -> str:
    """Return the text without its code blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the relative links of a page: the path ("" for the page itself) and the anchor."""
    for target in LINK.findall(prose(path)):
        if not re.match(r"[a-z]+:", target) and not GITHUB_PAGES.match(target):
            name, _, anchor = target.partition("#")
            yield unquote(name), anchor


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings on GitHub and in the manual."""
    names: set[str] = set()
    for heading in HEADING.findall(prose(path)):
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        assert "--" not in base, f"{path}: GitHub and Zensical name {heading!r} differently"
        assert base not in names, f"{path}: two headings are called {heading!r}"
        names.add(base)
    return names


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_is_valid(page: Path) -> None:
    for name, anchor in links(page):
        target = page.parent / name if name else page
        assert target.exists(), f"{name} in {page.name}"
        # The manual publishes only what is in docs/.
        assert page not in PAGES or target.resolve().is_relative_to(DOCS), f"{name} in {page.name}"
        known = anchors(target) if anchor and target.suffix == ".md" else MODES
        assert not anchor or anchor in known, f"{name}#{anchor} in {page.name}"


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(path.relative_to(DOCS)) for path in PAGES}
    # Its own tags (!ENV) are kept as they are.
    settings = YAML(typ="rt").load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert set(leaves(settings["nav"])) == pages


def leaves(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from leaves(inner)


# --- generated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["pull.sh", "templates/index/install.sh"])
def test_a_script_exits_with_the_codes_of_tfbuild(script: str) -> None:
    text = (ROOT / script).read_text(encoding="utf-8")
    used = set(map(int, re.findall(r'" (\d+)(?: ;;)?$', text, re.MULTILINE)))
    known = {
        kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TfbuildError)
    }
    assert {12, 24, 26, 27} <= used <= known


def test_everything_generated_is_up_to_date() -> None:
    development.generate(check=True)


def test_one_command_writes_everything_generated_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TfbuildError, match=r"docs/support\.md is out of date, and \d+ more") as stale:
        development.generate(check=True, root=tmp_path)
    assert stale.value.hint == "invoke generate"
    development.generate(check=False, root=tmp_path)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"README.md", "docs/figures.md", "docs/pictures/compiled.svg", "action.yml"} < written
    assert "dockerfiles/docker-bake.hcl" in written
    capsys.readouterr()
    development.generate(check=True, root=tmp_path)
    (tmp_path / "docs" / "figures.md").write_text("")
    with pytest.raises(TfbuildError):
        development.generate(check=True, root=tmp_path)
    assert capsys.readouterr().out == "docs/figures.md\n"
