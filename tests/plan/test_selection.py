"""Plans: what is chosen, and what is refused, by which error, with which hint."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.cpu.machines import machine
from tests.facts import newest
from tfbuild import cpu, facts, plan
from tfbuild.cli import planning
from tfbuild.context import dockerfile
from tfbuild.cpu import recordings
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.facts import cpuinfo_names, targets
from tfbuild.plan import Build, Request, base_choice

HOST = cpu.parse(machine("rocky9-zen5").cpuinfo())
OLD = cpu.parse(machine("scientificfermi6-bulldozer").cpuinfo())
ARM = cpu.parse(machine("rhel8-neoverse_v1").cpuinfo())
LINUX = Request(platform="linux/amd64")
FIELDS = {
    "id", "release", "python", "target", "platform", "instruction_set", "features", "compiler", "copts", "configs",
    "bazel", "bazel_target", "configure_env", "threading", "base_image", "wheel",
}  # fmt: skip


def chosen(host: cpu.Cpu | None = HOST, **options: Any) -> Build:
    return plan.select(replace(LINUX, **options), host)


# --- the official wheel -----------------------------------------------------------------------------------------------


def test_the_official_wheel_has_its_own_instruction_set_never_the_hosts() -> None:
    build = chosen(wheel="official", release="2.21.0")
    assert build.id == "2.21.0-mkl-py3.11-f16c"
    assert "avx2" not in build.instruction_set.features
    assert build.copts == ("--copt=-mavx", "--copt=-mf16c")
    assert (build.bazel, build.configs, build.threading) == ("", (), "threadpool")
    assert build.wheel.requirement == "tensorflow-cpu==2.21.0"


def test_a_cpu_says_what_a_build_from_source_would_add() -> None:
    note, _ = chosen(wheel="official", cpu="host").notes
    assert note.endswith("would add AVX2 AVX512F AVX512_VNNI AVX512_BF16 FMA")


def about_python(release: str, wheel: str, python: str = "") -> list[str]:
    notes = chosen(release=release, wheel=wheel, python=python).notes
    return [note for note in notes if re.match(r"Python \S+ is .* default to", note)]


def test_the_defaults_of_official_wheels_and_of_builds_from_source_name_each_other() -> None:
    (official,) = about_python("2.21.0", "official")
    (source,) = about_python("2.21.0", "source")
    assert official == "Python 3.11 is bookworm's own; builds from source default to Python 3.13"
    assert source == "Python 3.13 is the newest of this release with a base; official wheels default to 3.11"


@pytest.mark.parametrize(("release", "python"), [("2.15.1", ""), ("2.21.0", "3.12")])
@pytest.mark.parametrize("wheel", ["official", "source"])
def test_a_python_that_is_named_or_the_default_of_both_needs_no_note(release: str, python: str, wheel: str) -> None:
    assert about_python(release, wheel, python) == []


@pytest.mark.parametrize(
    ("release", "constraint"), [("2.14.0", "numpy<2"), ("2.15.1", "numpy<2"), ("2.17.1", "numpy<2")]
)
def test_older_releases_carry_the_constraints_that_they_need_today(release: str, constraint: str) -> None:
    build = chosen(wheel="official", release=release)
    assert constraint in build.wheel.constraints
    assert build.id == f"{release}-mkl-py3.11-avx"


def test_the_newest_release_that_fits_the_python() -> None:
    assert chosen(wheel="official", python="3.13").release == newest.RELEASE


def test_a_plan_that_does_not_take_the_newest_release_says_why() -> None:
    build = chosen(target="mkl", cpu="x86-64-v3", threading="openmp")
    assert build.release == "2.15.1"
    assert build.notes[0].startswith(f"2.15.1 is taken: TensorFlow {newest.RELEASE} has no x86_64 build with oneDNN on")
    for options in ({"release": "2.15.1"}, {"threading": "threadpool"}):
        asked: dict[str, Any] = {"target": "mkl", "cpu": "x86-64-v3", **options}
        assert not [note for note in chosen(**asked).notes if "is taken: " in note]


def test_a_wheel_of_a_newer_release_may_be_for_a_newer_python() -> None:
    build = chosen(wheel="official", release="2.99.0rc0", python="3.14", target="cpu")
    base = base_choice.base_for_wheel("3.14")
    assert (build.python, build.base_image, build.base_distribution) == ("3.14", base.image, base.bootstrap)
    assert f"{newest.RELEASE} has none for Python 3.14, so that there may be no such wheel" in build.notes[0]
    assert "no such wheel" not in chosen(wheel="official", release="2.99.0rc0", python="3.13").notes[0]
    for release, python, hint in (
        (newest.RELEASE, "3.14", "supports; a newer one may: --source FOLDER builds its tree, --wheel official takes"),
        ("2.14.0rc1", "3.14", "--python 3.11 is the newest one that TensorFlow 2.14.0rc1 supports"),
        ("2.99.0rc0", "3.99", "--python 3.14 is the newest one that TensorFlow 2.99.0rc0 supports"),
    ):
        with pytest.raises(Unsupported, match=f"no TensorFlow release supports Python '{python}'") as refusal:
            chosen(wheel="official", release=release, python=python)
        assert hint in refusal.value.hint


def test_a_minor_release_means_its_newest_patch() -> None:
    assert chosen(wheel="official", release="2.15").release == "2.15.1"


def test_cuda_takes_nvidias_libraries_from_pypi() -> None:
    assert chosen(wheel="official", target="cuda").wheel.requirement == f"tensorflow[and-cuda]=={newest.RELEASE}"


def test_aarch64_has_its_own_wheel() -> None:
    build = chosen(ARM, wheel="official", platform="linux/arm64", release="2.18.0")
    assert build.instruction_set.name == "armv8-a"
    assert build.wheel.requirement.startswith("tensorflow")


# --- from source ------------------------------------------------------------------------------------------------------


def test_a_build_from_source_is_for_the_host() -> None:
    build = chosen(release="2.20.0")
    assert build.instruction_set.level == "x86-64-v4"
    assert build.copts[0] == "--copt=-march=x86-64-v4"
    assert build.compiler.startswith("clang")
    assert build.configs == ("mkl_threadpool",)
    assert (build.bazel, build.bazel_target) == ("7.4.1", "//tensorflow/tools/pip_package:wheel")
    assert dict(build.configure_env)["TF_NEED_CUDA"] == "0"


def test_the_default_release_is_the_newest_that_plans() -> None:
    assert [chosen(target=target).release for target in targets.names()] == [newest.RELEASE] * len(targets.names())


def test_what_nobody_tried_is_noted() -> None:
    build = chosen(release="2.19.0", bazel="6.5.0", compiler="clang-16")
    assert "not certain: nobody is known to have built TensorFlow 2.19.0 with clang-16" in build.notes
    assert not [note for note in build.notes if "Bazel" in note]
    note = "not certain: whether there is a Bazel 6.99.0 that builds TensorFlow 2.19.0, whose own is 6.5.0"
    assert note in chosen(release="2.19.0", bazel="6.99.0").notes


def test_openmp_is_had_by_asking() -> None:
    assert chosen(release="2.15.1", threading="openmp").configs == ("mkl",)
    with pytest.raises(Unsupported, match="oneDNN on openmp: XLA's oneDNN code compiles only with the thread pool"):
        chosen(release="2.16.1", threading="openmp")


def test_pywrap_rules_are_asked_for_as_the_official_builds_do_but_for_cuda_of_2_19() -> None:
    flag = "--repo_env=USE_PYWRAP_RULES=1"
    wanted = {
        ("2.18.0", "cpu", "linux/amd64"): False,
        ("2.19.1", "cpu", "linux/amd64"): True,
        ("2.19.1", "mkl", "linux/amd64"): True,
        ("2.19.1", "cuda", "linux/amd64"): False,
        ("2.19.1", "cpu", "linux/arm64"): False,
        ("2.20.0", "cuda", "linux/arm64"): True,
        ("2.21.0", "cpu", "linux/amd64"): False,
    }
    for (release, target, platform), asked in wanted.items():
        cpu = "x86-64-v3" if platform == "linux/amd64" else "armv8.2-a"
        build = chosen(release=release, target=target, platform=platform, cpu=cpu)
        assert (flag in build.bazel_flags) == asked, (release, target, platform)


def test_cuda_from_source() -> None:
    build = chosen(release="2.15.1", target="cuda", compiler="clang-16")
    assert "cuda" in build.configs
    assert dict(build.configure_env)["TF_NEED_CUDA"] == "1"


def test_no_target_ever_emits_what_works_in_tensorflows_own_images_alone() -> None:
    for release in ("2.12.0", "2.14.1", "2.20.0"):
        for target in targets.names():
            build = chosen(release=release, target=target)
            assert not any("release" in config or config == "opt" for config in build.configs)
            assert not any("native" in copt for copt in build.copts)


@pytest.mark.parametrize(
    ("cpu", "compiler", "release", "lost"),
    [
        ("sapphirerapids", "gcc-12", "2.15.1", {"avx512_fp16"}),
        ("sapphirerapids", "clang-16", "2.15.1", {"avx512_fp16"}),
        ("sapphirerapids", "gcc-11", "2.14.1", {"avx512_fp16"}),
        ("graniterapids,exact", "gcc-12", "2.14.1", {"amx_fp16"}),
        ("x86-64-v3,rdseed", "clang-16", "2.14.1", {"rdseed"}),
    ],
)
def test_what_is_dropped_is_promised_nowhere(cpu: str, compiler: str, release: str, lost: set[str]) -> None:
    build = chosen(cpu=cpu, compiler=compiler, release=release)
    assert not lost & set(build.instruction_set.features)
    assert not lost & set(build.to_json()["features"])  # type: ignore[call-overload]
    assert not set(cpuinfo_names(tuple(lost))) & set(entrypoint_needs(build))
    for name in lost:
        assert any(note.startswith(f"{name} is left out: ") for note in build.notes)
    again = chosen(cpu=",".join(build.instruction_set.features), compiler=compiler, release=release)
    assert (again.id, again.copts, again.instruction_set) == (build.id, build.copts, build.instruction_set)
    assert not any("is left out" in note for note in again.notes)


def entrypoint_needs(build: Build) -> list[str]:
    """The names that the entry point compares first: what it stops for."""
    script = dockerfile.files(build)["entrypoint.sh"]
    (line,) = (line for line in script.splitlines() if line.startswith("compare ") and not line.endswith("{"))
    return line.split()[1:]


@pytest.mark.parametrize("cpu", ["host", "graniterapids", "sierraforest", "x86-64-v2", "armv8.2-a", "neoverse-v2"])
def test_the_guard_and_detection_share_one_table_of_features(cpu: str) -> None:
    """What the entry point looks for in /proc/cpuinfo is read back by `invoke detect` as the plan's features."""
    arm = cpu.startswith(("arm", "neoverse"))
    build = chosen(cpu=cpu, platform="linux/arm64" if arm else "linux/amd64", release="2.20.0")
    arch = plan.PLATFORMS[build.platform]
    names = entrypoint_needs(build)
    unprinted = {name for name in build.instruction_set.features if not facts.feature(name).cpuinfo}
    assert set(recordings.canonical(names, arch)) == set(build.instruction_set.features) - unprinted
    assert len(names) == len(build.instruction_set.features) - len(unprinted)
    assert any("cannot check for" in note for note in build.notes) == bool(unprinted)


