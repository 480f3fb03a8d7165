"""Findings beyond a benchmark's ratios, and what was observed beside them."""

import random
import time
from dataclasses import replace

import pytest

from tests.bench.test_advise import sides
from tests.bench.test_report import case, sizes
from tests.measure.test_evaluate import sample
from tfbuild.bench import evidence, findings, wording
from tfbuild.engine import WorkerDied
from tfbuild.in_container.bench import worker
from tfbuild.in_container.bench.worker import Peak
from tfbuild.measure import records
from tfbuild.measure.records import CaseResult, Interval, Round, Value


def test_memory_is_reported_only_if_it_fits_a_line() -> None:
    line = [(n, 600 + 0.25 * n) for n in (1, 256, 1024, 4096)]
    finding = findings.memory("dense", line, 16000.0)
    assert finding is not None
    assert finding.values["mib_per_item"] == pytest.approx(0.25)
    assert finding.values["memory_limit"] == pytest.approx(62000, rel=0.02), "what else is in memory counts too"
    assert "256 KiB in addition to 600 MiB (measured up to batch 4096)" in finding.text
    pictures = findings.memory("ResNet-50", [(1, 700.0), (64, 7000.0)], 16000.0)
    assert pictures is not None
    assert "takes 102,000 KiB" in pictures.text, "100 MiB"
    assert findings.memory("dense", [], 16000.0) is None
    assert findings.memory("dense", line[:1], 16000.0) is None
    assert findings.memory("dense", [(1, 600.0), (4096, 650.0)], 16000.0) is None, "too little to tell from noise"
    assert findings.memory("dense", [(1, 600.0), (256, 1600.0), (1024, 1700.0)], 16000.0) is None, "no line"


def climbed(
    mib_per_item: float, *, limit: float = 24000.0, fails_at: int = 10**9, dies: bool = False
) -> list[tuple[int, float]]:
    def ask(batch: int) -> Peak:
        if batch >= fails_at and dies:
            raise WorkerDied("killed")
        if batch >= fails_at:
            return Peak(items=0, peak=0.0, limit=limit, reason="ResourceExhaustedError")
        return Peak(items=batch, peak=500 + mib_per_item * batch, limit=limit)

    points, available = evidence.peaks_by_batch(ask, [1, 2, 64, 16], time.monotonic() + 3600)
    assert available == limit or not points
    return points


def test_batches_grow_until_memory_has_grown_and_no_further() -> None:
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


def test_the_primitives_that_ran_are_listed_by_kind() -> None:
    finding = evidence.primitives("on: ", VERBOSE)
    assert finding.values == {"convolution": 2, "matmul": 1}
    assert finding.text == (
        "on: oneDNN on threadpool (Intel AVX-512 with bfloat16) runs convolution: jit:avx512_core, "
        "brg_conv_fwd:avx512_core; matmul: brg_matmul:avx512_core"
    )
    off = evidence.primitives("off: ", "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src,attr,,mb8,0.1\n")
    assert (off.text, off.values) == ("off: no primitive of oneDNN runs", {})


def test_the_first_call_of_each_arm_is_listed() -> None:
    measured = case(0.5, name="adds")
    arms = tuple(replace(arm, first=0.5 + index, nodes=7 * index) for index, arm in enumerate(measured.arms))
    (finding,) = findings.derive("first_call", [replace(measured, arms=arms)])
    assert finding.text.endswith(": baseline 0.50 s, arm 1.50 s (7 nodes)")
    assert finding.values == {"first call of baseline": 0.5, "first call of arm": 1.5}
    assert findings.derive("first_call", [replace(measured, arms=arms[:1])]) == ()


def test_faults_and_memory_of_each_allocator_are_listed() -> None:
    measured = case(0.5, name="large")
    glibc, other = measured.arms
    arms = (replace(glibc, faults=10241.0, rss=534.0), replace(other, faults=0.0, rss=582.0))
    (finding,) = findings.derive("page_faults", [replace(measured, arms=arms)])
    assert finding.values == {
        "faults of baseline": 10241.0, "faults of arm": 0.0, "MiB of baseline": 534.0, "MiB of arm": 582.0,
    }  # fmt: skip
    assert findings.derive("page_faults", [measured]) == (), "nothing was counted"


