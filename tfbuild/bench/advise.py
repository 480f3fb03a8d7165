"""A report as settings for its machine: an env file and lines of code, each with its measured gain. Nothing without."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tfbuild.bench import report as reporting
from tfbuild.bench.results import FASTER, SLOWER, ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.errors import UsageError

# Whose arms differ in the environment alone, so that the environment is what the gain is due to.
SETTINGS = ("onednn", "allocator", "threads")
# Whose arm takes away what the image sets.
TUNING = "tuning"
# Of findings.py's values.
KNEE = "measured_90%"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """`env`: what to set ("": to leave empty); `code`: a line instead; `gains`: where it was seen, and how sure."""

    experiment: str
    env: dict[str, str]
    code: str
    gains: tuple[str, ...]


def advise(report: BenchReport) -> tuple[Advice, ...]:
    """What gained somewhere and lost nowhere; per case where it is a line of code, which can be put in one place."""
    return tuple(advice for row in report.experiments for advice in _of(row, report))


def _of(row: ExperimentResult, report: BenchReport) -> Iterator[Advice]:
    if row.name in SETTINGS:
        yield from _settings(row, report)
    elif row.name == TUNING:
        # An env file can empty a variable, but not take it away, which is what was measured.
        yield from (replace(one, env={}) for one in _settings(row, report))
    elif row.name == "batchsize":
        yield from _batch_sizes(row)
    else:
        yield from _code(row)
        yield from _baseline(row)


def _settings(row: ExperimentResult, report: BenchReport) -> Iterator[Advice]:
    """The best arm that is faster in one case or more and slower in none, nor in another experiment."""
    gains: dict[str, list[float]] = {}
    for name in dict.fromkeys(arm.name for case in row.cases for arm in case.arms):
        arms = [(case, arm) for case in row.cases for arm in case.arms if arm.name == name and arm.effect]
        lost = any(arm.effect == SLOWER or arm.same is False for _, arm in arms)
        if arms and not lost and not any(_lost(report, _set(*one)) for one in arms):
            gains[name] = [_gain(case, arm) for case, arm in arms if arm.effect == FASTER]
    best = max(gains, key=lambda name: max(gains[name], default=0.0), default="")
    if best and gains[best]:
        seen = [(case, arm) for case in row.cases for arm in case.arms if arm.name == best and arm.effect == FASTER]
        env, code = _set(*seen[0]), seen[0][1].code
        told = tuple(_told(case, arm) for case, arm in seen)
        yield Advice(experiment=row.name, env=env, code=code or _assigned(env), gains=told)


def _set(case: CaseResult, arm: ArmResult) -> dict[str, str]:
    """What the arm has in its environment and the baseline has not; what the case sets is none of the gain's doing.

    Where a value is a list of places to look in, the benchmark's own come first.
    """
    base = case.arms[0].env
    return {name: value.rpartition(":")[2] for name, value in arm.env.items() if base.get(name) != value}


def _lost(report: BenchReport, env: dict[str, str]) -> bool:
    """Whether these settings alone made anything slower, in whichever experiment."""
    others = [(case, arm) for row in report.experiments for case in row.cases for arm in case.arms[1:]]
    return any(
        arm.effect == SLOWER and _set(case, arm) == env and _work(arm) == _work(case.arms[0]) for case, arm in others
    )


def _work(arm: ArmResult) -> tuple[object, ...]:
    return arm.workload, arm.params, arm.image


def _assigned(env: dict[str, str]) -> str:
    """The same in a program, where TensorFlow is what reads it: the loader reads LD_PRELOAD before any program runs."""
    lines = [f'os.environ["{name}"] = "{value}"' for name, value in sorted(env.items()) if name.startswith("TF_")]
    return "; ".join(lines) + "  # before TensorFlow is imported" if lines else ""


def _code(row: ExperimentResult) -> Iterator[Advice]:
    """For each case the line that gained most there; with the cases in which the same line lost."""
    gains: dict[str, list[str]] = {}
    for case in row.cases:
        better = [arm for arm in case.arms if arm.effect == FASTER and arm.code and arm.same is not False]
        if better:
            best = max(better, key=lambda arm: _gain(case, arm))
            gains.setdefault(best.code, []).append(_told(case, best))
    for code, told in gains.items():
        lost = [(case, arm) for case in row.cases for arm in case.arms if arm.code == code and arm.effect == SLOWER]
        yield Advice(
            experiment=row.name,
            env={},
            code=code,
            gains=(*told, *(f"but not where it was slower: {_told(case, arm)}" for case, arm in lost)),
        )


def _baseline(row: ExperimentResult) -> Iterator[Advice]:
    """The baseline's own line, where each other arm that was measured lost somewhere and none of them won."""
    cases = [case for case in row.cases if case.arms and case.arms[0].code]
    others = [(case, arm) for case in cases for arm in case.arms[1:] if arm.effect]
    lost = [(case, arm) for case, arm in others if arm.effect == SLOWER]
    losers = {arm.name for _, arm in lost}
    if lost and all(arm.effect != FASTER and arm.name in losers for _, arm in others):
        told = tuple(_told(case, arm) for case, arm in lost)
        yield Advice(experiment=row.name, env={}, code=cases[0].arms[0].code, gains=told)


