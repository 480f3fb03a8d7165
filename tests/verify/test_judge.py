"""Recorded real output passes; every way in which it can be wrong is recognised."""

import importlib
import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from msgspec.json import encode

from tests.rows import each
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Ended, Judgement, Plan, Results
from tfbuild.in_container.smoke.records import (
    Bytecode,
    Environment,
    Faults,
    GpuConvolution,
    OneDnnConvolution,
    Part,
    TensorFlow,
)
from tfbuild.measure import probe

DATA = Path(__file__).parents[1] / "data" / "smoke"
PACKAGE = Path(judge.__file__).parent.parent
SUCCEEDED = Ended(0, "")
PLAN = Plan(
    release="2.21.0",
    python="3.11",
    target="mkl",
    threading="threadpool",
    allocator="tcmalloc",
    checks=("onednn",),
)
RAN = OneDnnConvolution(finite=True, openmp="")
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.10"
REFUSED = (
    "ERROR: ld.so: object '/nowhere/libtcmalloc.so.4' from LD_PRELOAD cannot be preloaded "
    "(cannot open shared object file): ignored."
)


def start(release: str) -> tuple[Environment, TensorFlow]:
    environment, tensorflow = probe.records((DATA / f"start-{release}.jsonl").read_text(), (Environment, TensorFlow))
    return environment, tensorflow


ENVIRONMENT, TENSORFLOW = start("2.21.0")


def importing(
    tensorflow: TensorFlow | None = TENSORFLOW,
    ended: Ended = SUCCEEDED,
    plan: Plan = PLAN,
    environment: Environment = ENVIRONMENT,
) -> Judgement:
    sent = (environment, tensorflow) if tensorflow else (environment,)
    return judge.importing(Results(sent, ended), plan)


def onednn(text: str, ran: OneDnnConvolution | None = RAN, plan: Plan = PLAN) -> Judgement:
    return judge.onednn(Results((ran,) if ran else (), Ended(0, text), ENVIRONMENT), plan)


def numerics(parts: list[Part], ended: Ended = SUCCEEDED, plan: Plan = PLAN) -> Judgement:
    return judge.numerics(Results(tuple(parts), ended), plan)


def parts(**errors: float | None) -> list[Part]:
    return [Part(name, errors.get(name, 0.0)) for name in judge.LIMITS]


@pytest.mark.parametrize(("release", "python"), [("2.0.4", "3.7"), ("2.14.0", "3.11"), ("2.21.0", "3.11")])
def test_recorded_starts_match_their_plan(release: str, python: str) -> None:
    environment, tensorflow = start(release)
    plan = Plan(release=release, python=python, target="mkl")
    assert importing(tensorflow, plan=plan, environment=environment).status == "pass"


@pytest.mark.parametrize(
    ("plan", "detail"),
    [
        (Plan(release="2.14.0"), "TensorFlow is 2.21.0, not 2.14.0"),
        (Plan(python="3.12"), "Python is 3.11.2, not 3.12"),
        (Plan(target="cuda", checks=("cuda",)), "it is not built with CUDA, the target is cuda"),
    ],
)
def test_a_tensorflow_other_than_the_planned_one_fails(plan: Plan, detail: str) -> None:
    check = importing(plan=plan)
    assert (check.status, check.detail) == ("fail", detail)


@each(
    "git, right",
    [
        ("v2.21.0-rc1-5-ga481b10260d", True),
        ("unknown", True),  # of wheels that were built from an archive
        ("v2.20.0-4-g72fbba3d20f", False),
        ("v2.21.1", False),
        ("v3.21.0", False),
        ("v2.21", True),
    ],
)
def test_a_commit_of_another_release_fails(git: str, right: bool) -> None:
    check = importing(replace(TENSORFLOW, git=git))
    assert check.status == ("pass" if right else "fail")
    assert right or check.detail == f"its GIT_VERSION is {git}, but it is labelled 2.21.0"


def test_a_patch_release_may_be_named_by_the_tag_before_it() -> None:
    tensorflow = replace(TENSORFLOW, version="2.4.1", git="v2.4.0-49-g85c8b2a817f")
    assert importing(tensorflow, plan=Plan(release="2.4.1")).status == "pass"


@each(
    "record, ended, told",
    [
        (Bytecode(files=9, wrong=()), SUCCEEDED, "9 files, each compiled from its source"),
        (Bytecode(files=9, wrong=("/a.pyc", "/b.pyc")), SUCCEEDED, "not compiled from its source: /a.pyc /b.pyc"),
        (None, SUCCEEDED, "the bytecode was not compared: no result"),
        (Bytecode(files=9, wrong=()), Ended(139, ""), "the bytecode was not compared: killed by SIGSEGV"),
    ],
)
def test_bytecode_has_to_come_from_its_source(record: Bytecode | None, ended: Ended, told: str) -> None:
    check = judge.bytecode(Results((record,) if record else (), ended), PLAN)
    assert (check.status == "pass", check.detail) == ("each" in told, told)