def test_every_feature_is_one_name_to_the_guard_and_to_detection() -> None:
    for feature in facts.features():
        names = cpuinfo_names((feature.name,))
        assert recordings.canonical(names, feature.arch) == ({feature.name} if feature.cpuinfo else set())


def test_a_vector_width_is_part_of_the_variant_and_of_the_command() -> None:
    build = chosen(cpu="x86-64-v4", release="2.20.0", compiler="clang-19", prefer_vector_width="256")
    assert build.id == "2.20.0-mkl-py3.13-x86-64-v4-clang-19-prefer256"
    assert build.copts[-1] == "--copt=-mprefer-vector-width=256"
    assert "--prefer-vector-width 256" in dockerfile.command(build)
    default = chosen(cpu="x86-64-v4", release="2.20.0", compiler="clang-19")
    assert default.copts[-1] == "--copt=-mprefer-vector-width=512"
    assert "prefer" not in default.id


def test_a_name_that_tunes_badly_is_noted() -> None:
    build = chosen(cpu="skylake", release="2.20.0", compiler="clang-19")
    assert build.copts[0] == "--copt=-march=x86-64-v3"
    assert any("-march=skylake is not used" in note for note in build.notes)


def test_a_recording_of_another_architecture_is_named_as_the_cause() -> None:
    with pytest.raises(Unsupported, match=r"rack\.txt describes an aarch64 CPU") as refusal:
        chosen(ARM, cpuinfo="rack.txt")
    assert refusal.value.hint == "--platform linux/arm64"


