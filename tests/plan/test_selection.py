"""Plans: from a request to what is chosen, and to the class and the exit code of a refusal."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.machines import machine
from tests.facts import newest
from tests.rows import each
from tfbuild import cpu, facts, plan
from tfbuild.cli import planning
from tfbuild.context import dockerfile
from tfbuild.cpu import recordings
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import cpuinfo_names, targets
from tfbuild.plan import Build, Request, rules

HOST = cpu.parse(machine("rocky9-zen5").cpuinfo())
OLD = cpu.parse(machine("scientificfermi6-bulldozer").cpuinfo())
ARM = cpu.parse(machine("rhel8-neoverse_v1").cpuinfo())
LINUX = Request(platform="linux/amd64")
NEWEST = newest.RELEASE
PYWRAP = "--repo_env=USE_PYWRAP_RULES=1"


def chosen(host: cpu.Cpu | None = HOST, **options: Any) -> Build:
    return plan.select(replace(LINUX, **options), host)


# --- what is chosen ---------------------------------------------------------------------------------------------------

V3, ARM_82 = {"cpu": "x86-64-v3"}, {"platform": "linux/arm64", "cpu": "armv8.2-a"}
OFFICIAL = {"wheel": "official"}
# A request; and by a field of its plan what that is, what it begins with ("..."), or what is in it ("+") or not ("-").
ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**OFFICIAL, "release": "2.21.0"}, {
        "id": "2.21.0-mkl-py3.11-f16c", "copts": ("--copt=-mavx", "--copt=-mf16c"), "bazel": "", "configs": (),
        "threading": "threadpool", "wheel.requirement": "tensorflow-cpu==2.21.0", "-instruction_set.features": "avx2",
        "notes": (), "toolchain": None, "wheel.constraints": (), "base_image": "python:3.11-slim-bookworm",
    }),
    ({**OFFICIAL, "release": "2.21.0", "cpu": "haswell"}, {
        "+notes": "--cpu haswell does not apply: the official wheel is compiled for f16c, whatever the CPU; "
        "a build from source would add AVX2 FMA",
    }),
    ({**OFFICIAL, "release": "2.21.0", "cpu": "f16c"}, {
        "+notes": "--cpu f16c does not apply: the official wheel is compiled for f16c, whatever the CPU",
    }),
    ({**OFFICIAL, "release": "2.14.0"}, {"id": "2.14.0-mkl-py3.11-avx", "+wheel.constraints": "numpy<2"}),
    ({"release": "2.21.0", "cpu": "core2"}, {"id": "2.21.0-mkl-py3.13-ssse3", "+wheel.constraints": "numpy<2.4"}),
    ({**OFFICIAL, "python": "3.13"}, {"release": NEWEST, "base_image": "python:3.13-slim-trixie"}),
    ({**OFFICIAL, "release": "2.15"}, {"release": "2.15.1", "notes": ()}),
    ({**OFFICIAL, "release": "2.21.0", "python": "3.12"},
     {"python": "3.12", "notes": (), "base_image": "python:3.12-slim-bookworm"}),
    ({**OFFICIAL, "target": "cuda"}, {"wheel.requirement": f"tensorflow[and-cuda]=={NEWEST}"}),
    ({**OFFICIAL, "target": "cuda", "release": "2.21.0"}, {"cuda": "12.5.1", "cudnn": "9.3.0"}),
    ({**OFFICIAL, **ARM_82, "cpu": "", "release": "2.18.0"}, {
        "instruction_set.name": "armv8-a", "wheel.requirement": "tensorflow==2.18.0", "-wheel.constraints": "numpy<2.4",
        "as_released": ("2024-10-25", "6550e4bd80223cdb8be6c3afd1f81e86a4d433c3"),
    }),
    ({**OFFICIAL, "base": "ours:1"}, {
        "base_image": "ours:1", "base_distribution": "",
        "notes": ("not certain: whether ours:1 has Python 3.11; --python names another",),
    }),
    ({**OFFICIAL, "base": "ours:1", "python": "3.12"}, {"notes": ()}),
    ({**OFFICIAL, "base": "debian:trixie"}, {"python": "3.13", "notes": ()}),
    ({**OFFICIAL, "base": "bootstrap"}, {"base_image": "python:3.11-slim-bookworm", "base_distribution": "bookworm"}),
    ({**OFFICIAL, "release": "2.15.1", "with_headers": True}, {"id": "2.15.1-mkl-py3.11-avx-headers"}),
    ({"release": "2.20.0"}, {  # for the host
        "instruction_set.level": "x86-64-v4", "compiler": "clang-18", "configs": ("mkl_threadpool",), "bazel": "7.4.1",
        "bazel_target": "//tensorflow/tools/pip_package:wheel", "+configure_env": ("TF_NEED_CUDA", "0"),
    }),
    ({**V3, "threading": "openmp"}, {"configs": ("mkl",), "id": "2.15.1-mkl-py3.11-x86-64-v3-openmp"}),
    ({**V3, "release": "2.15.1"}, {
        "id": "2.15.1-mkl-py3.11-x86-64-v3", "source.commit": "63f5a65c7cd7b6241bede8d2e0082058566ea364",
    }),
    ({**V3, "release": "2.18.1"}, {"+notes": "the commit of v2.18.1 is not known, so the tag is not checked"}),
    ({**V3, "release": "2.13.1"}, {
        "source.kind": "git", "source.tag": "v2.13.1", "source.commit": "f841394b1b714c5cc5366536411cf146c8c570df",
        "as_released": ("2023-09-26", "f841394b1b714c5cc5366536411cf146c8c570df"),
    }),
    ({**V3, "release": "2.20.0", "threading": "threadpool", "compiler": "clang-18", "bazel": "7.4.1", "python": "3.13"},
     {"id": "2.20.0-mkl-py3.13-x86-64-v3"}),  # what the release has anyway
    ({"release": "2.20.0", "python": "3.13", "cpu": "avx"}, {"id": "2.20.0-mkl-py3.13-avx-source"}),  # as the wheel's
    ({"cpu": "x86-64-v4", "release": "2.20.0", "compiler": "clang-19", "prefer_vector_width": "256"}, {
        "id": "2.20.0-mkl-py3.13-x86-64-v4-clang-19-prefer256", "+copts": "--copt=-mprefer-vector-width=256",
    }),
    ({**V3, "release": "2.20.0", "bolt": True}, {
        "id": "2.20.0-mkl-py3.13-x86-64-v3-bolt", "+bazel_flags": "--linkopt=-Wl,--emit-relocs",
        "toolchain.bolt": "bolt-19",
    }),
    ({**V3, "release": "2.20.0"}, {"-bazel_flags": "--linkopt=-Wl,--emit-relocs", "toolchain.bolt": ""}),
    ({"cpu": "x86-64-v4", "release": "2.20.0"}, {"+copts": "--copt=-mprefer-vector-width=512"}),
    ({**ARM_82, "release": "2.20.0"}, {"configs": ("mkl_aarch64_threadpool",)}),
    ({"release": "2.15.1", "target": "cuda", "compiler": "clang-16"}, {
        "+configs": "cuda", "+configure_env": ("TF_NEED_CUDA", "1"),
    }),
    ({"release": "2.19.0", "compiler": "clang-16", **V3}, {
        "+notes": "not certain: nobody is known to have built TensorFlow 2.19.0 with clang-16",
    }),
    ({"release": "2.19.0", "bazel": "6.99.0", **V3}, {
        "+notes": "not certain: whether there is a Bazel 6.99.0 that builds TensorFlow 2.19.0, whose own is 6.5.0",
    }),
    # Pywrap rules, as the official builds ask for them, but for CUDA of 2.19.
    ({"release": "2.19.1", "target": "mkl", **V3}, {"+bazel_flags": PYWRAP}),
    ({"release": "2.19.1", "target": "cuda", **V3}, {"-bazel_flags": PYWRAP}),
    ({"release": "2.20.0", "target": "cuda", **ARM_82}, {"+bazel_flags": PYWRAP}),
    # cuda_clang of these trees asks for TensorRT, and wins over configure's answer (tensorflow issue 62689).
    *(({"release": release, "target": "cuda", **V3}, {f"{sign}bazel_flags": "--repo_env=TF_NEED_TENSORRT=0"})
      for release, sign in (("2.14.1", "-"), ("2.15.1", "+"), ("2.17.1", "+"), ("2.18.0", "-"))),
    # A local compiler needs 2.21's toolchain for CUDA.
    *(({"release": release, "target": target, **cpu}, {
        f"{sign}bazel_flags": "--crosstool_top=@local_config_cuda//crosstool:toolchain",
    }) for release, target, cpu, sign in (
        ("2.21.0", "cuda", V3, "+"), ("2.21.0", "cuda", ARM_82, "+"), ("2.20.0", "cuda", V3, "-"),
        ("2.21.0", "mkl", V3, "-"),
    )),
    # Switching the other target off requests nothing.
    *(({"release": "2.20.0", "target": target, "bazel_flag": (flag,)}, {"+bazel_flags": flag}) for target, flag in (
        ("mkl", "--repo_env=TF_NEED_CUDA=0"), ("cuda", "--define=enable_mkl=false"),
        ("cuda", "--define=tensorflow_mkldnn_contraction_kernel=1"), ("mkl", "--copt=-I/usr/local/cuda/include"),
    )),
    # Nor do these.
    ({"release": "2.20.0", "target": "mkl", "config": ("cpu_cross",)}, {"+configs": "cpu_cross"}),
    *(({"release": "2.20.0", "target": target, "configure": (answer,)}, {"+configure_env": (answer[:-2], "x")})
      for target, answer in (("cpu", "MKL_ROOT=x"), ("cpu", "CUDA_CACHE_PATH=x"), ("mkl", "CPU_COUNT=x"))),
    *(({"target": target, **V3}, {"release": NEWEST}) for target in targets.names()),
]  # fmt: skip


def field(build: Build, name: str) -> Any:
    value: Any = build
    for part in name.split("."):
        value = getattr(value, part)
    return value


@each("options, expected", ROWS)
def test_a_request_becomes_a_plan(options: dict[str, Any], expected: dict[str, Any]) -> None:
    build = chosen(**options)
    for name, wanted in expected.items():
        if name[0] in "+-":
            assert (wanted in field(build, name[1:])) == (name[0] == "+"), name
        else:
            assert field(build, name) == wanted, name


def test_a_plan_that_does_not_take_the_newest_release_says_why() -> None:
    build = chosen(target="mkl", cpu="x86-64-v3", threading="openmp")
    assert build.notes[0].startswith(f"2.15.1 is taken: TensorFlow {NEWEST} has no x86_64 build with oneDNN on")
    assert not [note for note in chosen(target="mkl", cpu="x86-64-v3").notes if "is taken: " in note]


def test_a_wheel_of_a_newer_release_may_be_for_a_newer_python() -> None:
    build = chosen(wheel="official", release="2.99.0rc0", python="3.14", target="cpu")
    base = rules.base_for_wheel("3.14")
    assert (build.python, build.base_image, build.base_distribution) == ("3.14", base.image, base.bootstrap)
    assert f"expects it to be compiled like that of {NEWEST}, and takes what the index has" in build.notes[0]


@each(
    "cpu, compiler, release, lost",
    [
        ("sapphirerapids", "gcc-12", "2.15.1", {"avx512_fp16"}),
        ("sapphirerapids", "gcc-11", "2.14.1", {"avx512_fp16"}),
        ("graniterapids,exact", "gcc-12", "2.14.1", {"amx_fp16"}),
        ("x86-64-v3,rdseed", "clang-16", "2.14.1", {"rdseed"}),
    ],
)
def test_what_is_dropped_is_promised_nowhere(cpu: str, compiler: str, release: str, lost: set[str]) -> None:
    build = chosen(cpu=cpu, compiler=compiler, release=release)
    assert not lost & set(build.instruction_set.features)
    assert not set(cpuinfo_names(tuple(lost))) & set(entrypoint_needs(build))
    for name in lost:
        assert [note for note in build.notes if note.startswith(f"{name} is left out: ")]
    again = chosen(cpu=",".join(build.instruction_set.features), compiler=compiler, release=release)
    assert (again.id, again.copts, again.instruction_set) == (build.id, build.copts, build.instruction_set)
    assert [note for note in again.notes if "is left out" in note] == []


def entrypoint_needs(build: Build) -> list[str]:
    """The names that the entry point compares first: what it stops for."""
    script = dockerfile.files(build)["entrypoint.sh"]
    (line,) = (line for line in script.splitlines() if line.startswith("compare ") and not line.endswith("{"))
    return line.split()[1:]


@each("cpu", ["host", "graniterapids", "sierraforest", "x86-64-v2", "armv8.2-a", "neoverse-v2"])
def test_the_guard_and_detection_share_one_table_of_features(cpu: str) -> None:
    """What the entry point looks for in /proc/cpuinfo is read back by `invoke detect` as the plan's features."""
    arm = cpu.startswith(("arm", "neoverse"))
    build = chosen(cpu=cpu, platform="linux/arm64" if arm else "linux/amd64", release="2.20.0")
    unprinted = {name for name in build.instruction_set.features if not facts.feature(name).cpuinfo}
    held = set(recordings.canonical(entrypoint_needs(build), plan.PLATFORMS[build.platform]))
    assert held == set(build.instruction_set.features) - unprinted
    assert bool([note for note in build.notes if "cannot check for" in note]) == bool(unprinted)


