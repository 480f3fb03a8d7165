"""The facts of all releases: every row, and what follows from rows.

test_trees.py compares them with real source trees.
"""

from datetime import date
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from tests.facts import newest
from tests.rows import each
from tfbuild.cpu import compilers, isa
from tfbuild.errors import Unsupported
from tfbuild.facts import releases, toolchains
from tfbuild.facts.release_table import Config, RangeRow, ReleaseTable, Sourced, spelled, table
from tfbuild.plan import BUILD_PYTHON, Request, configuration, cuda, rules, select, wheel

ALL = tuple(row.version for row in releases.releases())
# Wheels that PyPI has of releases to come: their facts are known before the releases.
EARLY = ("2.22.0rc0", "2.23.0.dev20261026")


ROWS = [row for name in ReleaseTable.__struct_fields__ for row in getattr(table(), name) if isinstance(row, RangeRow)]


# --- every row -------------------------------------------------------------------------------------------------------


@each("row", ROWS)
def test_every_row_has_a_source_and_holds_for_a_release(row: RangeRow) -> None:
    assert not isinstance(row, Sourced) or len(row.source) > 3
    older = bool(row.before) and Version(row.before) <= Version(ALL[0])
    assert older or any(row.covers(release) for release in (*ALL, *EARLY))


@each("release", ALL)
def test_compilers(release: str) -> None:
    installable = {name for row in toolchains.table().distribution for name in toolchains.compilers(row)}
    for known in releases.compilers(release):
        assert known.name not in installable or "-".join(map(str, compilers.parse_compiler(known.name))) == known.name
    assert releases.wheel_compiler(release) in ("", "gcc-9", releases.compilers(release)[0].name)


@each("release", ALL)
def test_a_wheel_has_a_target_and_from_2_16_on_options_that_name_it(release: str) -> None:
    row = releases.wheel(release)
    assert row.target.endswith(":wheel" if Version(release) >= Version("2.16") else ":build_pip_package")
    assert bool(row.cpu) == bool(row.gpu) == row.target.endswith(":wheel")


@each(
    "release, arch, cuda, wanted, recorded",
    [
        ("2.14.1", "x86_64", False, "", "2.14.1"),
        ("2.14.1", "x86_64", True, "2.14.1 with CUDA", "2.14.1"),
        ("2.14.1", "aarch64", False, "2.14.1 for arm64", "2.14.1"),
        ("2.12.0", "x86_64", False, "2.12.0", "2.14.1"),
        ("2.21.0", "x86_64", False, "2.21.0", "2.22.0.dev"),
        ("2.22.0", "x86_64", False, "2.22.0", "2.22.0.dev"),
    ],
)
def test_what_a_compile_takes_is_a_record_or_a_range_with_its_basis(
    release: str, arch: str, cuda: bool, wanted: str, recorded: str
) -> None:
    cost = releases.compile_cost(release, arch, cuda=cuda)
    assert (cost.wanted, cost.recorded) == (wanted, recorded)
    least, most = cost.hours
    assert (least < most) is bool(wanted)
    assert not wanted or least <= cost.cpu_hours <= most, "the machine of the record is one of those it is between"
    begin = f"{least:.0f} to {most:.0f} hours" if wanted else f"{cost.cpu_hours} hours"
    assert cost.described.startswith(f"{begin} of one processor")
    assert ("tfbuild has not compiled" in cost.described) is bool(wanted)


# --- configs ---------------------------------------------------------------------------------------------------------


def test_a_config_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "mkl_aarch64_threadpool"
    rows = [msgspec.structs.replace(row, before="2.21") if row.name == gone else row for row in table().config]
    monkeypatch.setattr(releases, "table", lambda: msgspec.structs.replace(table(), config=tuple(rows)))
    with pytest.raises(Unsupported) as refusal:
        configuration.configs("2.21.0", "mkl", "aarch64", "threadpool")
    assert "--release 2.20.0" in refusal.value.hint


