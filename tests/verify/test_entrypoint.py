"""The entry point of an image is the one of its labels, and each lesser CPU of the trials tells a lax one."""

import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.context.test_planned import planned
from tfbuild import facts, plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned, labels_of
from tfbuild.cpu.detection import parse
from tfbuild.plan import Request
from tfbuild.verify.checks import guard

STOPPED = 86
REQUESTS = {
    "an official wheel": Request(release="2.21.0", target="mkl", wheel="official"),
    "a level": Request(release="2.14.1", target="mkl", cpu="x86-64-v4"),
    "CUDA": Request(release="2.16.2", target="cuda", cpu="x86-64-v3", compute_capabilities="8.0,9.0"),
    "features that no kernel prints": Request(release="2.20.0", target="cpu", cpu="graniterapids", compiler="clang-19"),
    "aarch64": Request(release="2.20.0", target="cpu", cpu="neoverse-v2", platform="linux/arm64"),
    "an old release": Request(release="2.12.0", target="cpu", cpu="haswell", python="3.11"),
}


def of(request: Request) -> tuple[plan.Build, Planned]:
    build = plan.select(request, None)
    return build, Planned.from_labels("x", labels_of(build), build.platform.removeprefix("linux/"))


def script_of(build: plan.Build) -> str:
    return dockerfile.files(build)["entrypoint.sh"]


def rendered(labelled: Planned) -> str:
    """The entry point that the labels ask for."""
    return dockerfile.render_entrypoint(labelled.check(), header="#")


@pytest.mark.parametrize("name", REQUESTS)
def test_the_labels_alone_tell_the_entry_point(name: str) -> None:
    build, labelled = of(REQUESTS[name])
    script = script_of(build)
    assert guard.same(script.encode(), rendered(labelled))
    assert not guard.same(script.encode(), rendered(replace(labelled, id="2.0.0-x")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compare avx", "compare sse2 # avx"),
        ("exit 86", "true"),
        ("#!/bin/sh\n", "#!/bin/sh\nexec python; "),
        ("set -eu", "set -eu\n\n"),
        ('exec "$@"\n', 'exec "$@"'),
        (
            "\n#\n",
            "\nexec python\n",
        ),
    ],
)
def test_any_other_script_is_told_from_it(old: str, new: str) -> None:
    build, labelled = of(REQUESTS["an official wheel"])
    script = script_of(build)
    assert old in script
    assert not guard.same(script.replace(old, new, 1).encode(), rendered(labelled))


def test_only_a_comment_may_stand_where_the_command_is_named() -> None:
    build, labelled = of(REQUESTS["an official wheel"])
    lines = script_of(build).split("\n")
    text = rendered(labelled)
    assert guard.same("\n".join([lines[0], "# any other command", *lines[2:]]).encode(), text)
    assert not guard.same("\n".join([lines[0], 'exec "$@"', *lines[2:]]).encode(), text)


def decide(script: str, trial: guard.Trial, folder: Path) -> int:
    """Run an entry point on a trial's CPU; the script reads the file `cpuinfo` of its folder."""
    (folder / "cpuinfo").write_bytes(trial.cpuinfo)
    file = folder / "entrypoint"
    file.write_text(script)
    file.chmod(0o755)
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run([file, "true"], env=env, check=False, stderr=subprocess.DEVNULL).returncode


def wrong(labelled: Planned, script: str, folder: Path, seed: int = 0) -> set[str]:
    """What the trials find: the features that are not asked for, and "full" where a fit CPU is refused."""
    return {
        trial.lacks or "full"
        for trial in guard.trials(labelled, random.Random(seed))
        if (decide(script, trial, folder) == STOPPED) != bool(trial.lacks)
    }


@pytest.mark.parametrize("name", ["an official wheel", "aarch64"])
def test_the_rendered_entry_point_passes_all_trials(name: str, tmp_path: Path) -> None:
    build, labelled = of(REQUESTS[name])
    script = script_of(build).replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    assert [wrong(labelled, script, tmp_path, seed) for seed in range(2)] == [set(), set()]
    required = facts.cpuinfo_names(build.instruction_set.features)
    lacking = {trial.lacks for trial in guard.trials(labelled, random.Random(1)) if trial.lacks}
    assert lacking == set(required)