@pytest.mark.parametrize(
    ("application", "env", "text"),
    [
        ("", {}, "x: baseline 10 sequences/s, arm 2,500 sequences/s"),
        ("ResNet50", {}, "x: baseline 10 images/s, arm 2,500 images/s"),
        ("", {"A": "1"}, "x: baseline 10 sequences/s in 500 MiB, arm 2,500 sequences/s in 600 MiB"),
    ],
)
def test_rates_have_the_memory_of_separate_processes(application: str, env: dict[str, str], text: str) -> None:
    base, arm = case(0.5).arms
    base = replace(base, seconds=0.1, rss=500.0, params={"application": application}, env={})
    arms = (base, replace(arm, seconds=1 / 2504, rss=600.0, env=env))
    (finding,) = findings.derive("items_per_second", [replace(case(0.5, name="x"), arms=arms)])
    assert finding.text == text
    assert finding.values == {"baseline": 10.0, "arm": pytest.approx(2504)}


@pytest.mark.parametrize(
    ("low", "high", "limit"),
    [
        (1.0, 1.09, "compute-bound"),
        (1.1, 1.3, "balanced"),
        (1.31, 9.0, "input-bound"),
        (1.0, 1.1, "not sure, from compute-bound to balanced"),
        (1.2, 1.31, "not sure, from balanced to input-bound"),
    ],
)
def test_both_ends_of_an_interval_say_what_limits_a_training(low: float, high: float, limit: str) -> None:
    assert findings.bottleneck(low, high) == limit


@pytest.mark.parametrize("kind", ["against_default", "batch_size", "first_call", "input_bound", "items_per_second"])
def test_of_arms_that_were_never_timed_no_kind_concludes_anything(kind: str) -> None:
    measured = sizes(1e-3, 1e-4, 1, 2, 4) if kind == "batch_size" else case(0.5, metric="wall")
    timed = tuple(replace(arm, params={**arm.params, "step": True}) for arm in measured.arms)
    assert findings.derive(kind, [replace(measured, arms=timed)])
    never = tuple(replace(arm, seconds=None, cpu=None, wall=None, effect="") for arm in timed)
    assert findings.derive(kind, [replace(measured, arms=never)]) == ()


def test_work_before_the_timed_part_is_not_foreign_load() -> None:
    alone = worker.busy_while_timed(0.5, (0.3, 0.5), (0.1, 0.15))
    assert alone == pytest.approx(0.15), "0.35 s of the 0.5 s were its own first batches"
    assert worker.busy_while_timed(0.8, (0.3, 0.5), (0.1, 0.15)) == pytest.approx(0.25), "a third of the others' 0.3 s"
    assert worker.busy_while_timed(0.8, (0.3, 0.5), (0.3, 0.5)) == pytest.approx(0.8), "all of it was timed"
    assert worker.busy_while_timed(0.4, (0.3, 0.5), (0.1, 0.15)) == pytest.approx(0.15), "ticks of 10 ms are coarse"


# --- no more is said than the rounds show ----------------------------------------------------------------------------


def stepped(median: float, low: float, high: float, *, effect: str = records.SLOWER) -> str:
    """Return the finding for a pipeline with which the step takes so many times as long."""
    measured = case(1.0, metric="wall")
    ratio = Interval(median=1 / median, low=1 / high, high=1 / low, coverage=0.96)
    arm = replace(measured.arms[1], params={"step": True}, wall=ratio, effect=effect)
    (finding,) = findings.derive("input_bound", [replace(measured, arms=(measured.arms[0], arm))])
    return finding.text