# --- configure -------------------------------------------------------------------------------------------------------


def configured(release: str, target: str, compiler: str) -> tuple[tuple[str, str], ...]:
    gpus = cuda.parse_capabilities("9.0") if target == "cuda" else ()
    versions = ("12.3", "8.9") if gpus else ("", "")
    return configuration.configure_env(release, target, compiler, gpus, *versions)


@each("compiler", ["gcc-12", "clang-18"])
@each("target", ["cpu", "mkl", "cuda"])
@each("release", ALL)
def test_configure_is_answered_once_and_for_the_target(release: str, target: str, compiler: str) -> None:
    answers = dict(configured(release, target, compiler))
    assert len(answers) == len(configured(release, target, compiler))
    assert "TF_DOWNLOAD_CLANG" not in answers or Version(release) < Version("2.14"), "nothing asks for it since"
    local = {name for name in answers if name.startswith("LOCAL_")}
    assert bool(local) == (target == "cuda" and releases.cuda(release).hermetic)
    assert answers["TF_NEED_CUDA"] == ("1" if target == "cuda" else "0")
    assert not any("{" in value for value in answers.values())
    assert "native" not in answers["CC_OPT_FLAGS"]
    assert answers["PYTHON_BIN_PATH"] == BUILD_PYTHON
    if Version(release) >= Version("2.14") and target != "cuda":
        assert answers["TF_NEED_CLANG"] == str(int(compiler == "clang-18"))
        assert compiler == "gcc-12" or answers["CLANG_COMPILER_PATH"] == "/usr/bin/clang-18"


# --- the official wheels ---------------------------------------------------------------------------------------------


@each("release", ALL)
def test_official_wheels(release: str) -> None:
    row, pythons = releases.official_wheel(release, "x86_64"), releases.official_pythons(release, "x86_64")
    compiled = releases.row(table().onednn, release, "x86_64").compiled
    assert compiled
    assert set(pythons) <= set(releases.pythons(release))
    assert [*pythons] == sorted(pythons, key=Version)
    expected = "f16c" if Version(release) >= Version("2.21") else "avx"
    assert isa.instruction_set(row.features, "x86_64").name == expected
    for target in ("cpu", "mkl", "cuda"):
        assert Requirement(wheel.official_requirement(release, target, "x86_64")).specifier.contains(release)


def test_official_wheels_for_aarch64_and_the_newest_for_a_python() -> None:
    row = releases.official_wheel("2.21.0", "aarch64")
    assert isa.instruction_set(row.features, "aarch64").name == "armv8-a"
    assert wheel.official_requirement("2.21.0", "mkl", "aarch64") == "tensorflow==2.21.0"
    with pytest.raises(Unsupported, match="CUDA"):
        wheel.official_requirement("2.21.0", "cuda", "aarch64")
    assert wheel.newest_official("x86_64", "3.13") == newest.RELEASE
    assert wheel.newest_official("x86_64", "3.14") == newest.RELEASE


def test_the_compiler_of_a_wheel_that_was_not_looked_at_is_unknown() -> None:
    known = {("2.14.0", "linux/amd64"): "clang-16", ("2.14.1", "linux/amd64"): "", ("2.14.0", "linux/arm64"): ""}
    for (release, platform), compiler in known.items():
        build = select(Request(wheel="official", release=release, platform=platform), None)
        assert build.compiler == compiler


@each("release", ALL)
def test_constraints_are_requirements_and_hermetic_builds_need_none(release: str) -> None:
    for step in ("run", "build"):
        for line in releases.constraints(release, step=step):
            assert Requirement(line).specifier
    assert bool(releases.constraints(release, step="build")) == (Version(release) < Version("2.14"))
    assert ("numpy<2" in releases.constraints(release)) == (Version(release) < Version("2.18"))
    assert ("setuptools<82" in releases.constraints(release)) == (Version(release) < Version("2.21"))


