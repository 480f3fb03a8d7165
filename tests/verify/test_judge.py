"""Recorded real output passes; every way in which it can be wrong is recognised."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.rows import each
from tfbuild.in_container.smoke import judge, probes
from tfbuild.in_container.smoke.judge import Ended, Judgement, Plan, Results
from tfbuild.in_container.smoke.probes import (
    Computed,
    Environment,
    Faults,
    GpuConvolution,
    OneDnnConvolution,
    TensorFlow,
)
from tfbuild.in_container.smoke.references import PARTS, usable
from tfbuild.measure import probe

DATA = Path(__file__).parents[1] / "data" / "smoke"
SUCCEEDED = Ended(0, "")
PLAN = Plan(
    release="2.21.0", python="3.11", compiler="clang-18", target="mkl", threading="threadpool", allocator="tcmalloc",
    checks=("onednn",),
)  # fmt: skip
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.10"
REFUSED = "ERROR: ld.so: object '/nowhere/libtcmalloc.so.4' from LD_PRELOAD cannot be preloaded (x): ignored."
UNDEFINED = "ImportError: a.so: undefined symbol: b"
UNLOADED = """Failed to load the native TensorFlow runtime.
See https://www.tensorflow.org/install/errors for some common causes and solutions.
If you need help, create an issue at https://github.com/tensorflow/tensorflow/issues and include the entire stack trace.
"""


def start(release: str) -> tuple[Environment, TensorFlow]:
    environment, tensorflow = probe.parse_records(
        (DATA / f"start-{release}.jsonl").read_text(), (Environment, TensorFlow)
    )
    return environment, tensorflow


ENVIRONMENT, TENSORFLOW = start("2.21.0")


def importing(
    tensorflow: TensorFlow | None = TENSORFLOW, ended: Ended = SUCCEEDED, plan: Plan = PLAN, numpy: str = "2.4.6"
) -> Judgement:
    environment = replace(ENVIRONMENT, numpy=numpy)
    sent = (environment, tensorflow) if tensorflow else (environment,)
    return judge.importing(Results(sent, ended), plan)


@pytest.mark.parametrize("release", ["2.14.0", "2.21.0"])
def test_recorded_output_of_real_images_passes(release: str) -> None:
    environment, tensorflow = start(release)
    plan = Plan(release=release, python="3.11", target="mkl", threading="threadpool")
    assert judge.importing(Results((environment, tensorflow), SUCCEEDED), plan).status == "pass"
    features = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "FMA")
    assert judge.unused_features((DATA / f"start-{release}.stderr.txt").read_text()) == features
    assert judge.unused_features("WARNING: All log messages before absl::InitializeLog() is called") == ()
    assert onednn((DATA / f"onednn-{release}.txt").read_text()).status == "pass"
    off = (DATA / f"onednn-off-{release}.txt").read_text()
    # Its lines about gemm_api prove nothing.
    assert "gemm_api" in off
    assert onednn(off) == Judgement("fail", "no convolution ran in oneDNN: it is off")


@each(
    "plan, detail",
    [
        (Plan(release="2.14.0"), "TensorFlow is 2.21.0, not 2.14.0"),
        (Plan(python="3.12"), "Python is 3.11.2, not 3.12"),
        (Plan(target="cuda", checks=("cuda",)), "it is not built with CUDA, but the target is cuda"),
        (Plan(compiler="gcc-18"), "TensorFlow was compiled by clang-18, but its label says gcc-18"),
    ],
)
def test_a_tensorflow_other_than_the_planned_one_fails(plan: Plan, detail: str) -> None:
    assert (importing(plan=plan).status, importing(plan=plan).detail) == ("fail", detail)


def test_the_local_part_of_a_tree_s_own_wheel_is_no_other_release() -> None:
    tree = replace(TENSORFLOW, version="2.22.0-dev0+selfbuilt")
    assert importing(tree, plan=Plan(release="2.22.0-dev0")).status == "pass"
    assert importing(tree, plan=Plan(release="2.22.0-dev1")).status == "fail"


@each("release, status", [("2.23.0-dev20261026", "pass"), ("2.22.0-dev0", "fail"), ("2.21.0", "fail")])
def test_only_a_nightly_wheel_for_cpus_may_be_compiled_with_cuda(release: str, status: str) -> None:
    with_cuda = replace(TENSORFLOW, version=release, cuda_build=True)
    assert importing(with_cuda, plan=replace(PLAN, release=release)).status == status


@each(
    "label, said, right",
    [
        ("clang-16", "Ubuntu Clang 16.0.6 (++20230710042046+7cbf1a259152-1~exp1~20230710162136.105)", True),
        ("gcc-9", "9.3.1 20200408", True),
        ("", "9.3.1 20200408", True),
        ("gcc-9", "", True),
        ("gcc-12", "9.3.1 20200408", False),
        ("clang-12", "12.2.0", False),
    ],
)
def test_the_compiler_is_what_its_macro_says(label: str, said: str, right: bool) -> None:
    check = importing(replace(TENSORFLOW, compiler=said), plan=replace(PLAN, compiler=label))
    assert check.status == ("pass" if right else "fail")


@each(
    "ended, why",
    [
        (Ended(-4, ""), "killed by SIGILL (illegal instruction): it holds instructions that this CPU lacks"),
        (Ended(132, ""), "killed by SIGILL (illegal instruction): it holds instructions that this CPU lacks"),
        (Ended(137, ""), "killed by SIGKILL, which the kernel sends when memory runs out"),
        (Ended(192, ""), "killed by SIGRTMAX"),
        (Ended(178, ""), "killed by signal 50"),
        (Ended(255, "x"), "exit code 255: x"),
        (Ended(1, "a\n  TypeError: b\n\n"), "exit code 1: TypeError: b"),
        (Ended(1, ""), "exit code 1: it printed nothing"),
        # TensorFlow's own words follow the cause, by which known failures are recognised.
        (Ended(1, f"{UNDEFINED}\n\n\n{UNLOADED}"), f"exit code 1: {UNDEFINED}"),
        (Ended(1, "Graph execution error:\n\nJIT\n\t [[{{node x}}]] [Op:__inference_f_1]\n"), "exit code 1: JIT"),
        (Ended(0, "", judge.TOO_LONG), "did not end within 120 s"),
        (Ended(0, "noise"), ""),
    ],
)
def test_causes_of_death_are_named(ended: Ended, why: str) -> None:
    assert ended.why == why
    if why:
        assert importing(ended=ended).status == "fail", "whatever it sent before"
        assert importing(None, ended).detail == f"NumPy 2.4.6; {why}"
        assert importing(None, ended, numpy="").detail == why


def test_the_advice_at_the_end_of_a_long_message_of_the_entry_point_is_kept() -> None:
    said = f"tfbuild: this CPU lacks{40 * ' avx512f'}, and this image (x) was compiled for y; use the image z"
    assert judge.guard(Ended(judge.GUARD_EXIT, f"{said}\n")).detail == said


def onednn(text: str, *, finite: bool = True, plan: Plan = PLAN, code: int = 0) -> Judgement:
    ran = OneDnnConvolution(finite=finite)
    return judge.onednn(Results((ran,), Ended(code, text), ENVIRONMENT), plan)


RUNTIME = "onednn_verbose,info,cpu,runtime:threadpool\n"


@each(
    "implementation, status",
    [
        ("brgconv:avx512_core", "pass"),
        ("jit:avx512_core_vnni", "pass"),
        *((name, "fail") for name in ("ref:any", "", "gemm:jit", "jit:avx2", "brgconv:sse41")),
    ],
)
def test_a_convolution_has_to_run_in_code_for_this_cpu(implementation: str, status: str) -> None:
    line = f"onednn_verbose,exec,cpu,convolution,{implementation},x\n"
    assert onednn(RUNTIME + line).status == status
    assert onednn(RUNTIME + line.replace("verbose", "verbose,1700000.25")).status == status, "with a time stamp"
    assert onednn(RUNTIME + line.replace("verbose", "verbose,v1,primitive")).status == status
    good = "onednn_verbose,exec,cpu,convolution,brg:avx512_core,x\n"
    assert onednn(RUNTIME + good + line).status == status, "every convolution counts, not only the first"
    assert onednn(RUNTIME + good, code=139).status == "fail"
    assert onednn(RUNTIME + line, finite=False).status == "fail"
    assert onednn(RUNTIME + line.replace("cpu", "gpu")).status == "fail"
    assert onednn(RUNTIME + line, plan=replace(PLAN, threading="openmp")).status == "fail"


def test_the_reference_code_that_arm_gets_since_2_16_is_a_warning() -> None:
    line = RUNTIME + "onednn_verbose,exec,cpu,convolution,gemm:ref,x\n"
    arm = replace(ENVIRONMENT, cpu_flags=("asimd", "sve"))
    assert onednn(line).status == "fail"
    assert judge.onednn(Results((OneDnnConvolution(finite=True),), Ended(0, line), arm), PLAN).status == "warn"


@each(
    "flags, isa",
    [
        ("sse4_1 avx avx2", "avx2"),
        ("sse4_1 avx avx2 avx512f", "avx2"),
        ("sse4_1 avx", "avx"),
        ("sse4_1", "sse41"),
        ("asimd sve", ""),
    ],
)
def test_the_instruction_set_expected_of_onednn_follows_the_cpu(flags: str, isa: str) -> None:
    assert judge.expected_isa(flags.split()) == isa


def allocator(malloc: str = TCMALLOC, faults: float = 0.0, stderr: str = "", ended: Ended = SUCCEEDED) -> Judgement:
    return judge.tcmalloc(Results((Faults(faults),), ended, replace(ENVIRONMENT, malloc=malloc), stderr), PLAN)


def test_tcmalloc_passes_only_with_all_three_proofs() -> None:
    assert allocator().status == "pass"
    assert allocator(malloc="/usr/lib/x86_64-linux-gnu/libc.so.6").status == "fail"
    assert allocator(malloc="/opt/tcmalloc/libc.so.6").status == "fail"
    assert [allocator(faults=faults).status for faults in (499.0, 500.0, -1.0)] == ["pass", "fail", "fail"]
    assert allocator(stderr=f"x\n{REFUSED}\n").detail == REFUSED
    assert allocator(ended=Ended(139, "")).status == "fail"
    assert judge.TCMALLOC.skip(replace(PLAN, allocator="")) == "the plan's allocator is unknown"


# --- numerics ---------------------------------------------------------------------------------------------------------

RIGHT = tuple(Computed(name, tuple(part.results())) for name, part in PARTS.items())


@pytest.fixture(autouse=True)
def computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain Python needs a third of a second for all parts, which `numerics` compares with each time."""
    for part in RIGHT:
        known = replace(PARTS[part.name], results=partial(list, part.values))
        monkeypatch.setitem(PARTS, part.name, known)


