"""A yanked image is in no index, stays out of them, and says why."""

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import gather, image, offered
from tests.publish.test_alterations import unnumbered
from tests.publish.test_pulling import manifest, select
from tfbuild.cli import VERBS, command_line, listing, publishing
from tfbuild.errors import RegistryRefused, Stale, UnknownImage, UsageError, Yanked
from tfbuild.oci import manifests, referrers
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.publish import attachments, check, inventory, pulling, pushing, yanking

# No date is later.
LAST = "9999-12-31T23:59:59.999999Z"
INDEXES = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")


@pytest.fixture
def names(fake: type[FakeRegistry]) -> tuple[str, str]:
    """The identifiers of the best image and of the second one."""
    pushed = image(fake, "2.20.0", cpu="x86-64-v4"), image(fake, "2.20.0", cpu="x86-64-v3")
    for name in pushed:
        gather(fake, name)
    return pushed


def test_a_yanked_image_is_not_offered_and_stays_out_of_the_indexes(
    fake: type[FakeRegistry], names: tuple[str, str], tmp_path: Path
) -> None:
    best, second = names
    done = yanking.yank(connect(fake), f"tfbuild:{best}", "crashes in MatMul")
    row = {"image": f"{connect(fake).repository}:{best}", "digest": manifest(fake, best), "recorded": True}
    assert done.to_json() == {**row, "reason": "crashes in MatMul"}
    other = image(fake, "2.20.0", cpu="avx")
    gather(fake, other)
    for tag in INDEXES:
        assert sorted(offered(fake, tag)) == sorted((second, other))
    assert pulling.accept(connect(fake), select(fake)).image.id == second
    checked = check.image(connect(fake), best, tmp_path)
    with pytest.raises(Yanked, match=rf"{best} was yanked: crashes in MatMul") as refusal:
        check.refuse_yanked(checked)
    assert refusal.value.exit_code == 32
    # CI replaces it if its context has changed.
    with pytest.raises(Stale):
        check.refuse_outdated(checked, f"sha256:{64 * '0'}")
    with pytest.raises(Yanked):
        pushing.finish(connect(fake), best, tmp_path)