def test_a_bottleneck_is_named_only_where_the_whole_interval_says_so() -> None:
    assert stepped(1.5, 1.4, 1.6) == "arm: 1.50 [1.40, 1.60] times the step alone: input-bound"
    assert stepped(0.98, 0.95, 1.05, effect=records.NO_DIFFERENCE).endswith(": compute-bound")
    wide = stepped(1.5, 1.4, 1.6, effect=records.NO_DIFFERENCE)
    assert wide.endswith("not sure: the step alone varies as much"), "the band is as wide"


def threads(*ratios: tuple[float, str]) -> str:
    measured = case(1.0, metric="wall", name="conv")
    arms = [
        replace(
            measured.arms[1],
            name=f"intra-op {n}",
            effect=effect,
            wall=Interval(median=x, low=x - 0.1, high=x + 0.1, coverage=0.96),
        )
        for n, (x, effect) in enumerate(ratios, 1)
    ]
    (finding,) = findings.derive("against_default", [replace(measured, arms=(measured.arms[0], *arms))])
    return finding.text


def test_a_number_of_threads_is_faster_by_its_interval_or_not_at_all() -> None:
    same = records.NO_DIFFERENCE
    assert threads((0.8, records.SLOWER), (1.2, records.FASTER), (1.32, records.FASTER)) == (
        "conv: faster than the default: intra-op 3 x1.32 [1.22, 1.42], intra-op 2 x1.20 [1.10, 1.30]"
    ), "which of two is the best is nothing that was compared"
    none_faster = threads((1.32, same), (0.9, same))
    assert "no setting measurably beats the default (the best: intra-op 1 x1.32 [1.22, 1.42], the" in none_faster
    assert "the default against itself x1.0" in none_faster


@pytest.mark.parametrize(
    ("sized", "text"),
    [
        (sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128, spread=0.001), "batch 64 gives 90% of the best rate"),
        (sizes(1e-2, 1e-5, 1, 2, 4, 8, 16, 32), "batch 32 gives 90% of the best rate measured (up to 32); the rate"),
    ],
)
def test_the_smallest_batch_that_is_large_enough_is_named(sized: CaseResult, text: str) -> None:
    (finding,) = findings.derive("batch_size", [sized])
    assert text in finding.text
    assert finding.values["low"] == finding.values["batch"] == finding.values["high"]
    assert ("still be growing" in finding.text) == (finding.values["batch"] == 32)


def test_a_batch_size_has_the_range_that_its_noise_leaves() -> None:
    (finding,) = findings.derive("batch_size", [sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128, spread=0.3)])
    low, middle, high = (finding.values[name] for name in ("low", "batch", "high"))
    assert low < middle < high
    assert f"batch 64 ({low:.0f} to {high:.0f}) gives" in finding.text
    assert findings.derive("batch_size", [sizes(1e-3, 1e-4, 1, 2)]) == (), "hardly measured"


# --- what follows from two arms that are no baseline ----------------------------------------------------------------


def timed(*arms: tuple[str, float, dict[str, Value]], metric: str = "wall") -> CaseResult:
    """Return a case of pipeline arms: name, seconds for an item, and parameters."""
    measured = sides("x", *((name, seconds, {}) for name, seconds, _ in arms), metric=metric)
    results = (
        replace(arm, workload="synthetic" if arm.name == "step" else "pipeline", params=arms[n][2], seconds=arms[n][1])
        for n, arm in enumerate(measured.arms)
    )
    return replace(measured, arms=tuple(results))


def test_fused_is_compared_with_unfused_in_the_layout_that_is_not_the_baseline() -> None:
    nchw: dict[str, Value] = {"layout": "NCHW"}
    measured = timed(
        ("unfused NHWC", 2.0, {"fused": False}),
        ("fused NHWC", 1.0, {"fused": True}),
        ("unfused NCHW", 5.0, {"fused": False, **nchw}),
        ("fused NCHW", 1.0, {"fused": True, **nchw}),
        metric="cpu",
    )
    (finding,) = findings.derive("fused", [measured])
    assert finding.text.startswith("x: fused NCHW against unfused NCHW: faster, x")
    assert finding.text.endswith(" in CPU time")
    assert finding.values["low"] < finding.values["median"] < finding.values["high"]
    assert finding.values["median"] == pytest.approx(5.0, rel=0.02)
    assert findings.derive("fused", [replace(measured, arms=measured.arms[:3])]) == ()
    wrong = replace(measured.arms[3], same=False)
    assert findings.derive("fused", [replace(measured, arms=(*measured.arms[:3], wrong))]) == ()