def test_another_architecture_needs_a_cpu() -> None:
    with pytest.raises(Unsupported):
        chosen(platform="linux/arm64")
    assert chosen(platform="linux/arm64", cpu="armv8.2-a", release="2.20.0").configs == ("mkl_aarch64_threadpool",)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"target": "mkl,cuda"},
        {"target": "cuda,mkl"},
        {"target": "MKL, CUDA"},
        {"target": "mkl", "config": ("cuda",)},
        {"target": "mkl", "config": ("cuda_clang",)},
        {"target": "mkl", "config": ("v2,cuda",)},
        {"target": "cuda", "config": ("mkl",)},
        {"target": "cuda", "config": ("mkl_threadpool",)},
        {"target": "cpu", "config": ("mkl", "cuda")},
        {"target": "mkl", "bazel_flag": ("--config=cuda",)},
        {"target": "mkl", "bazel_flag": ("--config cuda",)},
        {"target": "mkl", "bazel_flag": ("--config", "cuda")},
        {"target": "cuda", "bazel_flag": ("--config=mkl",), "wheel": "official"},
        {"target": "mkl", "bazel_flag": ("--define=enable_mkl=true", "--config=cuda")},
        {"target": "cuda mkl"},
        {"target": "cpu+mkl+cuda"},
        {"target": "mkl", "config": ("CUDA",)},
        {"target": "mkl", "bazel_flag": ("--@local_config_cuda//:enable_cuda",)},
        {"target": "mkl", "bazel_flag": ("--define=using_cuda=true",)},
        {"target": "mkl", "bazel_flag": ("--repo_env=TF_NEED_CUDA=1",)},
        {"target": "cuda", "bazel_flag": ("--define=build_with_mkl=true",)},
    ],
)
def test_mkl_and_cuda_are_refused_in_any_spelling(options: dict[str, Any]) -> None:
    with pytest.raises(Unsupported) as refusal:
        chosen(**options)
    assert refusal.value.exit_code == 12
    assert refusal.value.hint in ("choose --target mkl or --target cuda", "choose --target cuda or --target mkl")