# --- names of releases -----------------------------------------------------------------------------------------------


def test_a_release_is_found_as_people_write_it() -> None:
    assert [rules.find_release(text) for text in ("2.21", "v2.21.0", " 2.16 ")] == ["2.21.0", "2.21.0", "2.16.2"]


@given(st.text(max_size=20) | st.from_regex(r"v?\d{1,3}(\.\d{1,3}){0,3}", fullmatch=True))
def test_any_text_gives_a_release_or_unknown_release(text: str) -> None:
    try:
        release = rules.find_release(text)
    except Unsupported:
        return
    assert release in ALL


# As pip and TensorFlow's tags spell it, the release that it means, and what TensorFlow prints.
@pytest.mark.parametrize(
    ("text", "release", "printed"),
    [
        ("2.99", "2.99.0", "2.99.0"),
        ("v2.99.1", "2.99.1", "2.99.1"),
        ("v2.99.0-rc0", "2.99.0rc0", "2.99.0-rc0"),
        ("2.99.0.dev20261026", "2.99.0.dev20261026", "2.99.0-dev20261026"),
        ("2.14.0rc1", "2.14.0rc1", "2.14.0-rc1"),
    ],
)
def test_a_newer_release_a_candidate_and_a_nightly_are_found_where_they_are_allowed(
    text: str, release: str, printed: str
) -> None:
    assert rules.find_release(text, newer=True) == release
    assert (releases.known(release), spelled(release)) == (False, printed)
    with pytest.raises(Unsupported) as refusal:
        rules.find_release(text)
    final = "is not a final" if "rc" in text or "dev" in text else "is newer than this tfbuild"
    assert refusal.value.reason.startswith(f"TensorFlow {release} {final}")
    assert refusal.value.hint == "--source FOLDER builds its tree, --wheel official takes its wheel"


def test_a_candidate_has_the_facts_of_its_release_and_a_newer_one_those_of_the_newest() -> None:
    for release, own in (("2.14.0rc1", "2.14.0"), ("2.99.0rc0", newest.RELEASE), ("2.99.0", newest.RELEASE)):
        assert releases.nearest(release) == own
        assert releases.bazel(release) == releases.bazel(own)
        assert releases.guard(release) == releases.guard(own)


def test_nightlies_are_in_projects_of_their_own() -> None:
    day = "2.22.0.dev20260905"
    names = {target: wheel.official_requirement(day, target, "x86_64") for target in ("mkl", "cuda")}
    assert names == {"mkl": f"tf-nightly-cpu=={day}", "cuda": f"tf-nightly[and-cuda]=={day}"}
    day = "2.23.0.dev20261026"
    assert wheel.official_requirement(day, "mkl", "x86_64") == f"tf-nightly=={day}"
    assert wheel.official_requirement(day, "mkl", "aarch64") == f"tf-nightly=={day}"


def test_a_refusal_names_the_nearest_release_that_has_the_fact() -> None:
    rows = (Config(since="2.13", before="2.14", name="x"), Config(since="2.14.1", before="2.15", name="x"))
    for release, key, other in (("2.12.1", "x", "2.13.0"), (newest.RELEASE, "x", "2.14.1"), (newest.RELEASE, "y", "")):
        with pytest.raises(Unsupported, match="tfbuild has no data on") as refusal:
            releases.row(rows, release, key)
        assert refusal.value.hint == (f"--release {other} has it" if other else "")
    with pytest.raises(Unsupported):
        releases.pythons("2.14.9")


def test_each_release_has_its_day_and_patches_come_in_order() -> None:
    days = [(row.version.rpartition(".")[0], date.fromisoformat(row.date)) for row in releases.releases()]
    assert [pair for pair in pairwise(days) if pair[0][0] == pair[1][0] and pair[0][1] > pair[1][1]] == []