@pytest.mark.parametrize("code", [-4, 132])
def test_a_death_by_sigill_is_recognised(code: int) -> None:
    check = importing(None, Ended(code, ""))
    assert check.status == "fail"
    assert "SIGILL (illegal instruction)" in check.detail


def test_other_causes_of_death_are_named() -> None:
    assert Ended(137, "").why == "killed by SIGKILL"
    assert Ended(129, "").why == "killed by SIGHUP"
    assert Ended(-11, "").why == "killed by SIGSEGV"
    assert Ended(255, "x").why == "killed by signal 127"
    assert Ended(1, "a\n  TypeError: b\n\n").why == "exit code 1: TypeError: b"
    assert Ended(1, "").why == "exit code 1: it printed nothing"
    assert Ended(0, "", timed_out=True).why == "did not end in time"
    assert Ended(0, "noise").why == ""


def test_a_failed_import_names_numpy() -> None:
    old = replace(ENVIRONMENT, numpy="2.4.6")
    assert importing(None, Ended(1, "TypeError: handle"), environment=old).detail == (
        "NumPy 2.4.6; exit code 1: TypeError: handle"
    )
    none = replace(ENVIRONMENT, numpy="")
    assert importing(None, SUCCEEDED, environment=none).detail == "the probe ended without a result"


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("start-2.0.4.stderr", ("AVX2", "AVX512F", "FMA")),
        ("onednn-2.0.1", ("AVX2", "AVX512F", "FMA")),
        ("start-2.14.0.stderr", ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")),
        ("start-2.21.0.stderr", ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")),
    ],
)
def test_the_message_is_found_in_recorded_output(name: str, features: tuple[str, ...]) -> None:
    assert judge.message((DATA / f"{name}.txt").read_text()) == features


@each(
    "text, features",
    [
        (
            "I x.cc:193] This TensorFlow binary is optimized with oneAPI Deep Neural Network Library (oneDNN) to "
            "use the following CPU instructions in performance-critical operations:  AVX2 FMA\nTo enable them in",
            "AVX2 FMA",
        ),
        (
            "I x.cc:142] Your CPU supports instructions that this TensorFlow binary was not compiled to use: AVX2 FMA",
            "AVX2 FMA",
        ),
        ("WARNING: All log messages before absl::InitializeLog() is called", ""),
    ],
)
def test_older_wordings_of_the_message_or_none(text: str, features: str) -> None:
    assert judge.message(text) == tuple(features.split())


@pytest.mark.parametrize(
    ("release", "implementation"), [("2.14.0", "brgconv:avx512_core"), ("2.21.0", "brg_conv_fwd:avx512_core")]
)
def test_a_recorded_convolution_in_onednn_passes(release: str, implementation: str) -> None:
    text = (DATA / f"onednn-{release}.txt").read_text()
    primitives = judge.primitives(text)
    assert (primitives.runtime, primitives.convolutions) == ("threadpool", (implementation,))
    assert onednn(text).status == "pass"


def test_a_recorded_convolution_in_mkl_dnn_passes() -> None:
    """MKL-DNN 0.20.3 names no engine and no runtime; intel-tensorflow 2.0.1 brings Intel's OpenMP."""
    text = (DATA / "onednn-2.0.1.txt").read_text()
    primitives = judge.primitives(text)
    assert (primitives.runtime, primitives.convolutions) == ("", ("jit:avx512_common",))
    assert primitives.isa == "Intel AVX-512 with Intel DL Boost and bfloat16 support"
    openmp = replace(RAN, openmp="libiomp5.so")
    check = onednn(text, openmp, replace(PLAN, threading="openmp"))
    assert check.status == "pass"
    assert check.detail == f"a convolution ran as jit:avx512_common on libiomp5.so ({primitives.isa})"
    assert onednn(text, plan=replace(PLAN, threading="")).status == "pass"


@each(
    "name, threading, detail",
    [
        ("onednn-2.0.1", "openmp", "its threading is unknown, not openmp"),
        ("onednn-2.21.0", "openmp", "its threading is threadpool, not openmp"),
        ("onednn-off-2.0.1", "threadpool", "no convolution ran in oneDNN"),
        # Its lines about gemm_api prove nothing.
        ("onednn-off-2.14.0", "threadpool", "no convolution ran in oneDNN: it is off"),
        ("onednn-off-2.21.0", "threadpool", "no convolution ran in oneDNN: it is off"),
    ],
)
def test_recorded_output_without_the_planned_convolution_fails(name: str, threading: str, detail: str) -> None:
    text = (DATA / f"{name}.txt").read_text()
    check = onednn(text, plan=replace(PLAN, threading=threading))
    assert (check.status, check.detail) == ("fail", detail)
    assert ("gemm_api" in text) == ("off" in name and "2.0.1" not in name)