# --- refusals: from a request to the class and the exit code ----------------------------------------------------------

BOTH: list[dict[str, Any]] = [
    *({"target": target} for target in ("mkl,cuda", "MKL, CUDA", "cuda mkl", "cpu+mkl+cuda")),
    *({"target": "mkl", "config": (config,)} for config in ("cuda", "cuda_clang", "v2,cuda", "CUDA")),
    *({"target": "cuda", "config": (config,)} for config in ("mkl", "mkl_threadpool")),
    *({"target": "mkl", "bazel_flag": (flag,)} for flag in (
        "--config=cuda", "--config cuda", "--@local_config_cuda//:enable_cuda", "--define=using_cuda=true",
        "--repo_env=TF_NEED_CUDA=1",
    )),
    {"target": "cpu", "config": ("mkl", "cuda")}, {"target": "mkl", "bazel_flag": ("--config", "cuda")},
    {"target": "cuda", "bazel_flag": ("--config=mkl",), "wheel": "official"},
    {"target": "mkl", "configure": ("TF_NEED_CUDA=1",)},
    {"target": "cuda", "bazel_flag": ("--define=build_with_mkl=true",)},
]  # fmt: skip
# The label would say what the build is not.
CONTRADICTIONS: list[dict[str, Any]] = [
    *({"target": "cpu", "bazel_flag": (flag,)} for flag in ("--config=cuda", "--config mkl", "--x=TF_NEED_CUDA=1")),
    *({"target": "cpu", "configure": (f"TF_NEED_CUDA={yes}",)} for yes in ("1", "yes", "True")),
    *({"target": "cuda", "configure": (f"TF_NEED_CUDA={no}",)} for no in ("0", "n", "False")),
    *({"target": "cpu", "config": (config,)} for config in ("cuda_clang", "mkl_threadpool")),
]  # fmt: skip
# What the hint has in it, which is what a person must type.
REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    *((options, 12, "choose --target ") for options in BOTH),
    *((options, 2, "") for options in CONTRADICTIONS),
    ({"target": ""}, 2, "cpu, mkl, cuda"),
    ({"release": "2.14.9", **OFFICIAL}, 12, "2.14.1"),
    ({"release": "2.21.0", "python": "3.9", **OFFICIAL}, 12, " or 3.11"),
    ({"release": "2.14.0", "python": "3.12", **OFFICIAL}, 12, "3.11"),
    ({"release": NEWEST, "python": "3.14", **OFFICIAL}, 12, "--wheel official --release"),
    ({"release": "2.99.0rc0", "python": "3.99", **OFFICIAL}, 12, "--python 3.14"),
    ({"cpu": "westmere", **OFFICIAL}, 12, "leave out --wheel official, keep --cpu westmere"),
    ({"host": replace(HOST, features=()), "cpuinfo": "old.txt", **OFFICIAL}, 12, "keep --cpuinfo old.txt"),
    ({"threading": "openmp", "release": "2.16.1"}, 12, "threadpool"),
    ({"bolt": True, "release": "2.20.0", "compiler": "gcc-14", **V3}, 12, "--compiler clang-17 or clang-18"),
    ({"bolt": True, "release": "2.20.0", "base": "ubuntu:24.04", "compiler": "clang-18", **V3}, 12, "--base debian:"),
    ({"bolt": True, "release": "2.20.0", **ARM_82}, 12, "leave it out"),
    ({"platform": "linux/arm64"}, 12, "--platform linux/amd64"),  # the host is another
    *(({"platform": name}, 12, "build the Linux image: --platform linux/") for name in (
        "darwin/arm64", "windows/amd64", "Darwin/x86_64", "freebsd/amd64",
    )),
]  # fmt: skip