@pytest.mark.parametrize(
    "options",
    [
        {"target": "mkl", "bazel_flag": ("--repo_env=TF_NEED_CUDA=0",)},
        {"target": "cuda", "bazel_flag": ("--define=enable_mkl=false",)},
        {"target": "cuda", "bazel_flag": ("--define=tensorflow_mkldnn_contraction_kernel=1",)},
    ],
)
def test_switching_the_other_one_off_is_no_wish_for_both(options: dict[str, Any]) -> None:
    assert chosen(release="2.20.0", **options).bazel_flags[-1] == options["bazel_flag"][0]


def test_what_is_chosen_otherwise_has_another_identifier() -> None:
    plain = chosen(release="2.15.1", cpu="x86-64-v3")
    assert plain.id == "2.15.1-mkl-py3.11-x86-64-v3"
    others = [
        chosen(release="2.15.1", cpu="x86-64-v3", **options)
        for options in ({"threading": "openmp"}, {"compiler": "gcc-13"}, {"config": ("v2",)}, {"bazel": "7.4.2"})
    ]
    identifiers = {
        build.id for build in (plain, *others, chosen(wheel="official", with_headers=True, release="2.15.1"))
    }
    assert len(identifiers) == len(others) + 2
    assert {"2.15.1-mkl-py3.11-x86-64-v3-openmp", "2.15.1-mkl-py3.11-avx-headers"} <= identifiers


def test_asking_for_what_the_release_has_anyway_changes_no_identifier() -> None:
    plain = chosen(release="2.20.0", cpu="x86-64-v3")
    again = chosen(
        release="2.20.0", cpu="x86-64-v3", threading="threadpool", compiler="clang-18", bazel="7.4.1", python="3.13"
    )
    assert again.id == plain.id


