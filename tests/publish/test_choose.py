"""Selection: one release for all hosts; of that, the largest set without features that the host lacks."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.machines import machine
from tfbuild import cpu, plan
from tfbuild.cpu import isa
from tfbuild.oci import manifests
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Published

NAMES = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512_vnni")
PLATFORMS = ("linux/amd64", "linux/arm64")
feature_sets = st.frozensets(st.sampled_from(NAMES))


@st.composite
def images(draw: st.DrawFn) -> list[Published]:
    count = draw(st.integers(0, 8))
    versions = [
        (draw(st.sampled_from(("2.13.1", "2.20.0", "2.21.0"))), draw(st.sampled_from(("3.9", "3.13"))))
        for _ in range(count)
    ]
    return [
        Published(
            id=f"{release}-mkl-py{python}-set-{number}",
            digest=f"sha256:{number:064}",
            release=release,
            target="mkl",
            python=python,
            platform=draw(st.sampled_from(PLATFORMS)),
            instruction_set=f"set-{number}",
            features=draw(feature_sets),
            created=draw(st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-02-01T00:00:00Z"))),
            media_type=manifests.IMAGES[0],
            size=number,
        )
        for number, (release, python) in enumerate(versions)
    ]


def index(published: list[Published]) -> manifests.Manifest:
    content = indexes.index_content(published)
    return manifests.Manifest(digest=manifests.digest_of(content), media_type=manifests.INDEX, content=content)


@given(images(), feature_sets, st.integers())
def test_an_index_leads_to_the_same_choice_in_any_order(
    published: list[Published], features: frozenset[str], seed: int
) -> None:
    sent = index(published).json()
    random.Random(seed).shuffle(sent["manifests"])
    content = json.dumps(sent).encode()
    read = indexes.read_index(manifests.Manifest(digest="", media_type=manifests.INDEX, content=content))
    assert set(read) == set(published)
    assert choose.choose(read, platform="linux/amd64", features=features) == choose.choose(
        published, platform="linux/amd64", features=features
    )


@pytest.mark.parametrize(
    ("platform", "cpus", "variants"),
    [
        ("linux/amd64", ["x86-64-v4-vnni", "x86-64-v3", "avx", "x86-64-v4"], [None, "v3", "v4", None]),
        ("linux/amd64", ["x86-64-v3", "sse4_2,ssse3"], [None, "v3"]),
        ("linux/arm64", ["armv8.2-a", "armv8-a"], [None, None]),
    ],
)
def test_entries_name_their_level_but_the_slowest_which_plain_docker_takes(
    platform: str, cpus: list[str], variants: list[str | None]
) -> None:
    sets = [isa.resolve(name, arch=plan.PLATFORMS[platform]) for name in cpus]
    several = [
        replace(published("avx"), platform=platform, digest=f"sha256:{number:064}", features=frozenset(own.features))
        for number, own in enumerate(sets)
    ]
    sent = index(several)
    rows = sent.json()["manifests"]
    assert [row["platform"].get("variant") for row in rows] == variants
    assert len(indexes.read_index(sent)) == len(several)
    # Plain docker takes the first one of the highest variant that the host runs.
    speeds = [row["annotations"]["io.tfbuild.speed"] for row in rows]
    for variant in {*variants} - {None}:
        own = [speed for speed, its in zip(speeds, variants, strict=True) if its == variant]
        assert own[0] == max(own)


times = st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1))
zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))


@given(times, times, zones, zones)
def test_times_are_compared_as_times(first: datetime, second: datetime, zone: timezone, other_zone: timezone) -> None:
    first, second = first.replace(tzinfo=UTC), second.replace(tzinfo=UTC)
    texts = first.astimezone(zone).isoformat(), second.astimezone(other_zone).isoformat()
    assert [choose.parse_time(text) for text in texts] == [first, second]
    assert choose.parse_time(first.replace(tzinfo=None).isoformat()) == first, "UTC without an offset"
    ranked = [choose.rank(published("avx", created=text)) for text in texts]
    if first != second:
        assert (ranked[0] < ranked[1]) == (first < second)


def published(name: str, release: str = "2.20.0", created: str = "2026-01-01T00:00:00Z") -> Published:
    instruction_set = isa.resolve(name, arch="x86_64")
    return Published(
        id=f"{release}-mkl-py3.11-{name}", digest=f"sha256:{name}{release}{created}", release=release, target="mkl",
        python="3.11", platform="linux/amd64", instruction_set=instruction_set.name,
        features=frozenset(instruction_set.features), created=created, media_type=manifests.IMAGES[0],
    )  # fmt: skip


ONE_RELEASE = [published(name) for name in ("x86-64-v4", "avx", "x86-64-v2", "x86-64-v3")]


def chosen(recorded: str, *more: Published) -> choose.Choice:
    features = frozenset(isa.of_cpu(cpu.parse(machine(recorded).cpuinfo()), exact=True).features)
    return choose.choose([*ONE_RELEASE, *more], platform="linux/amd64", features=features)


def test_of_equal_sets_of_a_release_the_newer_python_is_chosen_whatever_the_build_time() -> None:
    old, new = (
        replace(published("x86-64-v3"), id=f"2.20.0-mkl-py{python}-x86-64-v3", python=python, created=created)
        for python, created in (("3.9", "2026-03-01T00:00:00Z"), ("3.13", "2026-02-01T00:00:00Z"))
    )
    choice = choose.choose([old, new], platform="linux/amd64", features=old.features)
    assert choice.best == new
    reasons = [image.reason for image in choice.passed_over]
    assert reasons == ["Python 3.13 is newer; --python 3.9 chooses among its images"]


def test_features_that_make_no_difference_do_not_keep_an_older_build() -> None:
    """As `--cpu host,exact` compiles for them, and `--cpu host` does not."""
    new = published("x86-64-v3", created="2026-02-01T00:00:00Z")
    old = published("x86-64-v3,aes,pclmul,rdrand")
    assert new.features < old.features
    assert choose.choose([old, new], platform="linux/amd64", features=old.features).best == new
    # What does make a difference is preferred, however old.
    larger = published("x86-64-v4")
    assert choose.choose([larger, new], platform="linux/amd64", features=larger.features).best == larger


def test_a_release_means_all_of_its_patches_and_no_other() -> None:
    images = [published("avx", release=release) for release in ("2.2.0", "2.20.0", "2.20.1", "2.21.0")]
    matches = choose.matching(images, release="2.20", target="mkl", python="")
    assert [image.release for image in matches] == ["2.20.0", "2.20.1"]
    assert choose.matching(images, release="2.20.1", target="mkl", python="3.12") == []
    assert choose.matching(images, release="", target="cpu", python="") == []
    # A candidate is chosen by its own release alone.
    images = [published("avx", release=release) for release in ("2.20.0", "2.20.1rc0", "2.21.0.dev20260101")]
    for release, found in (("", ["2.20.0"]), ("2.20", ["2.20.0"]), ("2.20.1rc0", ["2.20.1rc0"])):
        assert [image.release for image in choose.matching(images, release=release, target="mkl", python="")] == found


def test_a_choice_among_other_images_keeps_one_reason_for_each() -> None:
    choice = chosen("rocky9-zen5")
    best, *others = choice.fitting
    left = choice.among(others, [choose.PassedOver(id=best.id, reason="lost", notable=True)])
    assert (left.best, left.fitting) == (others[0], tuple(others))
    reasons = [(row.id, row.reason) for row in left.passed_over]
    assert reasons[0] == (best.id, "lost")
    assert sorted(name for name, _ in reasons) == sorted(image.id for image in (best, *others[1:]))
    none = choice.among([])
    assert (none.best, none.passed_over) == (None, choice.passed_over)
    assert choose.explanation(none) == []
    assert choice.to_json() == {
        "id": best.id,
        "passed_over": [{"id": row.id, "reason": row.reason} for row in choice.passed_over],
    }


def test_only_what_would_have_been_chosen_is_notable() -> None:
    """The reasons of the others would be noise."""
    arm = replace(published("avx"), id="arm", platform="linux/arm64", features=frozenset(), digest="sha256:arm")
    choice = chosen("rhel7-haswell", arm, published("avx", release="2.14.1"))
    better = {row.id: row.notable for row in choice.passed_over}
    assert [name for name, is_better in better.items() if is_better] == ["2.20.0-mkl-py3.11-x86-64-v4"]
    assert {row.id: row.reason for row in choice.passed_over}["arm"] == "for linux/arm64"
    # Where nothing fits, each image of this release and platform would have been.
    only = choose.choose([*ONE_RELEASE, arm], platform="linux/amd64", features=frozenset())
    assert [row.id for row in only.passed_over if not row.notable] == ["arm"]
