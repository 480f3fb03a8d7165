"""A report as settings for its machine: an env file and lines of code, each with its measured gain. Nothing without."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tfbuild.bench import report as reporting
from tfbuild.bench.results import FASTER, SLOWER, ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.errors import UsageError

# Whose arms differ in the environment alone, so that the environment is what the gain is due to.
SETTINGS = ("onednn", "allocator", "threads")


@dataclass(frozen=True, kw_only=True)
class Advice:
    """`env`: what to set ("": to leave empty); `code`: a line instead; `gains`: where it was seen, and how sure."""

    experiment: str
    env: dict[str, str]
    code: str
    gains: tuple[str, ...]


def advise(report: BenchReport) -> tuple[Advice, ...]:
    """What gained somewhere and lost nowhere; per case where it is a line of code, which can be put in one place."""
    return tuple(advice for row in report.experiments for advice in _of(row))


def _of(row: ExperimentResult) -> Iterator[Advice]:
    if row.name in SETTINGS:
        yield from _settings(row)
    else:
        yield from _code(row)
    for case in row.cases if row.name == "batchsize" else ():
        for text in [found.text for found in row.findings if found.text.startswith(case.name)]:
            yield Advice(experiment=row.name, env={}, code=f"# {text}", gains=(_sure(case),))


def _settings(row: ExperimentResult) -> Iterator[Advice]:
    """The best arm that is faster in one case or more and slower in none."""
    gains: dict[str, list[float]] = {}
    for name in dict.fromkeys(arm.name for case in row.cases for arm in case.arms):
        arms = [(case, arm) for case in row.cases for arm in case.arms if arm.name == name and arm.effect]
        if arms and not any(arm.effect == SLOWER or arm.same is False for _, arm in arms):
            gains[name] = [_gain(case, arm) for case, arm in arms if arm.effect == FASTER]
    best = max(gains, key=lambda name: max(gains[name], default=0.0), default="")
    if best and gains[best]:
        seen = [(case, arm) for case in row.cases for arm in case.arms if arm.name == best and arm.effect == FASTER]
        first, arm = seen[0]
        # What the case itself sets is the same for all arms, and none of the gain's doing.
        env = {name: value for name, value in arm.env.items() if first.arms[0].env.get(name) != value}
        yield Advice(experiment=row.name, env=env, code="", gains=tuple(_told(case, arm) for case, arm in seen))


def _code(row: ExperimentResult) -> Iterator[Advice]:
    for case in row.cases:
        better = [arm for arm in case.arms if arm.effect == FASTER and arm.code and arm.same is not False]
        if better:
            best = max(better, key=lambda arm: _gain(case, arm))
            yield Advice(experiment=row.name, env={}, code=best.code, gains=(_told(case, best),))


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
