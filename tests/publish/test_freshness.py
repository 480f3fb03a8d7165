"""Whether a published image should be rebuilt: its base was updated under its tag, or it is too old."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.commandline import invoke
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather, image
from tfbuild.context.dockerfile import image_digest
from tfbuild.context.labels import BASE_DIGEST, BASE_NAME
from tfbuild.errors import Stale
from tfbuild.oci import manifests
from tfbuild.oci.manifests import digest_of
from tfbuild.publish import check, freshness
from tfbuild.publish.check import CheckedImage
from tfbuild.util.quantities import days

CONTEXT = f"sha256:{64 * '1'}"


def base(fake: type[FakeRegistry], content: bytes) -> tuple[str, str]:
    """Put an image under the base's tag; return the base's name and digest."""
    document = json.dumps({"mediaType": manifests.INDEX, "manifests": [], "x": content.decode()}).encode()
    fake.content["manifests/slim"] = (manifests.INDEX, document)
    return f"{connect(fake).repository}:slim", digest_of(document)


def published(fake: type[FakeRegistry], name: str, digest: str, **labels: str) -> str:
    more = {BASE_NAME: name, BASE_DIGEST: digest, "io.tfbuild.context": image_digest(CONTEXT, digest)} | labels
    tag = image(fake, "2.20.0", more, cpu="x86-64-v3")
    gather(fake, tag)
    return tag


def checked(fake: type[FakeRegistry], tag: str, tmp_path: Path) -> CheckedImage:
    return check.image(connect(fake), tag, tmp_path)


def test_an_image_on_the_base_of_today_stays(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name, digest = base(fake, b"old")
    one = checked(fake, published(fake, name, digest), tmp_path)
    state = freshness.judge(one, compare_base=True, max_age=timedelta(days=36500))
    freshness.refuse_stale(one, state)
    assert state.to_json() == {
        "base": {"name": name, "digest": digest, "now": digest}, "rebuild": [], "rebuild_options": None
    }  # fmt: skip


def test_an_updated_base_asks_for_a_rebuild_without_compiling(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name, digest = base(fake, b"old")
    tag = published(fake, name, digest)
    _, now = base(fake, b"new")
    before = len(fake.requests)
    one = checked(fake, tag, tmp_path)
    state = freshness.judge(one, compare_base=True, max_age=None)
    # Registries that limit downloads do not count this request.
    assert "HEAD /v2/us/x/manifests/slim" in fake.requests[before:]
    with pytest.raises(Stale, match=f"its base {name} was updated: {digest} is now {now}") as refusal:
        freshness.refuse_stale(one, state)
    assert refusal.value.exit_code == 33
    assert state.options == f"--no-cache --reuse {one.reference}"
    assert state.options in refusal.value.hint
    # Without --context nothing is asked about the base.
    assert freshness.judge(one, compare_base=False, max_age=None).reasons == {}


def test_an_official_wheel_is_installed_anew(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name, digest = base(fake, b"old")
    one = checked(fake, published(fake, name, digest, **{"io.tfbuild.wheel": "official"}), tmp_path)
    assert freshness.rebuild_options(one) == "--no-cache"


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("", "it names no tag"),
        (f"python@sha256:{64 * '2'}", "it names no tag"),
        ("tfbuild-base:bookworm", "it was made from Debian's packages"),
        ("UPPER:CASE", "is not an image with a tag in a registry"),
        ("{repository}:gone", "has no tag gone"),
        ("127.0.0.1:1/our/base:12", "127.0.0.1:1"),
    ],
)
def test_a_base_that_cannot_be_compared_asks_for_nothing_and_is_noted(
    name: str, note: str, fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfbuild.oci.transport.TRIES", 1, raising=False)
    full = name.format(repository=connect(fake).repository)
    state = freshness.judge(
        checked(fake, published(fake, full, "sha256:of-a-base"), tmp_path), compare_base=True, max_age=None
    )
    assert state.reasons == {}
    assert state.base is not None
    assert note in state.base.note


@pytest.mark.parametrize(("limit", "stale"), [("1d", True), ("30000d", False)])
def test_an_old_image_asks_for_a_rebuild(limit: str, stale: bool, fake: type[FakeRegistry], tmp_path: Path) -> None:
    """The image is of 2026-11-01."""
    one = checked(fake, published(fake, *base(fake, b"old")), tmp_path)
    state = freshness.judge(one, compare_base=True, max_age=days(limit))
    assert [*state.reasons] == (["age"] if stale else [])


def test_the_verb_prints_the_reason_and_exits_with_its_code(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name, digest = base(fake, b"old")
    tag = published(fake, name, digest)
    registry = str(connect(fake).repository)
    words = ("verify", tag, "--registry", registry, "--context", CONTEXT, "--json")
    assert json.loads(invoke(*words).stdout)["rebuild"] == []
    base(fake, b"new")
    done = invoke(*words, "--max-age", "1d", code=33)
    document = json.loads(done.stdout)
    (updated, old) = document["rebuild"]
    now = base(fake, b"new")[1]
    assert updated == {"reason": "base", "text": f"its base {name} was updated: {digest} is now {now}"}
    assert old["reason"] == "age"
    assert re.fullmatch(r"it was built \d+ days ago, on 2026-11-01", old["text"])
    assert document["rebuild_options"] == f"--no-cache --reuse {document['reference']}"
    assert done.stderr.count("error: ") == 1
    # Another context comes first: that image must be compiled anew.
    invoke(*words[:5], f"sha256:{64 * '2'}", code=33)
    assert "--max-age" in invoke("verify", tag, "--max-age", "30d", code=2).stderr


def test_an_image_that_does_not_say_when_it_was_built_is_too_old(fake: type[FakeRegistry], tmp_path: Path) -> None:
    one = checked(fake, published(fake, *base(fake, b"old")), tmp_path)
    undated = replace(one, published=replace(one.published, created=""))
    state = freshness.judge(undated, compare_base=False, max_age=timedelta(days=1))
    assert state.reasons == {"age": "nothing says when it was built"}
    document = state.to_json()
    assert (document["base"], document["rebuild_options"]) == (None, f"--no-cache --reuse {one.reference}")
    assert freshness.judge(undated, compare_base=False, max_age=None).to_json()["rebuild"] == []


def test_a_base_without_an_answer_is_null_in_json(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name = f"{connect(fake).repository}:gone"
    one = checked(fake, published(fake, name, "sha256:of-a-base"), tmp_path)
    state = freshness.judge(one, compare_base=True, max_age=None)
    assert state.to_json()["base"] == {"name": name, "digest": "sha256:of-a-base", "now": None}
    known = checked(fake, published(fake, *base(fake, b"x"), **{"io.tfbuild.version": "2"}), tmp_path)
    now = freshness.base_now(known)
    assert (now.now, now.note) == (now.digest, "")