def numerics(*wrong: Computed, ended: Ended = SUCCEEDED, known: tuple[str, ...] = ()) -> Judgement:
    given = {part.name: part for part in wrong}
    records = tuple(given.get(part.name, part) for part in RIGHT)
    return judge.numerics(Results(records, ended), replace(PLAN, known_defects=known))


def off(name: str, by: float) -> Computed:
    """A part whose largest number is off by so many times itself."""
    values = [*next(part.values for part in RIGHT if part.name == name)]
    place = max(range(len(values)), key=lambda index: abs(values[index]))
    values[place] += by * (abs(values[place]) or 1.0)
    return Computed(name, tuple(values))


@each("name", PARTS)
def test_each_part_is_right_within_its_limit(name: str) -> None:
    limit = PARTS[name].limit
    assert numerics(off(name, limit * 0.9)).status == "pass"
    assert (check := numerics(off(name, limit * 1.1 + 1e-9))).status == "fail"
    assert check.detail.startswith(f"{name} is off by ")
    assert numerics(Computed(name, ())).detail.startswith(f"{name} gave something that is not a number")
    assert PARTS[name].error([0.0]) == math.inf or len(PARTS[name].results()) == 1
    values = PARTS[name].results()
    assert PARTS[name].error(2 * values) == 0, "computed twice"
    lacking = numerics(Computed(name, (), "not in this build: x"))
    assert lacking.status == ("pass" if PARTS[name].optional else "fail")