def _batch_sizes(row: ExperimentResult) -> Iterator[Advice]:
    """The smallest batch with nine tenths of the best rate, where it is shown to be faster than the smallest one."""
    for case in row.cases:
        told = [found for found in row.findings if found.text.startswith(f"{case.name}:")]
        size = next((int(found.values[KNEE]) for found in told if KNEE in found.values), 0)
        found = next((arm for arm in case.arms if arm.items == size and arm.effect == FASTER), None)
        if found:
            gains = (_told(case, found), *(finding.text for finding in told))
            yield Advice(experiment=row.name, env={}, code=f"batch_size = {size}", gains=gains)


def _gain(case: CaseResult, arm: ArmResult) -> float:
    ratio = reporting.judged(arm, case)
    return ratio.median if ratio else 0.0


def _told(case: CaseResult, arm: ArmResult) -> str:
    ratio = reporting.judged(arm, case)
    time = "CPU time" if case.metric == "cpu" else "wall time"
    unsure = _sure(case)
    return f"{arm.name} {reporting.spelled(ratio)} in {time}: {case.name}{f' ({unsure})' if unsure else ''}"


def _sure(case: CaseResult) -> str:
    return reporting.caveat(case) or f"{case.clean} of {len(case.rounds)} rounds undisturbed"


def env_file(found: tuple[Advice, ...]) -> str:
    """For `docker run --env-file`, which takes whole lines as comments."""
    lines = []
    for advice in found:
        if advice.env:
            lines += [f"# {advice.experiment}: {gain}" for gain in advice.gains]
            lines += [f"{name}={value}" for name, value in sorted(advice.env.items())]
    return "\n".join(lines) + ("\n" if lines else "")


def lines_of_code(found: tuple[Advice, ...]) -> str:
    lines = []
    for advice in found:
        if advice.code:
            lines += [f"# {advice.experiment}: {gain}" for gain in advice.gains] + [advice.code]
    return "\n".join(lines) + ("\n" if lines else "")


def run(report: str, env: str, *, json: bool) -> None:
    """`invoke advise`: the env file (to `env` where it is given) and the lines of code, on stdout."""
    found = advise(reporting.read(Path(report)))
    if env:
        try:
            Path(env).write_text(env_file(found), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--env-file {env}: {error}", hint="name a file that can be written") from error
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return
    sys.stdout.write(f"# environment\n{env_file(found)}\n# code\n{lines_of_code(found)}")
    if not found:
        print("nothing in this report is shown to gain anything", file=sys.stderr)