def test_an_image_that_is_offered_again_has_no_reason(fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    yanking.yank(connect(fake), names[0], "crashes in MatMul")
    assert yanking.yank(connect(fake), names[0], "").to_json()["reason"] is None


def test_the_list_says_why_an_image_was_yanked(fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    best, second = names
    yanking.yank(connect(fake), best, "crashes\x1b[31m in MatMul")
    entries = {entry.id: entry for entry in inventory.remote(connect(fake), None)}
    assert {name: (entry.offered, entry.altered, entry.yanked) for name, entry in entries.items()} == {
        best: (False, "", "crashes [31m in MatMul"), second: (True, "", "")
    }  # fmt: skip
    assert entries[best].to_json()["yanked"] == "crashes [31m in MatMul"
    assert listing._verified(entries[best]) == "yanked: crashes [31m in MatMul"


def test_a_yanked_image_can_be_offered_again_and_yanked_again(
    fake: type[FakeRegistry], names: tuple[str, str], tmp_path: Path
) -> None:
    best, _ = names
    before = {tag: unnumbered(fake.content[f"manifests/{tag}"][1]) for tag in INDEXES}
    for _ in range(2):
        yanking.yank(connect(fake), best, "a mistake")
        assert best not in offered(fake, "any-mkl")
        yanking.yank(connect(fake), best, "")
        assert {tag: unnumbered(fake.content[f"manifests/{tag}"][1]) for tag in INDEXES} == before
        check.refuse_unfinished(check.image(connect(fake), best, tmp_path))


def test_another_image_of_that_identifier_is_offered(fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    best, _ = names
    yanking.yank(connect(fake), best, "crashes")
    assert image(fake, "2.20.0", {"io.tfbuild.version": "rebuilt"}, cpu="x86-64-v4") == best
    assert gather(fake, best) == list(INDEXES)


def test_the_last_images_yank_leaves_empty_indexes(fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    older = image(fake, "2.14.1", cpu="x86-64-v3")
    gather(fake, older)
    for name in names:
        yanking.yank(connect(fake), name, "crashes")
    assert offered(fake, "2.20.0-mkl") == []
    assert offered(fake, "latest-mkl") == offered(fake, "any-mkl") == [older]
    best = select(fake).best
    assert best is not None
    assert best.id == older


def test_a_lost_image_is_taken_out_of_its_indexes_too(fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    best, second = names
    lost = manifest(fake, best)
    for reference in (best, lost):
        del fake.content[f"manifests/{reference}"]
    done = yanking.yank(connect(fake), best, "its layers are gone")
    assert (done.digest, done.recorded) == (lost, False)
    assert [offered(fake, tag) for tag in INDEXES] == 4 * [[second]]
    for unknown in (best, "2.20.0-mkl-py3.13-nothing", "latest-mkl", "x"):
        with pytest.raises(UnknownImage):
            yanking.yank(connect(fake), unknown, "x")
    with pytest.raises(UsageError, match="is a digest"):
        yanking.yank(connect(fake), lost, "x")


def test_a_yank_that_cannot_be_read_is_one_and_hides_no_other_image(
    fake: type[FakeRegistry], names: tuple[str, str]
) -> None:
    best, second = names
    yanking.yank(connect(fake), best, "crashes")
    subject = connect(fake).manifest(best)
    assert subject is not None
    (path,) = [path for path, (_, body) in fake.content.items() if b'"reason"' in body]
    fake.content[path] = ("application/octet-stream", b"{")
    assert attachments.yank_reason(connect(fake), subject) == "the record of its yank cannot be read"
    assert gather(fake, second) == list(INDEXES)
    assert digest_of(subject.content) == subject.digest
    assert subject.media_type in manifests.IMAGES


def attach_record(fake: type[FakeRegistry], subject: Manifest, created: str) -> None:
    """Attach a record that offers the image, as somebody else."""
    content = json.dumps({"digest": subject.digest, "reason": "", "created": created}).encode()
    other = referrers.Attachment(media_type=attachments.YANK, title="x", created="", content=content)
    referrers.attach(connect(fake), other, subject)


@pytest.mark.parametrize("created", ["2099-01-01T00:00:00Z", "9999-12-31T23:59:59.9999Z", LAST])
def test_a_yank_counts_whatever_the_dates_of_others_or_fails(
    created: str, fake: type[FakeRegistry], names: tuple[str, str]
) -> None:
    best, _ = names
    subject = connect(fake).manifest(best)
    assert subject is not None
    attach_record(fake, subject, created)
    if created == LAST:
        before = dict(fake.content)
        with pytest.raises(RegistryRefused, match=f"{best} is still offered; .* \\(nothing was changed\\)") as refusal:
            yanking.yank(connect(fake), best, "crashes")
        assert f"delete the records attached to {subject.digest}" in refusal.value.hint
        assert fake.content == before
        return
    for _ in range(2):
        yanking.yank(connect(fake), best, "crashes")
        assert best not in offered(fake, "any-mkl")
        yanking.yank(connect(fake), best, "")
        assert best in offered(fake, "any-mkl")


def test_a_record_that_another_one_of_the_same_moment_overrides_is_told(
    fake: type[FakeRegistry], names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    best, _ = names
    subject = connect(fake).manifest(best)
    assert subject is not None
    parse = attachments.yanks

    def yanks(*words: Any) -> list[tuple[datetime, str]]:
        found = parse(*words)
        attach_record(fake, subject, LAST)
        return found

    monkeypatch.setattr(attachments, "yanks", yanks)
    with pytest.raises(RegistryRefused, match=r"is still offered; .* \(this one is attached too, without effect\)"):
        yanking.yank(connect(fake), best, "crashes")
    assert best in offered(fake, "any-mkl")


def test_an_image_with_a_yank_that_cannot_be_read_is_not_said_to_be_offered_again(
    fake: type[FakeRegistry], names: tuple[str, str]
) -> None:
    best, _ = names
    yanking.yank(connect(fake), best, "crashes")
    (path,) = [path for path, (_, body) in fake.content.items() if b'"reason"' in body]
    fake.content[path] = ("application/octet-stream", b"{")
    before = dict(fake.content)
    with pytest.raises(RegistryRefused, match=f"{best} is still yanked: the record of its yank cannot be read"):
        yanking.yank(connect(fake), best, "")
    assert fake.content == before
    assert best not in offered(fake, "any-mkl")


@pytest.mark.parametrize(("reason", "undo"), [("", False), (" ", False), ("crashes", True)])
def test_a_yank_needs_a_reason_and_its_end_none(reason: str, undo: bool) -> None:
    with pytest.raises(UsageError, match="needs a reason"):
        publishing.yank("x", registry="127.0.0.1:1/us/x", ca_cert="", reason=reason, undo=undo, json=False)


def test_an_image_is_yanked_by_its_verb(
    fake: type[FakeRegistry], names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    registry = f"{fake.host}/us/x"
    yank: Callable[..., Any] = publishing.yank
    yank(names[0], registry=registry, ca_cert="", reason="crashes", undo=False, json=False)
    output = capsys.readouterr()
    assert output.out == f"{registry}:{names[0]}@{manifest(fake, names[0])}\n"
    assert "yanked from its indexes" in output.err
    assert names[0] not in offered(fake, "latest-mkl")
    yank(names[0], registry=registry, ca_cert="", reason="", undo=True, json=False)
    assert names[0] in offered(fake, "latest-mkl")
    with pytest.raises(RegistryRefused):
        yank(names[0], registry="127.0.0.1:1/us/x", ca_cert="", reason="crashes", undo=False, json=False)


@pytest.mark.parametrize("part", ["configuration", "ambiguous"])
def test_a_damaged_image_can_be_yanked(part: str, fake: type[FakeRegistry], names: tuple[str, str]) -> None:
    """The reason is attached to nothing, and the indexes offer the others."""
    best, second = names
    kind, content = fake.content[f"manifests/{best}"]
    if part == "configuration":
        del fake.content[f"blobs/{json.loads(content)['config']['digest']}"]
    else:
        fake.content[f"manifests/{best}"] = (kind, content.replace(b"{", b'{"Layers": [],', 1))
    done = yanking.yank(connect(fake), best, "its configuration is gone")
    assert not done.recorded
    assert [offered(fake, tag) for tag in INDEXES] == [[second]] * len(INDEXES)


def test_the_former_name_of_the_verb_works(names: tuple[str, str]) -> None:
    (call,) = command_line.calls(["withdraw", names[0], "--reason", "crashes"], VERBS)
    assert (call.verb.name, call.values["reason"]) == ("yank", "crashes")
    assert "withdraw" not in VERBS


def test_what_former_versions_attached_still_counts() -> None:
    assert attachments.YANK == "application/vnd.tfbuild.withdrawal+json"
