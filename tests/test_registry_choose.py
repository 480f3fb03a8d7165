"""Selection: never an image with features the host lacks, never a smaller set when a larger one fits."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import machine
from tfbuild import cpu, facts
from tfbuild.cpu import isa
from tfbuild.oci import client
from tfbuild.publish import choose, indexes
from tfbuild.publish.choose import Published

NAMES = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512_vnni")
PLATFORMS = ("linux/amd64", "linux/arm64")
feature_sets = st.frozensets(st.sampled_from(NAMES))


@st.composite
def images(draw: st.DrawFn) -> list[Published]:
    count = draw(st.integers(0, 8))
    return [
        Published(
            id=f"image-{number}",
            digest=f"sha256:{number:064}",
            release=draw(st.sampled_from(("2.9.3", "2.20.0", "2.21.0"))),
            target="mkl",
            python=draw(st.sampled_from(("3.9", "3.13"))),
            platform=draw(st.sampled_from(PLATFORMS)),
            instruction_set=f"set-{number}",
            features=draw(feature_sets),
            created=draw(st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-02-01T00:00:00Z"))),
        )
        for number in range(count)
    ]


@given(images(), feature_sets)
def test_the_choice_fits_and_nothing_that_fits_is_larger(published: list[Published], features: frozenset[str]) -> None:
    found = choose.choose(published, platform="linux/amd64", features=features)
    fitting = [one for one in published if one.platform == "linux/amd64" and one.features <= features]
    if found.best is None:
        assert not fitting
        return
    assert found.best in fitting
    assert not [one for one in fitting if one.features > found.best.features]
    assert found.missing == ()
    assert {one.id for one in found.passed_over} == {one.id for one in published} - {found.best.id}


@given(images(), feature_sets, st.integers())
def test_the_registrys_order_does_not_matter(published: list[Published], features: frozenset[str], seed: int) -> None:
    shuffled = random.Random(seed).sample(published, len(published))
    first = choose.choose(published, platform="linux/amd64", features=features)
    assert choose.choose(shuffled, platform="linux/amd64", features=features) == first


@given(images(), feature_sets)
def test_where_nothing_fits_the_nearest_is_named_with_what_is_missing(
    published: list[Published], features: frozenset[str]
) -> None:
    found = choose.choose(published, platform="linux/amd64", features=features)
    here = [one for one in published if one.platform == "linux/amd64"]
    if found.best is not None or not here:
        assert found.nearest is None
        return
    assert found.nearest is not None
    assert set(found.missing) == found.nearest.features - features
    assert len(found.missing) == min(len(one.features - features) for one in here)


def index(published: list[Published]) -> client.Manifest:
    rows = [indexes.IndexEntry(image=one, media_type=client.IMAGES[0], size=1) for one in published]
    content = indexes.index(rows)
    return client.Manifest(digest=client.digest_of(content), media_type=client.INDEX, content=content)


@given(images(), feature_sets, st.integers())
def test_an_index_leads_to_the_same_choice_in_whatever_order_a_registry_sends_it(
    published: list[Published], features: frozenset[str], seed: int
) -> None:
    sent = index(published).json()
    random.Random(seed).shuffle(sent["manifests"])
    content = json.dumps(sent).encode()
    read = indexes.read_index(client.Manifest(digest="", media_type=client.INDEX, content=content))
    assert set(read) == set(published)
    assert choose.choose(read, platform="linux/amd64", features=features) == choose.choose(
        published, platform="linux/amd64", features=features
    )


@given(images(), feature_sets)
def test_the_first_of_the_fastest_that_fit_in_an_index_is_the_choice(
    published: list[Published], features: frozenset[str]
) -> None:
    """By that pull.sh chooses, which can neither compare releases nor times; plain docker takes the first."""
    rows = index(published).json()["manifests"]
    speeds = {row["digest"]: row["annotations"]["io.tfbuild.speed"] for row in rows}
    here = [one for one in indexes.read_index(index(published)) if one.platform == "linux/amd64"]
    fitting = [one for one in here if one.features <= features]
    best = choose.choose(published, platform="linux/amd64", features=features).best
    assert max(fitting, key=lambda one: speeds[one.digest], default=None) == best
    slowest = [one for one in here if speeds[one.digest] == min(speeds[other.digest] for other in here)]
    assert here[:1] == sorted(slowest, key=choose.rank)[-1:]


def test_what_an_index_says_is_read_back_whole() -> None:
    rows = [indexes.IndexEntry(image=one, media_type=client.IMAGES[0], size=7) for one in SHELF_OF_DIGESTS]
    sent = index(SHELF_OF_DIGESTS)
    assert set(indexes._rows(sent)) == {row.image.digest for row in rows}
    # One that says other things than this tfbuild would is read from its image again.
    other = sent.json()
    other["manifests"][0]["annotations"]["io.tfbuild.cpuinfo"] = "sse"
    told = client.Manifest(digest="", media_type=client.INDEX, content=json.dumps(other).encode())
    assert len(indexes._rows(told)) == len(rows) - 1


times = st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1))
zones = st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours)))


@given(times, times, zones, zones)
def test_times_are_compared_as_times(first: datetime, second: datetime, one: timezone, other: timezone) -> None:
    first, second = first.replace(tzinfo=UTC), second.replace(tzinfo=UTC)
    texts = first.astimezone(one).isoformat(), second.astimezone(other).isoformat()
    assert [choose.moment(text) for text in texts] == [first, second]
    ranked = [choose.rank(published("avx", created=text)) for text in texts]
    if first != second:
        assert (ranked[0] < ranked[1]) == (first < second)


@pytest.mark.parametrize("created", ["", "yesterday", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_is_none_is_the_oldest(created: str) -> None:
    assert choose.moment(created) is None
    assert choose.rank(published("avx", created=created)) < choose.rank(
        published("avx", created="1970-01-01T00:00:00Z")
    )


def published(name: str, release: str = "2.20.0", created: str = "2026-01-01T00:00:00Z") -> Published:
    found = isa.resolve(name, arch="x86_64")
    return Published(
        id=f"{release}-mkl-py3.11-{name}",
        digest=f"sha256:{name}{release}{created}",
        release=release,
        target="mkl",
        python="3.11",
        platform="linux/amd64",
        instruction_set=found.name,
        features=frozenset(found.features),
        created=created,
    )


SHELF_OF_DIGESTS = [
    Published(
        id=f"image-{number}", digest=f"sha256:{number:064}", release="2.20.0", target="mkl", python="3.11",
        platform="linux/amd64", instruction_set="avx", features=frozenset(("avx",)), created="2026-01-01T00:00:00Z",
    )
    for number in range(3)
]  # fmt: skip
SHELF = [published(name) for name in ("x86-64-v4", "avx", "x86-64-v2", "x86-64-v3")]


def chosen(recorded: str, *more: Published) -> choose.Choice:
    host = cpu.parse(machine(recorded).cpuinfo())
    return choose.choose([*SHELF, *more], platform="linux/amd64", features=frozenset(isa.of_cpu(host).features))


def test_recorded_machines_get_the_largest_set_that_they_can_run() -> None:
    assert [chosen(name).best for name in ("rocky9-zen5", "rhel7-haswell", "scientificfermi6-bulldozer")] == [
        SHELF[0], SHELF[3], SHELF[1]
    ]  # fmt: skip


def test_every_image_that_is_passed_over_has_its_reason() -> None:
    newer = published("x86-64-v3", release="2.21.0", created="2026-03-01T00:00:00Z")
    found = chosen("rhel7-haswell", newer)
    assert found.best == newer
    reasons = {one.id: one.reason for one in found.passed_over}
    assert reasons["2.20.0-mkl-py3.11-x86-64-v4"].startswith("this CPU lacks avx512bw")
    assert reasons["2.20.0-mkl-py3.11-x86-64-v3"] == "2.21.0 is newer"
    assert reasons["2.20.0-mkl-py3.11-avx"] == "x86-64-v3 uses more of this CPU than avx"


def test_the_largest_set_goes_before_the_newest_release_and_the_newer_one_says_how_it_is_asked_for() -> None:
    newer = published("avx", release="2.21.0")
    found = chosen("rhel7-haswell", newer)
    assert found.best == SHELF[3]
    reasons = {one.id: one.reason for one in found.passed_over}
    assert reasons[newer.id] == ("x86-64-v3 uses more of this CPU than avx; --release 2.21.0 chooses among its own")


def test_between_equal_sets_of_a_release_the_newer_python_is_taken_whenever_each_was_built() -> None:
    old, new = (
        replace(published("x86-64-v3"), id=f"2.20.0-mkl-py{python}-x86-64-v3", python=python, created=created)
        for python, created in (("3.9", "2026-03-01T00:00:00Z"), ("3.13", "2026-02-01T00:00:00Z"))
    )
    found = choose.choose([old, new], platform="linux/amd64", features=old.features)
    assert found.best == new
    assert [one.reason for one in found.passed_over] == ["Python 3.13 is newer; --python 3.9 chooses among such images"]


def test_of_one_release_the_newest_build_is_taken() -> None:
    again = published("x86-64-v3", created="2026-02-01T00:00:00Z")
    found = chosen("rhel7-haswell", again)
    assert found.best == again
    assert "an older build" in {one.reason for one in found.passed_over}


def test_a_release_means_all_of_its_patches_and_no_other() -> None:
    shelf = [published("avx", release=release) for release in ("2.2.0", "2.20.0", "2.20.1", "2.21.0")]
    found = choose.matching(shelf, release="2.20", target="mkl", python="")
    assert [one.release for one in found] == ["2.20.0", "2.20.1"]
    assert choose.matching(shelf, release="2.20.1", target="mkl", python="3.12") == []
    assert choose.matching(shelf, release="", target="cpu", python="") == []


def test_the_telling_features_are_known() -> None:
    for row in facts.load("vectors", choose.VectorTable).vector:
        assert set(row.features) <= {feature.name for feature in facts.features(row.arch)}