@pytest.mark.parametrize("ran", [None, OneDnnConvolution(finite=False, openmp="")])
def test_a_convolution_without_a_finite_result_fails(ran: OneDnnConvolution | None) -> None:
    assert onednn((DATA / "onednn-2.21.0.txt").read_text(), ran).status == "fail"


def test_only_primitives_on_the_cpu_count() -> None:
    assert judge.executed(["v1", "primitive", "exec", "gpu", "convolution", "jit:ir", "x"]) == ("", "")
    assert judge.executed(["exec", "convolution", "jit:sse42", "x"]) == ("convolution", "jit:sse42")
    assert judge._fits("jit:sse42", "sse41")
    assert not judge._fits("jit:sse42", "avx2")


def test_installed_packages_are_read_from_folder_names(tmp_path: Path) -> None:
    """Python 3.7 has no importlib.metadata."""
    probes = importlib.import_module("tfbuild.in_container.smoke.probes")
    for name in ("numpy-1.18.5.dist-info", "gast-0.2.2-py3.7.egg-info", "numpy", "numpy.libs"):
        (tmp_path / name).mkdir()
    assert probes.packages([str(tmp_path), ""]) == ("gast==0.2.2", "numpy==1.18.5")


@pytest.mark.parametrize("implementation", ["ref:any", "", "gemm:jit", "jit:avx2", "brgconv:sse41"])
def test_an_implementation_for_another_cpu_fails(implementation: str) -> None:
    line = f"onednn_verbose,info,cpu,runtime:threadpool\nonednn_verbose,exec,cpu,convolution,{implementation},x\n"
    assert onednn(line).status == "fail"


def test_every_convolution_counts_not_only_the_first() -> None:
    text = "".join(f"onednn_verbose,exec,cpu,convolution,{name},x\n" for name in ("brg:avx512_core", "ref:any"))
    assert onednn(text, plan=replace(PLAN, threading="")).status == "fail"


@pytest.mark.parametrize("prefix", ["dnnl_verbose", "mkldnn_verbose", "onednn_verbose,1700000.25"])
def test_lines_of_older_versions_and_with_time_stamps_are_parsed(prefix: str) -> None:
    assert judge.primitives(f"{prefix},exec,cpu,convolution,jit:avx2,x").convolutions == ("jit:avx2",)


def test_the_instruction_set_expected_of_onednn_follows_the_cpu() -> None:
    assert judge.expected_isa(("sse4_1", "avx", "avx2")) == "avx2"
    assert judge.expected_isa(("sse4_1", "avx", "avx2", "avx512f")) == "avx2"
    assert judge.expected_isa(("sse4_1", "avx")) == "avx"
    assert judge.expected_isa(("sse4_1",)) == "sse41"
    assert judge.expected_isa(("asimd", "sve")) == ""


def test_other_targets_skip_onednn() -> None:
    assert judge.ONEDNN.skip(replace(PLAN, target="cpu", checks=())) == "not a check of target cpu"
    assert judge.ONEDNN.skip(PLAN) == ""


def allocator(malloc: str = TCMALLOC, faults: float = 0.0, stderr: str = "", ended: Ended = SUCCEEDED) -> Judgement:
    return judge.tcmalloc(Results((Faults(faults),), ended, replace(ENVIRONMENT, malloc=malloc), stderr), PLAN)


def test_tcmalloc_passes_only_with_all_three_proofs() -> None:
    assert allocator().status == "pass"
    assert allocator(malloc="/usr/lib/x86_64-linux-gnu/libc.so.6").status == "fail"
    assert allocator(malloc="/opt/tcmalloc/libc.so.6").status == "fail"
    assert allocator(malloc="").status == "fail"
    assert [allocator(faults=faults).status for faults in (999.0, 1000.0)] == ["pass", "fail"]
    assert allocator(stderr=f"x\n{REFUSED}\n").detail == REFUSED
    assert allocator(ended=Ended(139, "")).status == "fail"
    assert judge.TCMALLOC.skip(replace(PLAN, allocator="")) == "the plan's allocator is unknown"


def test_each_part_of_the_numerics_has_a_limit_and_each_limit_a_part() -> None:
    """The parts import TensorFlow, so their names are read from the source."""
    source = Path(judge.__file__).with_name("numerics.py").read_text(encoding="utf-8")
    checks = source[source.index("\nCHECKS: ") :].partition("\n)\n")[0]
    assert re.findall(r'^    \("(\w+)", ', checks, re.MULTILINE) == [*judge.LIMITS]