def test_a_known_defect_warns_in_its_releases_only() -> None:
    wrong, name = off("max_pool_nchw_after_nhwc", 3.4), "max_pool_nchw_after_nhwc"
    assert numerics(wrong, known=(name,)).status == "warn"
    assert numerics(wrong).status == "fail"
    assert numerics(wrong, off("exp", 1.0), known=(name,)).status == "fail"


def test_missing_parts_fail() -> None:
    check = judge.numerics(Results(RIGHT[:3], Ended(139, "")), PLAN)
    assert (check.status, check.detail) == ("fail", "ended before softmax: killed by SIGSEGV")
    assert judge.numerics(Results(RIGHT[:3], SUCCEEDED), PLAN).status == "fail"
    assert numerics(ended=Ended(139, "")).status == "fail"


# --- the rest ---------------------------------------------------------------------------------------------------------


@each(
    "record, ended, status",
    [
        (GpuConvolution(0, "", None), SUCCEEDED, "skip"),
        (GpuConvolution(0, "", None), Ended(0, "gpu_device.cc:2341] Cannot dlopen some GPU libraries. Please"), "fail"),
        (GpuConvolution(1, "/device:GPU:0", 1e-6), SUCCEEDED, "pass"),
        (GpuConvolution(1, "/device:CPU:0", 1e-6), SUCCEEDED, "fail"),
        (GpuConvolution(1, "/device:GPU:0", 0.5), SUCCEEDED, "fail"),
        (GpuConvolution(1, "/device:GPU:0", None), SUCCEEDED, "fail"),
        (GpuConvolution(1, "/device:GPU:0", 1e-6), Ended(139, ""), "fail"),
        (None, SUCCEEDED, "fail"),
        (None, Ended(86, "tfbuild: no GPU here (compute capability 7.5) runs this image's kernels"), "skip"),
    ],
)
def test_a_gpu_is_judged_if_there_is_one(record: GpuConvolution | None, ended: Ended, status: str) -> None:
    assert judge.cuda(Results((record,) if record else (), ended), PLAN).status == status


