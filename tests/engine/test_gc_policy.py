"""The build cache policy of tfbuild's own engine; that an engine applies it is tested on a real one."""

import json
from pathlib import Path

import pytest

from tfbuild.engine import daemon
from tfbuild.errors import EngineMissing


def written(folder: Path, system: str | None = None) -> dict[str, object]:
    own = folder / "system.json"
    if system is not None:
        own.write_text(system)
    configuration: dict[str, object] = json.loads(
        daemon.write_configuration(folder / "ours.json", 250 * 10**9, own).read_text()
    )
    return configuration


def test_layers_are_removed_first_and_bazels_cache_mounts_only_by_the_last_rule(tmp_path: Path) -> None:
    builder = written(tmp_path)["builder"]
    assert isinstance(builder, dict)
    *cheap, last = builder["gc"]["policy"]
    assert {rule["keepStorage"] for rule in cheap} == {str(50 * 10**9)}
    assert [rule["filter"] for rule in cheap] == [
        ["type=regular"], ["type=source.local"], ["type=source.git.checkout"], ["type=internal"],
    ]  # fmt: skip
    assert last == {"keepStorage": str(125 * 10**9), "all": True}


def test_the_machines_own_configuration_is_kept_and_takes_precedence(tmp_path: Path) -> None:
    mirrors = {"registry-mirrors": ["https://mirror.site"]}
    assert written(tmp_path, json.dumps(mirrors)) == {"builder": daemon.cache_policy(250 * 10**9), **mirrors}
    own = {"builder": {"gc": {"enabled": False}}}
    assert written(tmp_path, json.dumps(own)) == own


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_an_unreadable_configuration_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="cannot be read"):
        written(tmp_path, text)
