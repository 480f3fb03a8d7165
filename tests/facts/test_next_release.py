"""A new TensorFlow release without changes is one row: a made-up release in a copy of the project."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import checkout
from tests.checkout import Copy
from tests.facts import newest
from tests.facts.checks import check_releases
from tfbuild import facts
from tfbuild.facts import targets
from tfbuild.facts.release_table import ReleaseTable

FILE = Path("tfbuild") / "facts" / "releases.toml"
NEWEST = newest.RELEASE
MAJOR, MINOR = NEWEST.split(".")[:2]
NEXT = f"{MAJOR}.{int(MINOR) + 1}.0"


def with_release(text: str, version: str) -> str:
    """Return the facts with one more row, after the newest release's."""
    row = f'    {{ version = "{version}", sure = "inherited" }},\n'
    longer, count = re.subn(rf'(    {{ version = "{re.escape(NEWEST)}", .*\n)', rf"\1{row}", text)
    assert count == 1
    return longer


@pytest.fixture(scope="module")
def with_next(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    copy = checkout.copy(tmp_path_factory.mktemp("next") / "copy", "tfbuild/", "templates/", "tasks.py", "tools/")
    (copy / FILE).write_text(with_release((copy / FILE).read_text(encoding="utf-8"), NEXT), encoding="utf-8")
    with checkout.serving(copy) as served:
        yield served


def rows_of(copy: Copy, *arguments: str) -> list[dict[str, str]]:
    """Return the rows that `invoke` prints there as JSON."""
    output = json.loads(copy.invoke(*arguments).stdout)
    return list(output["rows"] if isinstance(output, dict) else output)


def test_a_new_release_plans_and_renders_for_every_target(with_next: Copy) -> None:
    options = ["--platform", "linux/amd64", "--cpu", "x86-64-v3", "--python", "3.12"]
    options += [word for name in targets.names() for word in ("--target", name)]
    new, old = (
        {row["id"]: row for row in rows_of(with_next, "matrix", "--format", "json", "--release", release, *options)}
        for release in (NEXT, NEWEST)
    )
    assert len(new) == 2 * len(targets.names()), "each from the official wheel and from source"
    assert set(new) == {name.replace(NEWEST, NEXT) for name in old}
    with_next.invoke("dockerfile", "--release", NEXT, *options[:4], "--output", str(with_next.folder / "context"))
    assert f"v{NEXT}" in (with_next.folder / "context" / "Dockerfile").read_text(encoding="utf-8")


def test_a_new_release_is_the_default(with_next: Copy) -> None:
    (build,) = rows_of(with_next, "plan", "--json", "--platform", "linux/amd64", "--cpu", "x86-64-v3")
    assert build["release"] == NEXT


def test_a_new_major_version_inherits_no_facts() -> None:
    text = (checkout.ROOT / FILE).read_text(encoding="utf-8")
    check_releases(facts.parse(with_release(text, NEXT), ReleaseTable, "releases.toml"))
    after = f"{int(MAJOR) + 1}.0.0"
    with pytest.raises(ValueError, match=re.escape(f"[[release]] {after}: known_until is")):
        check_releases(facts.parse(with_release(text, after), ReleaseTable, "releases.toml"))