@each("number, good", [(0.0, True), (-1e11, True), (1e12, False), (-math.inf, False), (math.nan, False)])
def test_a_number_that_the_host_refuses_is_not_sent(number: float, good: bool) -> None:
    assert usable(number) == good
    gpu = judge.cuda(Results((GpuConvolution(1, "/device:GPU:0", number if good else None),), SUCCEEDED), PLAN)
    assert (gpu.detail == f"/device:GPU:0 {judge.UNUSABLE}") == (not good)


@each(
    "statuses, verdict",
    [
        ("pass skip", "pass"),
        ("pass warn skip", "warn"),
        ("pass warn fail", "fail"),
        ("skip skip", "fail"),
        ("", "fail"),
    ],
)
def test_the_verdict_is_the_worst(statuses: str, verdict: str) -> None:
    assert judge.verdict(statuses.split()) == verdict


def test_installed_packages_are_read_from_folder_names(tmp_path: Path) -> None:
    for name in ("numpy-1.26.4.dist-info", "gast-0.2.2-py3.11.egg-info", "numpy", "venv/numpy-2.1.0.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    assert probes.packages([str(tmp_path / "venv"), str(tmp_path), ""]) == ("gast==0.2.2", "numpy==2.1.0")


def test_the_numbers_behind_a_check_have_the_names_by_which_reports_are_read() -> None:
    gpu = judge.cuda(Results((GpuConvolution(1, "/device:GPU:0", 1e-3),), SUCCEEDED), PLAN)
    named = [[one.name for one in check.measures] for check in (importing(), allocator(), gpu, numerics())]
    assert named == [["import_s", "peak_mib"], ["faults_per_40_mib_tensor"], ["gpu_error"], [*PARTS]]