@each("options, code, hint", REFUSALS)
def test_a_request_is_refused_with_its_code_and_what_to_type(options: dict[str, Any], code: int, hint: str) -> None:
    with pytest.raises(TfbuildError) as refusal:
        chosen(**options)
    assert type(refusal.value) is {2: UsageError, 12: Unsupported}[code]
    assert refusal.value.exit_code == code
    assert hint in refusal.value.hint


def test_a_recording_of_another_architecture_is_named_as_the_cause() -> None:
    with pytest.raises(Unsupported, match=r"rack\.txt describes an aarch64 CPU") as refusal:
        chosen(ARM, cpuinfo="rack.txt")
    assert refusal.value.hint == "--platform linux/arm64"


def test_a_mac_builds_linux_images_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(Unsupported, match="linux/arm64"):
        chosen(platform="", wheel="official")
    assert chosen(platform="linux/amd64", wheel="official").platform == "linux/amd64"
    assert chosen(platform="", target="cpu", wheel="official").platform == "linux/arm64"


def test_every_refusal_has_an_exit_code_of_its_own() -> None:
    kinds: list[type[TfbuildError]] = [TfbuildError]
    for kind in kinds:
        kinds.extend(sub for sub in kind.__subclasses__() if sub.__module__ == "tfbuild.errors")
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert not {0, 86} & {*codes}