def overlapped(step: float, read: float, both: float, **knobs: Value) -> str:
    others: dict[str, Value] = {**knobs, "calls": 9}
    arms = ("both", both, {"step": True, **knobs}), ("input", read, knobs), ("other input", 2 * read, others)
    (finding,) = findings.derive("input_bound", [timed(("step", step, {}), *arms)])
    limit, _, rates = finding.text.partition("alone: ")[2].rpartition(" (")
    assert rates == f"{1 / step:.0f} items/s computed, {1 / read:.0f} read, {1 / both:.0f} both)"
    return limit


def test_input_and_step_that_share_the_processors_are_no_input_bound() -> None:
    """Measured on two cores: 969 items/s computed, 2137 read, 635 both; one after the other it would be 667."""
    shared = overlapped(1 / 969, 1 / 2137, 1 / 635, prefetch=-1)
    assert shared.startswith("the CPUs are the limit: input and step share them; the step takes the larger part")
    assert "(69%)" in shared
    assert "the input takes the larger part" in overlapped(0.4, 1.0, 1.4, prefetch=2)
    assert overlapped(0.6, 1.0, 1.05, prefetch=2) == "input-bound", "the step costs nothing beside it"
    assert overlapped(1.0, 0.05, 1.04, prefetch=2) == "compute-bound", "the input takes nothing to share"
    assert overlapped(0.05, 1.0, 1.0, prefetch=2) == "input-bound", "a GPU's step: there was no more to save"
    assert overlapped(1.0, 1.0, 2.0).startswith("input-bound: input and step take turns")


@pytest.mark.parametrize(
    ("int8", "rounds", "noise", "limit"),
    [
        (4.0, 9, 1.02, "memory bandwidth is the limit"),
        (2.0, 9, 1.02, "memory bandwidth is not the only limit"),
        (4.0, 9, 2.0, "not sure whether memory bandwidth is the limit"),
        (3.4, 9, 1.1, "not sure whether memory bandwidth is the limit"),
    ],
)
def test_memory_is_the_limit_where_every_width_is_read_equally_fast(
    int8: float, rounds: int, noise: float, limit: str
) -> None:
    """Read a quarter of the bytes in a quarter of the time, or in half of it; an item is 2**20 numbers."""
    taken = {"float32": 2**20 * 4 / 10e9, "int8": 2**20 * 4 / 10e9 / int8}
    rng = random.Random(1)
    measured = tuple(
        Round(samples={name: sample(one * rng.uniform(1, noise)) for name, one in taken.items()}, foreign=0.0)
        for _ in range(rounds)
    )
    arms = tuple(
        replace(arm, name=name, workload="bandwidth", params={"dtype": name}, items=1, seconds=one)
        for arm, (name, one) in zip(case(1.0).arms, taken.items(), strict=True)
    )
    read = replace(case(1.0), metric="wall", arms=arms, rounds=measured, clean=rounds)
    (finding,) = findings.derive("bandwidth", (read,))
    assert finding.values["float32"] == pytest.approx(10.0, rel=noise - 0.98)
    assert limit in finding.text


def test_findings_carry_the_caveat_of_their_case() -> None:
    noisy = replace(case(0.5, metric="wall", name="conv"), noisy=True, clean=3)
    (finding,) = findings.derive("items_per_second", [noisy])
    assert finding.text.endswith("(noisy: 3 of 15 rounds undisturbed)")
    off = Interval(median=1.28, low=1.17, high=1.42, coverage=0.98)
    assert wording.caveat(replace(case(0.5), band=off)) == "the baseline differs from itself: x1.28 [1.17, 1.42]"
