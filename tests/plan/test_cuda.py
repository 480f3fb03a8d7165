"""CUDA that fits the GPU: what each CUDA compiles for, what each release takes, and what a request becomes of it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.rows import each
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import releases
from tfbuild.facts.release_table import Cuda
from tfbuild.facts.release_table import table as release_table
from tfbuild.pipeline.maker import refuse_base_without_cuda
from tfbuild.plan import Build, Request
from tfbuild.plan import cuda as cuda_rules
from tfbuild.plan.cuda import CapabilityRow, CudnnRow, cuda_table
from tfbuild.plan.failures import KNOWN_TO_FAIL
from tfbuild.plan.request import VERSION

RECORDED = {path.stem: path for path in (Path(__file__).parents[1] / "data" / "ptxas").glob("*.txt")}
REQUEST = Request(target="cuda", cpu="x86-64-v3", platform="linux/amd64", base="a-base:1")
RELEASES = [row.version for row in releases.releases()]


def planned(release: str, gpus: str = "", **options: Any) -> Build:
    request = replace(REQUEST, release=release, compute_capabilities=gpus, **options)
    return plan.select(request, None)


# --- the rows ---------------------------------------------------------------------------------------------------------


@each("cuda", sorted(RECORDED))
def test_the_capabilities_of_a_cuda_are_those_that_its_ptxas_lists(cuda: str) -> None:
    listed = {name.removeprefix("sm_") for name in RECORDED[cuda].read_text().split()}
    plain = {f"{name[:-1]}.{name[-1]}" for name in listed if name.isdigit()}
    assert {row.name for row in cuda_table().capability if row.covers(cuda)} == plain


@each("row", cuda_table().capability)
def test_a_capabilitys_row_has_a_range_and_a_name_that_tensorflow_reads(row: CapabilityRow) -> None:
    assert Version(row.since) < Version(row.before)
    (read,) = cuda_rules.parse_capabilities(row.name)
    assert (read.figure, read.virtual) == (row.name, True)
    assert read.code == f"compute_{row.name.replace('.', '')}"
    assert 0 <= row.clang < 100
    assert [one.name for one in cuda_table().capability].count(row.name) == 1


@each("row", cuda_table().cudnn)
def test_a_cudnn_that_goes_with_a_cuda_is_one_that_a_release_with_that_cuda_takes(row: CudnnRow) -> None:
    assert row.source
    cards = [card for card in release_table().cuda if any(row.covers(one) for one in card.others)]
    assert cards
    assert [card for card in cards if row.version not in card.others_cudnn] == []


@each("card", release_table().cuda)
def test_a_releases_other_cudas_are_in_order_of_its_own_precision_and_have_evidence(card: Cuda) -> None:
    for own, others in ((card.version, card.others), (card.cudnn, card.others_cudnn)):
        assert own not in others
        assert list(others) == sorted(set(others), key=Version)
        assert {one.count(".") for one in others} <= {own.count(".")}
        assert [one for one in (own, *others) if not VERSION.fullmatch(one)] == []
    assert bool(card.evidence) == bool(card.others)
    assert card.hermetic or not card.others_cudnn


@each("release", RELEASES)
def test_a_releases_own_cuda_and_compiler_compile_for_its_own_capabilities(release: str) -> None:
    build, card = planned(release), releases.cuda(release)
    assert (build.cuda, build.cudnn) == (card.version, card.cudnn)
    assert not [word for word in build.variant if word.startswith("cud")]
    assert "cuda_nvcc" not in build.configs
    # Known failures have rows of their own, and so has the fix of 2.21's toolchain.
    notes = [note for note in build.notes if not note.startswith((KNOWN_TO_FAIL, "fix cuda-local-crosstool"))]
    assert not [note for note in notes if "CUDA" in note]


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_a_gpu_newer_than_the_releases_cuda_takes_a_newer_one_and_says_so() -> None:
    build = planned("2.20.0", "12.0")
    assert {"cuda": "12.8.1", "cudnn": "9.8.0"}.items() <= build.to_json().items()
    assert {
        "HERMETIC_CUDA_VERSION": "12.8.1", "HERMETIC_CUDNN_VERSION": "9.8.0",
        "HERMETIC_CUDA_COMPUTE_CAPABILITIES": "compute_120",
    }.items() <= dict(build.configure_env).items()  # fmt: skip
    # Clang 18 has no code for it.
    assert build.configs == ("cuda", "cuda_wheel", "cuda_nvcc")
    assert build.id.endswith("-cuda12.8.1-cudnn9.8.0")
    notes = "\n".join(build.notes)
    assert "CUDA 12.8.1 is taken: the release's own, 12.5.1, does not compile for 12.0" in notes
    assert "not certain: that TensorFlow 2.20.0 builds with CUDA 12.8.1" in notes
    assert "nvcc compiles the kernels (--config=cuda_nvcc): clang-18 cannot for 12.0" in notes


@each("gpus, cuda", [("12.1", "12.9.1"), ("sm_120,compute_120", "12.8.1")])
def test_the_nearest_cuda_of_the_release_is_taken(gpus: str, cuda: str) -> None:
    assert planned("2.21.0", gpus).cuda == cuda


@each(
    "text, meant",
    [
        ("GB10", "12.1"), ("DGX Spark", "12.1"), ("RTX PRO 1000", "12.0"), ("NVIDIA RTX PRO 500 Blackwell", "12.0"),
        ("NVIDIA GeForce RTX 5090", "12.0"), ("Jetson Thor", "11.0"), ("RTX A6000", "8.6"), ("A6000", "8.6"),
        ("RTX 4000 Ada", "8.9"), ("Titan RTX", "7.5"), ("Quadro RTX 6000", "7.5"), ("Tesla M60", "5.2"), ("K80", "3.7"),
        ("sm_120a", "12.0"), ("sm_90a", "9.0"), ("86", "8.6"),
        ("native", ""), ("all", ""), ("RTX 9999", ""), ("8.0,x", ""), ("8.6,", ""), ("٨.٦", ""),
    ],
)  # fmt: skip
def test_a_gpu_s_name_gets_its_capability_and_another_word_the_way_to_ask(text: str, meant: str) -> None:
    with pytest.raises(UsageError, match="is not a CUDA compute capability") as refused:
        planned("2.21.0", text)
    own = f"--compute-capabilities {meant}"
    assert refused.value.hint == own if meant else "nvidia-smi --query-gpu=name,compute_cap" in refused.value.hint


def test_a_capability_has_its_code_and_its_number() -> None:
    rows = cuda_rules.parse_capabilities("3.5, sm_90,compute_120 ")
    assert [(row.name, row.code, row.major, row.number, row.virtual, row.figure) for row in rows] == [
        ("3.5", "compute_35", 3, 35, True, "3.5"),
        ("sm_90", "sm_90", 9, 90, False, "9.0"),
        ("compute_120", "compute_120", 12, 120, True, "12.0"),
    ]


@each("option", ["cuda", "cudnn"])
@each("bad", ["12", "12.8.", "v12.8", "12.8 ", "١٢.٨", "12.8;ls", "-1.0", "latest", "123.4"])
def test_what_is_no_version_is_a_usage_error(option: str, bad: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(bad))):
        planned("2.21.0", "9.0", **{option: bad})


def test_a_cuda_and_a_cudnn_chosen_by_hand_are_in_the_plan_and_in_the_command() -> None:
    build = planned("2.20.0", cuda="12.8", cudnn="9.7")
    assert (build.cuda, build.cudnn, build.variant) == ("12.8.1", "9.7.1", ("cuda12.8.1", "cudnn9.7.1"))
    assert "--cuda 12.8 --cudnn 9.7" in dockerfile.command(build)
    # The release's own, spelled out, is the same build.
    plain, gpus = planned("2.20.0").id, releases.cuda("2.20.0").capabilities
    assert planned("2.20.0", gpus, cuda="12.5.1", cudnn="9.3").id == plain != planned("2.20.0", "8.0").id


def test_up_to_2_17_the_base_must_have_what_is_chosen() -> None:
    build = planned("2.15.1", cuda="12.1", cudnn="8.8")
    assert {"TF_CUDA_VERSION": "12.1", "TF_CUDNN_VERSION": "8.8"}.items() <= dict(build.configure_env).items()
    assert dict(planned("2.15.1").configure_env)["TF_CUDNN_VERSION"] == "8"
    refuse_base_without_cuda(build)
    with pytest.raises(Unsupported) as refused:
        refuse_base_without_cuda(replace(build, request=replace(build.request, base="auto")))
    assert "has CUDA 12.1, cuDNN 8.8 and " in refused.value.hint


@each("release, variable", [("2.14.1", ""), ("2.15.1", "TF_CUDA"), ("2.20.0", "HERMETIC_CUDA")])
def test_what_a_config_of_the_tree_overrides_is_given_to_bazel_after_it(release: str, variable: str) -> None:
    build = planned(release, "8.0")
    flags = [f"--repo_env={variable}_COMPUTE_CAPABILITIES=compute_80"] if variable else []
    assert [flag for flag in build.bazel_flags if "CUD" in flag] == flags
    lines = dockerfile.files(build)["bazelrc"].splitlines()
    last_config = max(number for number, line in enumerate(lines) if line.startswith("build --config="))
    assert [flag for flag in flags if lines.index(f"build {flag}") < last_config] == []


def test_nvcc_needs_a_config_beside_an_older_clang_alone() -> None:
    for options in ({"compiler": "gcc-13"}, {"compiler": "clang-20"}):
        assert planned("2.21.0", "12.0", **options).configs == ("cuda", "cuda_wheel")
    assert planned("2.21.0", "12.0", config=("cuda_nvcc",)).configs.count("cuda_nvcc") == 1


# --- for every request ------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([row.name for row in cuda_table().capability])
LISTS = st.lists(NAMES, min_size=1, max_size=3, unique=True)


@given(release=st.sampled_from(RELEASES), names=LISTS)
def test_a_choice_compiles_for_the_gpus_and_a_refusal_names_what_does(release: str, names: list[str]) -> None:
    gpus = cuda_rules.parse_capabilities(",".join(names))
    card = releases.cuda(release)
    spans = [row for row in cuda_table().capability if row.name in names]
    able = [one for one in (card.version, *card.others) if all(row.covers(one) for row in spans)]
    try:
        version = cuda_rules.cuda_version(release, gpus)
        cudnn = cuda_rules.cudnn_version(release, version)
    except Unsupported as refused:
        assert not able
        if offer := re.match(r"--release (\S+) takes a CUDA which does \((.+?)\)", refused.hint):
            assert cuda_rules.cuda_version(offer[1], gpus) == offer[2]
        return
    assert version in able
    assert cudnn in (card.cudnn, *card.others_cudnn)
    assert (version == card.version) == (card.version in able)
    notes = [*cuda_rules.cuda_notes(release, gpus, "gcc-13", version)]
    assert bool(notes) == (version != card.version)