# --- properties -------------------------------------------------------------------------------------------------------

REQUESTS = st.builds(
    Request, target=st.sampled_from(targets.names()), release=st.sampled_from(["", "2.12.1", "2.16.2", "2.20.0"]),
    python=st.sampled_from(["", "3.11", "3.12"]), cpu=st.sampled_from(["x86-64-v2", "x86-64-v4", "zen4"]),
    wheel=st.sampled_from(["", "official"]), with_headers=st.booleans(), platform=st.just("linux/amd64"),
)  # fmt: skip
CHANGES = st.sampled_from(
    [("config", ("a",)), ("config", ("b",)), ("bazel_flag", ("--x=a",)), ("bazel_flag", ("--x=b",))]
)


@given(REQUESTS, CHANGES, CHANGES)
def test_plans_are_deterministic_and_what_is_added_changes_the_identifier(
    request_: Request, change: tuple[str, Any], other: tuple[str, Any]
) -> None:
    try:
        build = plan.select(request_, None)
    except TfbuildError as refusal:
        with pytest.raises(type(refusal)):
            plan.select(request_, None)
        return
    assert plan.select(request_, HOST) == build
    assert plan.select(build.resolved(), None).id == build.id
    if build.toolchain:
        changed = [plan.select(replace(request_, **dict([added])), None).id for added in (change, other)]
        assert build.id not in changed
        assert (changed[0] == changed[1]) == (change == other)


# --- what scripts rely on ---------------------------------------------------------------------------------------------


def test_unused_by_the_official_wheel_is_in_tensorflows_names_and_order() -> None:
    assert plan.unused_by_official_wheel(HOST) == ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")
    assert plan.unused_by_official_wheel(OLD) == ()
    assert plan.unused_by_official_wheel(ARM) == ()


def test_copts_prints_a_line_to_paste_and_the_rest_aside(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"cpu": "sapphirerapids", "compiler": "gcc-13", "prefer_vector_width": "", "release": "2.18"}
    printed = []
    for json_ in (True, False):
        planning.copts(cpuinfo="", platform="linux/amd64", explain=False, json=json_, **options)
        printed.append(capsys.readouterr())
    document = json.loads(printed[0].out)
    assert [row["feature"] for row in document["dropped"]] == ["avx512_fp16"]
    assert printed[1].out == " ".join(document["copts"]) + "\n"
    assert "\nnote: avx512_fp16 is left out: breaks TensorFlow 2.18.1 with gcc-13" in printed[1].err