def test_an_entry_point_that_asks_for_less_is_found_by_what_it_leaves_out(tmp_path: Path) -> None:
    build, labelled = of(REQUESTS["an official wheel"])
    script = script_of(build).replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    required = " ".join(facts.cpuinfo_names(build.instruction_set.features))
    assert f"\ncompare {required}\n" in script
    without = required.replace(" popcnt", "")
    assert wrong(labelled, script.replace(f"\ncompare {required}\n", f"\ncompare {without}\n"), tmp_path) == {"popcnt"}
    lax = script.replace(f"\ncompare {required}\n", "\ncompare sse2\n")
    assert wrong(labelled, lax, tmp_path) == set(required.split()), "every CPU has sse2"
    first_core = script.replace("cores[name] == lists", "cores[name]")
    assert wrong(labelled, first_core, tmp_path) == set(required.split())


def test_an_entry_point_that_asks_for_more_is_found(tmp_path: Path) -> None:
    build, labelled = of(REQUESTS["an official wheel"])
    script = script_of(build).replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    assert wrong(labelled, script.replace("\ncompare avx ", "\ncompare avx avx2 "), tmp_path) == {"full"}


def test_trials_come_in_an_order_that_nobody_foresees() -> None:
    orders = {tuple(trial.lacks for trial in guard.trials(planned(), random.Random(seed))) for seed in range(5)}
    assert len(orders) > 1


def test_a_trial_s_description_is_one_that_a_kernel_writes() -> None:
    """tfbuild's own reader finds the CPU in it, and each core with its features."""
    _, labelled = of(REQUESTS["an official wheel"])
    trials = guard.trials(labelled, random.Random(3))
    required = set(facts.cpuinfo_names(tuple(sorted(labelled.features))))
    every = {row.cpuinfo for row in facts.features("x86_64") if row.cpuinfo}
    lists = [
        [set(line.partition(":")[2].split()) for line in trial.cpuinfo.decode().splitlines() if line[:5] == "flags"]
        for trial in trials
    ]
    for trial, cores in zip(trials, lists, strict=True):
        assert len(cores) == 2
        assert (required - cores[0]) | (required - cores[1]) == ({trial.lacks} if trial.lacks else set())
        assert not trial.lacks or (trial.lacks in cores[0]) != (trial.lacks in cores[1]), "one core alone"
        assert parse(trial.cpuinfo.decode(), origin="a trial").arch == "x86_64"
    full = [cores[0] & every for trial, cores in zip(trials, lists, strict=True) if not trial.lacks]
    assert sorted(map(len, full)) == [len(required), len(every)], "exactly what is labelled, and all there is"


def test_descriptions_differ_each_time() -> None:
    _, labelled = of(REQUESTS["an official wheel"])
    drawn = [{trial.lacks: trial.cpuinfo for trial in guard.trials(labelled, random.Random(n))} for n in range(9)]
    lines = [one["avx"].decode().splitlines() for one in drawn]
    flags = [[line.split() for line in text if line.startswith("flags")] for text in lines]
    assert len({tuple(cores[0]) for cores in flags}) == 9, "other names, in another order"
    assert {"avx" in cores[0] for cores in flags} == {True, False}, "any core may be the one that lacks it"


FULL, NO_AVX, NO_F16C = (guard.Trial(cpuinfo=b"", lacks=lacks) for lacks in ("", "avx", "f16c"))


@pytest.mark.parametrize(
    ("codes", "difference", "status", "told"),
    [
        ((0, 86, 86), "", "pass", "starts Python"),
        ((0, 86, 0), "", "fail", "the entry point starts Python on a CPU that lacks f16c"),
        ((0, 86, 1), "", "fail", "the entry point exits with code 1 on a CPU that lacks f16c"),
        ((86, 86, 86), "", "fail", "the entry point exits with code 86 on a CPU with all labelled features"),
        ((0, 86, guard.TIMED_OUT), "", "fail", "the entry point does not end in time"),
        ((0, 86, 86), "x differs", "warn", "x differs: tfbuild 0.0.1 made it, so it was judged only by what it does"),
        ((0, 0, 86), "x differs", "fail", "the entry point starts Python on a CPU that lacks avx"),
        ((127, 127, 127), "", "pass", "this engine cannot replace /proc/cpuinfo, so it was not tried on lesser CPUs"),
        ((127, 127, 127), "x differs", "fail", "x differs; this engine cannot replace /proc/cpuinfo"),
        ((127, 86, 86), "", "fail", "the entry point exits with code 127 on a CPU with all labelled features"),
    ],
)
def test_exit_codes_decide(codes: tuple[int, ...], difference: str, status: str, told: str) -> None:
    check = guard.judge_trials([FULL, NO_AVX, NO_F16C], codes, difference, "0.0.1")
    assert check.status == status
    assert told in check.detail
