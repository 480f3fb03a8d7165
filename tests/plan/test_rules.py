"""What a refusal says: the reason, and what to type instead."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.plan.test_selection import ARM, HOST, chosen
from tests.rows import each
from tfbuild import facts
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import releases
from tfbuild.plan import Request, rules, select, source


def refused(error: type[TfbuildError], **options: Any) -> tuple[str, str]:
    with pytest.raises(error) as caught:
        chosen(**{"release": "2.14.1", "target": "cpu", "cpu": "x86-64-v3", **options})
    return caught.value.reason, caught.value.hint


def test_this_machine_is_the_platform_unless_nobody_builds_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules.choose_platform(Request(platform="linux/x86_64")) == "linux/amd64"
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "AARCH64")
    assert rules.choose_platform(Request()) == "linux/arm64"
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="no TensorFlow image can be built for a 'riscv64' CPU") as caught:
        rules.choose_platform(Request())
    assert caught.value.hint == "name one: --platform linux/amd64"


@each("flag", ["a;x", "--a;x", "--a b", "--a$(id)=1", "--", "--\N{CYRILLIC SMALL LETTER A}=1"])
def test_what_cannot_be_a_flag_of_bazel_is_refused(flag: str) -> None:
    assert "Bazel flag" in refused(UsageError, bazel_flag=(flag,))[0]


SOME = "with the features that it should have"


@each(
    "options, cpu",
    [
        ({"bazel_flag": ("-march=native",)}, "host"),
        ({"bazel_flag": ("--copt=-march=haswell",)}, "haswell"),
        ({"bazel_flag": ("--cxxopt='-mcpu=skylake'",)}, "skylake"),
        ({"bazel_flag": ("--copt", "-march=native")}, "host"),
        ({"bazel_flag": ("--per_file_copt=//x/.*@-O3,-march=native",)}, "host"),
        ({"bazel_flag": ("--config=native_arch_linux",)}, "host"),
        ({"bazel_flag": ("--config", "native_arch_linux")}, "host"),
        ({"config": ("native_arch_linux",)}, "host"),
        ({"config": ("v2,avx2_linux",), "cpu": "x86-64-v2"}, SOME),
        *(({"config": (name,), "cpu": "x86-64-v2"}, SOME) for name in ("avx_linux", "release_cpu_linux")),
        ({"config": ("release_cpu_linux_clang_local",), "cpu": "x86-64-v2"}, SOME),
        ({"configure": ("CC_OPT_FLAGS=-O3 -march=native",)}, "host"),
        ({"bazel_flag": ("--copt=-mavx512f",)}, SOME),
        ({"bazel_flag": ("--copt=-march=armv9-a",)}, SOME),
        ({"bazel_flag": ("--conlyopt=-mno-sse4",)}, SOME),
        *(({"bazel_flag": (f"--copt={flag}",)}, SOME) for flag in ("-mavx10.1", "-mapxf", "-msse4a", "-m32")),
        ({"bazel_flag": ("--action_env=CC_OPT_FLAGS=-O3 -march=native",)}, "host"),
        ({"bazel_flag": ("--repo_env", "BAZEL_CXXOPTS=-std=c++17:-march=haswell")}, "haswell"),
    ],
)
def test_what_compiles_for_another_cpu_than_the_label_says_is_refused(options: dict[str, Any], cpu: str) -> None:
    reason, hint = refused(UsageError, **{"cpu": "x86-64-v3", **options})
    assert reason.endswith("compiles for another CPU than the plan, the labels and the verification say")
    assert hint == f"--cpu {cpu}"


@each(
    "flag",
    [
        "--host_copt=-march=native", "--copt=-mtune=haswell", "--copt=-mavx2", "--copt=-mno-avx512f",
        "--copt=-mcmodel=medium", "--config=avx2_linux", "--define=x=-march=native", "--repo_env=AR=/opt/x-march=a/ar",
    ],
)  # fmt: skip
def test_what_leaves_the_cpu_as_it_is_is_taken(flag: str) -> None:
    assert chosen(cpu="x86-64-v3", bazel_flag=(flag,)).bazel_flags[-1] == flag


@each("base", ["debian:12@sha256:PWN", "debian:", "@", "debian::12", "a//b", "a:5000/b:1:2", "Debian:12", "a/B", "a-",
               "debian@sha256:" + 64 * "A", "debian@sha512:" + 64 * "a", "debian@SHA256:" + 64 * "a"])  # fmt: skip
def test_what_cannot_be_an_image_s_name_is_refused(base: str) -> None:
    assert refused(UsageError, base=base)[0] == f"{base!r} is not an image's name"


@each("base", ["debian", "h:5000/a/b:1.2-x@sha256:" + 64 * "a", "Registry.local/team/x:V1", "sha256:" + 64 * "a"])
def test_an_image_s_name_is_taken(base: str) -> None:
    assert chosen(base=base, python="3.11")


def test_a_word_for_another_runtime_of_onednn_is_refused() -> None:
    """The plan and the labels would say another one than Bazel takes."""
    options: dict[str, Any] = {"target": "mkl", "cpu": "x86-64-v3"}
    for words in ({"config": ("mkl",)}, {"bazel_flag": ("--config=mkl",)}):
        assert refused(UsageError, release="2.14.1", **options, **words) == (
            "--config mkl runs oneDNN on openmp, but the plan has threadpool", "--threading openmp",
        )  # fmt: skip
        reason, _ = refused(Unsupported, release="2.16.1", **options, **words)
        assert "has no x86_64 build with oneDNN on openmp: XLA's oneDNN code" in reason
    own = {**options, "release": "2.14.1"}
    assert chosen(**own, threading="openmp", config=("mkl",)).configs == ("mkl",)
    assert chosen(**own, config=("mkl_threadpool",)).configs == ("mkl_threadpool",)
    assert chosen(**own, threading="openmp", config=("monolithic",)).configs == ("mkl", "monolithic")
    assert refused(UsageError, **own, threading="openmp", config=("mkl_threadpool",))[1] == "--threading threadpool"


def test_the_host_of_another_architecture_is_told_both_ways_out() -> None:
    with pytest.raises(Unsupported) as caught:
        rules.requested_set(Request(cpu="host"), "x86_64", ARM)
    assert caught.value.hint == "name a CPU of linux/amd64: --cpu x86-64-v4; or --platform linux/arm64"
    meant = (Request(cpu="host"), Request(cpuinfo="x"), Request())
    assert len({rules.requested_set(request, "x86_64", HOST) for request in meant}) == 1


@each("given, unused", [({}, False), ({"cpu": "host,avx2"}, False), ({"cpu": "x86-64-v3"}, True)])
def test_a_recording_that_a_named_cpu_makes_useless_is_noted(given: dict[str, Any], unused: bool) -> None:
    notes = chosen(release="2.20.0", cpuinfo="web1.txt", **given).notes
    assert any(note.startswith("--cpuinfo does not apply") for note in notes) == unused


@each("wheel", ["", "official"])
@each("base", ["auto", "bootstrap"])
@each("target, platform, cpu", [("cpu", "linux/amd64", "avx"), ("cuda", "linux/arm64", "armv8.2-a")])
def test_a_release_and_a_python_that_a_refusal_offers_are_taken(
    target: str, platform: str, cpu: str, base: str, wheel: str
) -> None:
    cpu = "" if wheel else cpu
    given: dict[str, Any] = {"target": target, "platform": platform, "base": base, "wheel": wheel, "cpu": cpu}
    pythons, offered = ("3.10", "3.12", "3.13", "3.14"), 0
    for release, python in product([*(row.version for row in releases.releases()), "2.99.0"], pythons):
        try:
            chosen(**given, release=release, python=python)
        except TfbuildError as refusal:
            offers: list[dict[str, Any]] = [
                {"release": name, "python": python} | ({"wheel": "official", "cpu": ""} if official else {})
                for official, name in re.findall(r"(--wheel official )?--release ([\w.]+)", refusal.hint)
                if not (official and (target, platform) == ("cuda", "linux/arm64"))  # no such wheels
            ]
            for names in re.findall(r"--python ([\d.]+(?: or [\d.]+)*)", refusal.hint):
                offers += [{"release": release, "python": name} for name in names.split(" or ")]
            for offer in offers:
                assert chosen(**given | offer), (release, python)
            offered += len(offers)
    # TensorFlow has published no wheels for CUDA on aarch64, with whatever Python.
    assert (offered == 0) is (wheel == "official" and target == "cuda")


def test_a_base_without_a_debian_of_its_python_is_found_unless_it_is_to_be_bootstrapped() -> None:
    assert rules.first_base("2.17.1", ("3.12",))[2].python == "3.12"
    with pytest.raises(Unsupported, match=r"no base image with Python 3\.12 can be made"):
        rules.first_base("2.17.1", ("3.12",), bootstrap=True)


@each(
    "release, named, compilers, pythons, expected",
    [
        ("2.21.0", "", {"clang-18"}, {"3.13"}, ("clang-18", "3.13")),
        ("2.21.0", "", {"clang-16", "clang-14", "gcc-12"}, {"3.11", "3.9"}, ("clang-16", "3.11")),
        # The nearest that others have compiled it with.
        ("2.16.2", "", {"clang-16", "gcc-12"}, {"3.11"}, ("gcc-12", "3.11")),
        # GCC 12 is known to fail: the compiler of a container is asked for, for a Python that is there.
        ("2.21.0", "", {"gcc-12"}, {"3.11"}, ("clang-18", "3.11")),
        ("2.21.0", "", {"gcc-12"}, {"3.9"}, ("clang-18", "3.13")),
        # No base has them.
        ("2.21.0", "", {"clang-20", "gcc-15"}, {"3.13"}, ("clang-20", "3.13")),
        ("2.21.0", "", set(), set(), ("clang-18", "3.13")),
        ("2.21.0", "clang-19", {"clang-16"}, {"3.12"}, ("clang-19", "3.12")),
    ],
)
def test_a_machine_chooses_what_it_has_and_says_so(
    release: str, named: str, compilers: set[str], pythons: set[str], expected: tuple[str, str]
) -> None:
    request = Request(target="cpu", release=release, cpu="x86-64-v3", platform="linux/amd64", compiler=named)
    usual = select(request, None)
    build = rules.choose_here(request, compilers, pythons, lambda asked: select(asked, None, ("bookworm", "2.36")))
    assert (build.compiler, build.python) == expected
    says = f"this machine chose {build.compiler} and Python {build.python}; a container would have "
    same = (usual.compiler, usual.python) == expected
    assert any(note.startswith(says) for note in build.notes) != same


# --- amendments -------------------------------------------------------------------------------------------------------


@each("marker", ["WORKSPACE", "WORKSPACE.bazel", "MODULE.bazel"])
def test_any_marker_makes_a_folder_a_repository_which_is_overridden_once(marker: str, tmp_path: Path) -> None:
    (tmp_path / marker).write_text("")
    (tmp_path / "BUILD").write_text("")
    once = f"a_b={tmp_path}"
    build = chosen(release="2.14.1", target="cpu", cpu="x86-64-v3", override_repository=(once,))
    (override,) = build.overrides
    assert build.to_json()["overrides"] == [{"name": "a_b", "path": str(tmp_path), "sha256": override.sha256}]
    reason, _ = refused(UsageError, override_repository=(once, once))
    assert reason == "--override-repository names a repository twice"


def test_a_library_is_known_or_names_its_packages() -> None:
    known = source.system_library("curl", "2.14.1")
    assert (known.name, known.packages) == ("curl", ("libcurl4-openssl-dev",))
    assert source.system_library("zlib=zlib1g-dev,zlib1g", "2.14.1").packages == ("zlib1g-dev", "zlib1g")
    assert source.system_library("curl=other-dev", "2.14.1").packages == ("other-dev",), "the user knows better"
    for text in ("zlib", "zlib=", "zlib=a1,,b1", "zlib=-o=Dpkg::x"):
        with pytest.raises(UsageError, match="its Debian packages are not known") as caught:
            source.system_library(text, "2.14.1")
        assert caught.value.hint == "one of: curl, hwloc; or name them: --system-lib NAME=PACKAGE,PACKAGE"
    for text, release, hint in (
        ("lmdb=liblmdb-dev", "2.13.0", "releases before 2.13 can"),
        ("no-such=a1", "2.14.1", "one of: absl_py, astor_archive, "),
    ):
        with pytest.raises(UsageError, match=f"TensorFlow {release} cannot take .* from the system") as caught:
            source.system_library(text, release)
        assert caught.value.hint.startswith(hint)


def test_the_user_s_answers_come_last() -> None:
    def answers(**options: Any) -> dict[str, str]:
        return dict(chosen(release="2.14.1", target="cpu", cpu="x86-64-v3", **options).configure_env)

    own = answers()
    assert answers(configure=("TF_NEED_ROCM=3",)) == own | {"TF_NEED_ROCM": "3"}
    assert answers(system_lib=("hwloc", "curl")) == own | {"TF_SYSTEM_LIBS": "curl,hwloc"}
    assert answers(system_lib=("curl",), configure=("TF_SYSTEM_LIBS=mine",))["TF_SYSTEM_LIBS"] == "mine"


# --- small values -----------------------------------------------------------------------------------------------------


def test_a_plan_s_json_has_null_where_there_is_nothing() -> None:
    compiled = chosen(release="2.20.0", target="mkl", cpu="x86-64-v3")
    archive = replace(compiled, source=source.Source(kind="archive", path=Path("a.tar"), sha256="d")).to_json()
    assert archive["source"] == {"kind": "archive", "tag": None, "commit": None, "path": "a.tar", "sha256": "d"}
    assert archive["features"] == sorted(facts.levels("x86_64")[2].features)
    assert (archive["id"], archive["level"]) == ("2.20.0-mkl-py3.13-x86-64-v3", "x86-64-v3")
    document = chosen(wheel="official", release="2.21.0").to_json()
    assert [document[name] for name in ("bazel", "bazel_target", "source")] == [None] * 3
    assert document["wheel"] == {
        "kind": "official", "requirement": "tensorflow-cpu==2.21.0",
        "sha256": "2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c",
        "constraints": list(releases.constraints("2.21.0")),
    }  # fmt: skip
    assert "request" not in document


def test_a_release_whose_wheels_lack_a_python_is_not_offered_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 2.11.1 did for Python 3.7: its source takes that Python, and no wheel of it."""
    pythons = releases.official_pythons
    monkeypatch.setattr(releases, "official_pythons", lambda name, arch: tuple(
        python for python in pythons(name, arch) if (python, name[:4]) != ("3.13", "2.21")
    ))  # fmt: skip
    _, hint = refused(Unsupported, release="2.16.1", python="3.13", wheel="official", cpu="")
    (offered,) = re.findall(r"--release (\S+)", hint)
    assert not offered.startswith("2.21")
    assert chosen(target="cpu", release=offered, python="3.13", wheel="official").python == "3.13"