def test_a_compile_for_the_official_wheels_cpu_has_another_identifier_than_its_image() -> None:
    official = chosen(release="2.20.0", python="3.13", wheel="official")
    compiled = chosen(release="2.20.0", python="3.13", cpu="avx")
    assert (official.id, compiled.id) == ("2.20.0-mkl-py3.13-avx", "2.20.0-mkl-py3.13-avx-source")


def test_a_base_of_ones_own_stands_in_the_plan() -> None:
    assert chosen(wheel="official", base="ours:1").base_image == "ours:1"
    assert chosen(wheel="official", base="bootstrap").base_image == "python:3.11-slim-bookworm"


@pytest.mark.parametrize("system", ["darwin/arm64", "windows/amd64", "Darwin/x86_64", "freebsd/amd64"])
def test_mkl_is_refused_off_linux_and_named_platforms_help(system: str) -> None:
    with pytest.raises(Unsupported, match="hint: build the Linux image: --platform linux/"):
        chosen(platform=system)


def test_a_mac_builds_linux_images_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(Unsupported, match="linux/arm64"):
        chosen(platform="", wheel="official")
    assert chosen(platform="linux/amd64", wheel="official").platform == "linux/amd64"
    assert chosen(platform="", target="cpu", wheel="official").platform == "linux/arm64"


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"target": "rocm"}, UsageError, "cpu, mkl, cuda"),
        ({"target": ""}, UsageError, "cpu, mkl, cuda"),
        ({"release": "2.14.9", "wheel": "official"}, Unsupported, "2.14.1"),
        ({"release": "two", "wheel": "official"}, Unsupported, newest.RELEASE),
        ({"release": "2.21.0", "python": "3.9", "wheel": "official"}, Unsupported, "3.11"),
        ({"release": "2.14.0", "python": "3.12", "wheel": "official"}, Unsupported, "3.11"),
        ({"cpu": "haswel"}, Unsupported, "haswell"),
        ({"threading": "tbb", "release": "2.20.0"}, UsageError, "openmp"),
    ],
)
def test_what_is_unknown_or_does_not_fit_is_refused_with_the_nearest(
    options: dict[str, Any], error: type[TfbuildError], hint: str
) -> None:
    with pytest.raises(error) as refusal:
        chosen(**options)
    assert "hint: " in str(refusal.value)
    assert hint in refusal.value.hint


def test_every_refusal_has_an_exit_code_of_its_own() -> None:
    kinds: list[type[TfbuildError]] = [TfbuildError]
    for kind in kinds:
        kinds.extend(sub for sub in kind.__subclasses__() if sub.__module__ == "tfbuild.errors")
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert 86 not in codes
    assert 0 not in codes


# --- what scripts rely on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wheel", ["official", ""])
def test_the_plans_json_has_its_documented_fields(wheel: str) -> None:
    document = json.loads(json.dumps(chosen(wheel=wheel, release="2.20.0").to_json()))
    assert set(document) >= FIELDS
    assert isinstance(document["instruction_set"], str)
    assert isinstance(document["configure_env"], dict)
    for field in ("features", "copts", "configs"):
        assert isinstance(document[field], list)


def test_unused_by_the_official_wheel_is_in_tensorflows_names_and_order() -> None:
    assert plan.unused_by_official_wheel(HOST) == ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")
    assert plan.unused_by_official_wheel(OLD) == ()
    assert plan.unused_by_official_wheel(ARM) == ()


def test_copts_prints_a_line_to_paste_and_the_rest_aside(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"compiler": "gcc-13", "prefer_vector_width": "", "release": "2.18"}
    planning.copts(cpu="sapphirerapids", cpuinfo="", platform="linux/amd64", explain=False, json=True, **options)
    printed_json = json.loads(capsys.readouterr().out)
    assert set(printed_json) == {"release", "python", "compiler", "instruction_set", "copts", "dropped", "notes"}
    assert [row["feature"] for row in printed_json["dropped"]] == ["avx512_fp16"]
    assert printed_json["compiler"] == "gcc-13"
    planning.copts(cpu="sapphirerapids", cpuinfo="", platform="linux/amd64", explain=False, json=False, **options)
    printed = capsys.readouterr()
    assert printed.out == " ".join(printed_json["copts"]) + "\n"
    assert "\nnote: avx512_fp16 is left out: breaks TensorFlow 2.18.1 with gcc-13" in printed.err
