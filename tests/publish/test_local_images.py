"""The images on an engine: which are tfbuild's own, verified, and able to run here."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cpu.machines import machine
from tests.publish.fake_images import labels_of_plan
from tests.verify.test_report import report
from tfbuild import cpu
from tfbuild.engine import Engine, Image
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage
from tfbuild.measure import records
from tfbuild.oci.manifests import digest_of
from tfbuild.publish import indexes, inventory
from tfbuild.publish.inventory import Entry

LABELS = labels_of_plan("2.20.0", "x86-64-v3") | {"io.tfbuild.context": digest_of(b"context")}
NAME = LABELS["io.tfbuild.id"]
DIGESTS = {name: digest_of(name.encode()) for name in "ABCD"}
HASWELL = cpu.parse(machine("rhel7-haswell").cpuinfo())


def last_step(labels: Mapping[str, str] = LABELS) -> str:
    """As an engine writes the LABEL that ends tfbuild's Dockerfile into an image's history."""
    names = ("id", "release", "target", "python", "platform", "instruction-set", "features", "context")
    return " ".join(("LABEL", *(f"io.tfbuild.{name}={labels[f'io.tfbuild.{name}']}" for name in names)))


class Here(Engine):
    """Images with their histories, newest step first; one without a history has just been removed."""

    def __init__(self, *images: Image, **histories: tuple[str, ...]) -> None:
        self.images, self.histories = images, {DIGESTS[name]: steps for name, steps in histories.items()}

    def labelled(self, label: str) -> list[Image]:
        return [image for image in self.images if label in image.labels]

    def history(self, ref: str) -> tuple[str, ...]:
        try:
            return self.histories[ref]
        except KeyError:
            raise UnknownImage(f"no image {ref}", hint="") from None


def image(name: str, *tags: str, labels: Mapping[str, str] = LABELS, digests: tuple[str, ...] = ()) -> Image:
    return Image(
        id=DIGESTS[name], labels=labels, size=7, env=(), architecture="amd64", repo_digests=digests,
        tags=tags, created="2026-11-01T00:00:00Z",
    )  # fmt: skip


def listed(engine: Engine, reports: Path, host: cpu.Cpu | None = HASWELL) -> list[Entry]:
    return inventory.local(engine, reports, host)


def only(engine: Engine, reports: Path) -> Entry:
    (entry,) = listed(engine, reports)
    return entry


def test_an_image_is_listed_with_what_its_labels_say(tmp_path: Path) -> None:
    entry = only(Here(image("A", f"tfbuild:{NAME}"), A=(last_step(), "RUN x")), tmp_path)
    assert entry.to_json() == {
        "place": "here", "name": f"tfbuild:{NAME}", "id": NAME, "digest": DIGESTS["A"], "instruction_set": "x86-64-v3",
        "platform": "linux/amd64", "size": 7, "created": "2026-11-01T00:00:00Z", "verified": None, "offered": None,
        "altered": None, "yanked": None, "signature_attached": None, "outdated": None, "runs_here": True,
        "lacks": [],
    }  # fmt: skip
    assert entry.ours


def test_images_are_sorted_by_name_and_unnamed_ones_by_time_at_the_end(tmp_path: Path) -> None:
    images = [image(name) for name in "AB"] + [image("C", "tfbuild:b"), image("D", "tfbuild:a", "elsewhere/x:y")]
    images[0] = replace(images[0], created="2026-11-03T00:00:00Z")
    engine = Here(*images, A=(), B=(), C=(), D=())
    entries = listed(engine, tmp_path)
    assert [entry.name for entry in entries] == ["tfbuild:a", "tfbuild:b", "(unnamed)", "(unnamed)"]
    assert [entry.digest for entry in entries] == [DIGESTS[name] for name in "DCBA"]


def test_an_image_without_a_name_of_tfbuilds_has_its_others(tmp_path: Path) -> None:
    digest = f"ghcr.io/us/x@{digest_of(b'x')}"
    names = ("ghcr.io/us/x:latest-mkl", "ours:1")
    assert [entry.name for entry in listed(Here(image("A", *names, digests=(digest,)), A=()), tmp_path)] == [*names]
    assert [entry.name for entry in listed(Here(image("A", digests=(digest,)), A=()), tmp_path)] == [digest]


def test_images_that_are_not_tfbuilds_or_are_gone_are_left_out(tmp_path: Path) -> None:
    sound, gone = image("A", f"tfbuild:{NAME}"), image("B", "tfbuild:b")
    foreign = image("C", "tfbuild:c", labels={"io.tfbuild.id": "x"})
    other = image("D", "tfbuild:d", labels={})
    entries = listed(Here(gone, foreign, other, sound, A=(), C=(), D=()), tmp_path)
    assert [entry.digest for entry in entries] == [DIGESTS["A"]]


@pytest.mark.parametrize(
    ("verdict", "of", "suffix", "verified"),
    [
        ("pass", "A", "", True),
        ("fail", "A", "", False),
        # The report is of another image of that name.
        ("pass", "B", "", None),
        ("pass", "B", "-failed", False),
        ("pass", "B", "-unverified", False),
        ("", "", "-unverified", False),
        ("", "", "", None),
    ],
)
def test_an_image_is_verified_by_the_report_on_itself(
    verdict: str, of: str, suffix: str, verified: bool | None, tmp_path: Path
) -> None:
    if verdict:
        written = replace(report(), id=NAME, verdict=verdict, image=replace(report().image, id=DIGESTS[of]))
        (tmp_path / f"{NAME}.json").write_text(records.to_json(written))
    assert only(Here(image("A", f"tfbuild:{NAME}{suffix}"), A=()), tmp_path).verified is verified


@pytest.mark.parametrize(
    ("history", "ours"),
    [
        ((last_step(), "RUN x"), True),
        ((f"{last_step()} io.tfbuild.more=x",), True),
        # Somebody built on it, or changed it.
        (("CMD [x]", last_step()), False),
        ((), False),
        ((last_step().removeprefix("LABEL "),), False),
        ((last_step().replace("LABEL", "RUN echo"),), False),
        ((last_step().rpartition(" ")[0],), False),
        ((last_step(LABELS | {"io.tfbuild.python": "3.1"}),), False),
        ((last_step().replace("io.tfbuild.python=", "my.io.tfbuild.python="),), False),
    ],
)
def test_tfbuilds_own_are_those_whose_last_step_set_their_labels(
    history: tuple[str, ...], ours: bool, tmp_path: Path
) -> None:
    assert only(Here(image("A", f"tfbuild:{NAME}"), A=history), tmp_path).ours is ours


def test_an_image_that_lacks_a_label_is_nobodys(tmp_path: Path) -> None:
    less = {name: value for name, value in LABELS.items() if name != "io.tfbuild.context"}
    step = last_step().partition(" io.tfbuild.context=")[0]
    assert not only(Here(image("A", f"tfbuild:{NAME}", labels=less), A=(step,)), tmp_path).ours


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        (f"tfbuild:{NAME}", True),
        (f"tfbuild:{NAME}-failed", True),
        (f"ghcr.io/us/x:{NAME}-unverified", True),
        ("ghcr.io/us/x:latest-mkl", True),
        ("ghcr.io/us/x:2.20-mkl", True),
        (f"ghcr.io/us/x@{digest_of(b'x')}", True),
        ("ghcr.io/us/x:2.21-mkl", False),
        ("ghcr.io/us/x:prod", False),
        (f"ghcr.io/us/x:{NAME}-mine", False),
        (f"ghcr.io:5000/{NAME}", False),
    ],
)
def test_a_name_that_somebody_else_gave_keeps_an_image(name: str, ours: bool, tmp_path: Path) -> None:
    tags, digests = ((), (name,)) if "@" in name else ((name,), ())
    engine = Here(image("A", *tags, digests=digests), A=(last_step(),))
    assert only(engine, tmp_path).ours is ours
    assert only(Here(image("A"), A=(last_step(),)), tmp_path).ours


def test_the_name_that_a_killed_push_left_is_listed_and_prunable(tmp_path: Path) -> None:
    names = (f"ghcr.io/us/x:arriving-{64 * '0'}", f"tfbuild:{NAME}")
    entries = listed(Here(image("A", *names), A=(last_step(),)), tmp_path)
    assert [entry.name for entry in entries] == [*names]
    assert inventory.prunable(entries, ()) == entries[:1]


def test_what_the_host_lacks_is_named(tmp_path: Path) -> None:
    v4, arm = labels_of_plan("2.20.0", "x86-64-v4"), LABELS | {"io.tfbuild.platform": "linux/arm64"}
    engine = Here(image("A", "tfbuild:a", labels=v4), image("B", "tfbuild:b", labels=arm), A=(), B=())
    missing, foreign = listed(engine, tmp_path)
    assert missing.lacks == ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
    assert (missing.runs, foreign.runs, foreign.lacks) == (False, False, ("a linux/arm64 CPU",))
    # The CPU of an engine elsewhere may be unknown.
    assert {entry.lacks for entry in listed(engine, tmp_path, None)} == {("a linux/amd64 CPU",), ("a linux/arm64 CPU",)}


@pytest.mark.parametrize("error", [EngineMissing, DiskFull])
def test_removing_images_ends_where_the_engine_can_remove_none(error: type[TfbuildError]) -> None:
    class Gone(Engine):
        def __init__(self) -> None:
            self.calls = 0

        def untag(self, ref: str) -> None:
            self.calls += 1
            raise error("no engine, or a full one", hint="help it")

    engine = Gone()
    entry = inventory._entry(
        indexes.of_labels(LABELS, "", digest_of(b"")), "here", "x", size=1, host=None  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(error):
        inventory.remove(engine, [entry, entry])
    assert engine.calls == 1
