"""What follows from a benchmark beyond its ratios, and what was seen beside them."""

import time
from dataclasses import replace

import pytest

from tests.test_bench_report import case
from tfbuild.bench import allocators, evidence, experiments, findings
from tfbuild.benches import guards
from tfbuild.benches.found import Peak
from tfbuild.engine import WorkerDied


def test_memory_has_a_line_or_nothing_is_said_of_it() -> None:
    line = [(n, 600 + 0.25 * n) for n in (1, 256, 1024, 4096)]
    found = findings.memory("dense", line, 16000.0)
    assert found is not None
    assert found.values["mib_per_item"] == pytest.approx(0.25)
    assert found.values["memory_limit"] == pytest.approx(62000, rel=0.02), "what else is in memory counts too"
    assert found.text.startswith("dense: an item of a batch takes 256 KiB beside 600 MiB (seen up to batch 4096)")
    assert findings.memory("dense", [], 16000.0) is None
    assert findings.memory("dense", line[:1], 16000.0) is None
    assert findings.memory("dense", [(1, 600.0), (4096, 650.0)], 16000.0) is None, "too little to tell from noise"
    assert findings.memory("dense", [(1, 600.0), (256, 1600.0), (1024, 1700.0)], 16000.0) is None, "no line"


def climbed(
    mib_per_item: float, *, limit: float = 24000.0, fails_at: int = 10**9, dies: bool = False
) -> list[tuple[int, float]]:
    def ask(batch: int) -> Peak:
        if batch >= fails_at and dies:
            raise WorkerDied("killed", exit_code=137, stderr_tail="")
        if batch >= fails_at:
            return Peak(items=0, peak=0.0, limit=limit, reason="ResourceExhaustedError")
        return Peak(items=batch, peak=500 + mib_per_item * batch, limit=limit)

    points, found = evidence.climb(ask, [1, 2, 64, 16], time.monotonic() + 60)
    assert found == limit or not points
    return points


def test_memory_is_looked_at_until_it_has_grown_and_no_further() -> None:
    assert [n for n, _ in climbed(0.5)] == [1, 64, 256, 1024, 4096]
    assert [n for n, _ in climbed(16.0)] == [1, 64], "1024 MiB more at once"
    assert [n for n, _ in climbed(4.0, limit=4000.0)] == [1, 64], "the next one would take more than a quarter"
    assert [n for n, _ in climbed(0.5, fails_at=300)] == [1, 64, 256]
    assert [n for n, _ in climbed(0.5, fails_at=300, dies=True)] == [1, 64, 256], "what was seen before it died stands"
    assert len(climbed(0.0)) == evidence.MOST_POINTS
    assert climbed(0.5, fails_at=1) == []


VERBOSE = """\
onednn_verbose,v1,info,oneDNN v3.7.3 (commit x)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with bfloat16
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,src,attr,,mb8,0.1
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,src,attr,,mb8,0.1
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,src,attr,,mb8,0.1
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src,attr,,mb8,0.1
2026-11-21 10:00:00 something else
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core,undef,src,attr,,8x8,0.1
"""


def test_the_primitives_that_ran_are_told_by_kind() -> None:
    found = evidence.primitives("on: ", VERBOSE)
    assert found.values == {"convolution": 2, "matmul": 1}
    assert found.text == (
        "on: oneDNN on threadpool (Intel AVX-512 with bfloat16) runs convolution: jit:avx512_core, "
        "brg_conv_fwd:avx512_core; matmul: brg_matmul:avx512_core"
    )
    off = evidence.primitives("off: ", "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src,attr,,mb8,0.1\n")
    assert (off.text, off.values) == ("off: no primitive of oneDNN runs", {})


def test_the_first_call_of_each_arm_is_told_where_it_matters() -> None:
    measured = case(0.5, name="adds")
    arms = tuple(replace(arm, first=0.5 + index, nodes=7 * index) for index, arm in enumerate(measured.arms))
    (found,) = findings.of("xla", [replace(measured, arms=arms)])
    assert found.text == "adds, the first call: baseline 0.50 s, arm 1.50 s (7 nodes)"
    assert findings.of("xla", [replace(measured, arms=arms[:1])]) == ()


def test_only_the_allocators_need_what_an_image_may_lack() -> None:
    assert [row.name for row in experiments.known() if allocators.wanted(row)] == ["allocator"]
    (row,) = experiments.select(["allocator"], quick=True)
    preloaded = [arm.env["LD_PRELOAD"] for case in row.cases(True) for arm in row.arms(case)]
    assert preloaded, "one case is quick"
    assert not [path for path in preloaded if allocators.FOLDER in path], "--quick reaches for no network"


def test_faults_and_memory_of_each_allocator_are_told() -> None:
    measured = case(0.5, name="large")
    glibc, other = measured.arms
    arms = (replace(glibc, faults=10241.0, rss=534.0), replace(other, faults=0.0, rss=582.0))
    (found,) = findings.of("allocator", [replace(measured, arms=arms)])
    assert found.text == (
        "large, page faults a call and memory: baseline 10241 faults and 534 MiB, arm 0 faults and 582 MiB"
    )
    assert findings.of("allocator", [measured]) == (), "nothing was counted"


def test_what_a_workload_does_before_its_time_is_nobody_else_s_load() -> None:
    alone = guards.beside(0.5, (0.3, 0.5), (0.1, 0.15))
    assert alone == pytest.approx(0.15), "0.35 s of the 0.5 s were its own first batches"
    assert guards.beside(0.8, (0.3, 0.5), (0.1, 0.15)) == pytest.approx(0.25), "a third of the others' 0.3 s"
    assert guards.beside(0.8, (0.3, 0.5), (0.3, 0.5)) == pytest.approx(0.8), "all of it was timed"
    assert guards.beside(0.4, (0.3, 0.5), (0.1, 0.15)) == pytest.approx(0.15), "ticks of 10 ms are coarse"