def test_numerics_within_their_limits_pass() -> None:
    assert numerics(parts(training=0.12, matmul=7e-7)).status == "pass"


@pytest.mark.parametrize("error", [2e-5, None, -1.0])
def test_one_wrong_result_fails(error: float | None) -> None:
    check = numerics(parts(matmul=error))
    assert check.status == "fail"
    assert check.detail.startswith("matmul")


def test_a_known_defect_warns_in_its_releases_only() -> None:
    wrong = parts(max_pool_nchw_after_nhwc=3.4)
    known = replace(PLAN, known_defects=("max_pool_nchw_after_nhwc",))
    assert numerics(wrong, plan=known).status == "warn"
    assert numerics(wrong).status == "fail"
    assert numerics(parts(max_pool_nchw_after_nhwc=3.4, exp=1.0), plan=known).status == "fail"


def test_only_optional_parts_may_be_absent() -> None:
    def absent(name: str) -> list[Part]:
        return [Part(p.name, None, "not in this build: x") if p.name == name else p for p in parts()]

    assert numerics(absent("xla")).status == numerics(absent("quantized")).status == "pass"
    assert numerics(absent("matmul")).status == "fail"


def test_missing_parts_fail() -> None:
    check = numerics(parts()[:3], Ended(139, ""))
    assert (check.status, check.detail) == ("fail", "ended before softmax: killed by SIGSEGV")
    assert numerics(parts()[:3]).status == "fail"


def test_the_guard_s_exit_code_is_recognised() -> None:
    check = judge.guard(Ended(86, "tfbuild: this CPU lacks avx512f"))
    assert (check.status, check.detail) == ("fail", "tfbuild: this CPU lacks avx512f")
    assert judge.guard(Ended(127, "no such file")).status == "fail"
    assert judge.guard(SUCCEEDED).status == "pass"


def test_cuda_is_skipped_without_a_gpu_and_judged_with_one() -> None:
    plan = replace(PLAN, target="cuda", checks=("cuda",))
    assert judge.CUDA.skip(PLAN) == "not a check of target mkl"
    assert judge.CUDA.skip(plan) == ""
    rows: list[tuple[GpuConvolution | None, Ended, str]] = [
        (GpuConvolution(0, "", None), SUCCEEDED, "skip"),
        (GpuConvolution(1, "/device:GPU:0", 1e-6), SUCCEEDED, "pass"),
        (GpuConvolution(1, "/device:CPU:0", 1e-6), SUCCEEDED, "fail"),
        (GpuConvolution(1, "/device:GPU:0", 0.1), SUCCEEDED, "fail"),
        (GpuConvolution(1, "/device:GPU:0", None), SUCCEEDED, "fail"),
        (None, Ended(1, ""), "fail"),
    ]
    for record, ended, status in rows:
        assert judge.cuda(Results((record,) if record else (), ended), plan).status == status


def test_the_numbers_behind_a_check_have_the_names_by_which_reports_are_read() -> None:
    gpu = judge.cuda(Results((GpuConvolution(1, "/device:GPU:0", 1e-3),), SUCCEEDED), PLAN)
    named = [[one.name for one in check.measures] for check in (importing(), allocator(), gpu)]
    assert named == [["import_s", "peak_mib"], ["faults_per_40_mib_tensor"], ["gpu_error"]]


def test_skipped_checks_never_count_as_passed() -> None:
    assert judge.verdict([]) == judge.verdict(["skip"]) == "fail"
    assert judge.verdict(["skip", "pass"]) == "pass"
    assert judge.verdict(["pass", "warn"]) == "warn"
    assert judge.verdict(["pass", "warn", "fail"]) == "fail"


def test_the_smoke_benchmark_imports_only_the_standard_library_numpy_and_tensorflow() -> None:
    folder = Path(judge.__file__).parent
    imported = {
        match[1]
        for path in folder.glob("*.py")
        for match in re.finditer(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
    }
    # setuptools' distutils, for Pythons without one.
    assert imported - sys.stdlib_module_names <= {"numpy", "tensorflow", "smoke", "_distutils_hack"}


@pytest.mark.parametrize("release", ["2.14.0", "2.21.0"])
def test_each_line_of_recorded_output_has_exactly_the_fields_of_its_record(release: str) -> None:
    lines = (DATA / f"start-{release}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [row.keys() for row in records] == [
        {field.name for field in fields(kind)} for kind in (Environment, TensorFlow)
    ]
    assert [json.loads(encode(record)) for record in start(release)] == records
