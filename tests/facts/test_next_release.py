"""A new TensorFlow release without changes is one row: a made-up release in a copy of the project."""

import json
import re
from pathlib import Path

from tests import checkout
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


def test_a_new_release_is_the_default_and_plans_and_renders_for_every_target(tmp_path: Path) -> None:
    copy = checkout.copy(tmp_path / "copy", "tfbuild/", "templates/", "tasks.py", "tools/")
    (copy / FILE).write_text(with_release((copy / FILE).read_text(encoding="utf-8"), NEXT), encoding="utf-8")
    host = ("--platform", "linux/amd64", "--cpu", "x86-64-v3")
    every = [word for name in targets.names() for word in ("--target", name)]
    with checkout.serving(copy) as served:
        (build,) = json.loads(served.invoke("plan", "--json", *host).stdout)
        served.invoke("dockerfile", *host, "--output", str(tmp_path / "context"))
        matrices = [
            json.loads(served.invoke("matrix", *host, *every, f"--release={release}", "--format=json").stdout)["rows"]
            for release in (NEXT, NEWEST)
        ]
    assert build["release"] == NEXT
    assert f"v{NEXT}" in (tmp_path / "context" / "Dockerfile").read_text(encoding="utf-8")
    new, old = ({row["id"] for row in rows} for rows in matrices)
    assert new == {name.replace(NEWEST, NEXT) for name in old}
    assert {row["wheel"] for row in matrices[0]} == {"official", "source"}


def test_a_new_minor_version_inherits_every_fact() -> None:
    text = (checkout.ROOT / FILE).read_text(encoding="utf-8")
    check_releases(facts.parse(with_release(text, NEXT), ReleaseTable, "releases.toml"))
