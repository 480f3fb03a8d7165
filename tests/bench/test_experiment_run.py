"""Cases that were cut get the rest of the time and go on where they were. Nothing is started."""

import io
import random
import re
from typing import cast

import pytest

from tests import clock
from tests.clock import Stopped
from tests.measure.test_evaluate import made_up
from tests.measure.test_rounds import MACHINE, sides
from tfbuild.bench import session
from tfbuild.bench.session import ROUNDS, CaseGroup, ExperimentRun, Session, Settings
from tfbuild.engine import Engine
from tfbuild.measure import rounds
from tfbuild.measure.experiments import Arm, Case, Experiment, Need
from tfbuild.measure.rounds import RoundLimits
from tfbuild.measure.workers import Pool
from tfbuild.util.progress import Progress, Step

POOL = cast(Pool, None)


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    return clock.stop(monkeypatch, rounds, session)


def row(*needs: Need) -> Experiment:
    arms = (Arm(name="baseline"), Arm(name="arm"))
    cases = tuple(Case(name=f"case {turn}", workload="w", needs=need, arm=arms) for turn, need in enumerate(needs))
    return Experiment(name="x", question="-", compares="-", changes="-", source="-", case=cases)


def tell(_: str) -> None: ...


def group(count: int, *, truncated: bool = True) -> CaseGroup:
    """Return a case with so many rounds."""
    one = row("")
    members = CaseGroup(one, one.case)
    (comparison,) = members.begin(MACHINE, POOL, tell)
    comparison.sides, comparison.rounds, comparison.truncated = sides(1, 1, 1), made_up(0.5, count), truncated
    members.keep([comparison])
    return members


def test_what_time_alone_ended_goes_on_where_it_was() -> None:
    cut = group(8)
    assert (cut.cut, cut.progress) == (True, (2, 8))
    cut.runs[0].sides[0].home = 3
    (again,) = cut.begin(MACHINE, POOL, tell)
    assert again is cut.runs[0]
    assert not again.truncated
    assert all(side.home == 0 for side in again.sides), "its worker has forgotten the workloads"
    again.rounds += made_up(0.5, 7, seed=2)
    cut.keep([again])
    assert not cut.cut
    assert (cut.results[0].status, len(cut.results[0].rounds)) == ("measured", 15)


def test_where_an_arm_was_never_ready_all_is_made_anew() -> None:
    cut = group(8, truncated=False)
    cut.runs[0].sides[1].give_up("truncated", "the time budget ended before it was ready")
    cut.results = []
    cut.keep(cut.runs)
    assert cut.cut
    assert cut.begin(MACHINE, POOL, tell)[0] is not cut.runs[0]


def test_an_arm_that_is_lost_in_the_rest_of_the_time_keeps_what_it_had() -> None:
    cut = group(8)
    (again,) = cut.begin(MACHINE, POOL, tell)
    again.rounds += made_up(0.5, 7, seed=2)
    again.sides[1].give_up("failed", "its process was lost")
    before = cut.results
    cut.keep([again])
    assert cut.results is before


def test_what_cannot_run_here_is_not_what_time_cut_short() -> None:
    reasons: dict[Need, tuple[str, str]] = {
        "gpu": ("skipped", "TensorFlow in this image sees no GPU"),
        "": ("truncated", "the experiment's time budget ended before it began"),
    }
    for need, (status, reason) in reasons.items():
        one = row(need)
        members = CaseGroup(one, one.case)
        members.not_begun(MACHINE)
        assert (members.results[0].status, members.results[0].reason) == (status, reason)
        assert members.cut is (status == "truncated")


def test_an_experiment_has_the_best_status_of_its_cases() -> None:
    lacking = CaseGroup(row("gpu"), row("gpu").case)
    lacking.not_begun(MACHINE)
    for groups, status in (
        ((lacking, group(15, truncated=False)), "measured"),
        ((lacking, group(8)), "truncated"),
        ((group(8), group(15, truncated=False)), "truncated"),
        ((lacking,), "skipped"),
    ):
        assert ExperimentRun(row(""), [*groups]).result().status == status


class RecordingSession(Session):
    """A session that adds `adds` rounds for each request, and records the requests."""

    adds: int
    requests: list[tuple[str, int]]

    def _measure(self, group: CaseGroup, pool: Pool, limits: RoundLimits, shuffled: random.Random, step: Step) -> None:
        (comparison,) = group.begin(self.machine, pool, tell)
        left = limits.rounds - len(comparison.rounds)
        self.requests.append((group.row.name, left))
        comparison.sides = sides(1, 1, 1)
        comparison.rounds += made_up(0.5, min(left, self.adds), seed=len(self.requests)) if self.adds else []
        comparison.truncated = left > self.adds
        group.keep([comparison])


def recording_session(adds: int, *groups: CaseGroup) -> RecordingSession:
    settings, progress = Settings(mode="budget", budget=60), Progress(io.StringIO())
    session = RecordingSession(cast(Engine, None), settings, MACHINE, progress, lambda: None, 0.0)
    session.adds, session.requests = adds, []
    session.runs = [ExperimentRun(one.row, [one]) for one in groups]
    return session


def not_begun() -> CaseGroup:
    one = row("")
    members = CaseGroup(one, one.case)
    members.not_begun(MACHINE)
    return members


def test_the_rest_of_the_time_goes_to_what_has_least_and_only_to_what_was_cut(stopped: Stopped) -> None:
    whole, cut, bare = group(15, truncated=False), group(8), not_begun()
    run = recording_session(10, whole, cut, bare)
    stream = io.StringIO()
    run.progress = Progress(stream)
    run.end = stopped.now + 60
    run._rest(Pool(cast(Engine, None)))
    assert run.requests == [("x", 15), ("x", 7), ("x", 5)], (
        "the one without a round first, and once more for its last five"
    )
    assert re.findall(r"^bench: x, continued: (\w+) ", stream.getvalue(), re.MULTILINE) == ["truncated", "done", "done"]
    done = [row.result() for row in run.runs]
    assert [row.status for row in done] == ["measured"] * 3
    assert [row for row in done if len(row.cases[0].rounds) != ROUNDS["budget"]] == []


def test_the_rest_ends_where_it_brings_nothing_further_or_is_over(stopped: Stopped) -> None:
    run = recording_session(0, group(8))
    run.end = stopped.now + 60
    run._rest(Pool(cast(Engine, None)))
    assert len(run.requests) == 1
    run = recording_session(10, group(8))
    run.end = stopped.now + session.LEAST_SECONDS - 1
    run._rest(Pool(cast(Engine, None)))
    assert run.requests == []
    assert run.runs[0].result().status == "truncated"


def test_what_is_measured_is_shown_with_the_time_that_is_left(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CaseGroup, "begin", lambda *given: given[-1]("busy") or [])
    run = recording_session(0)
    run.end = stopped.now + 45
    limits, cases = RoundLimits(rounds=0, end=run.end, latest=run.end), CaseGroup(row(""), row("").case)
    with run.progress.step("x") as step:
        Session._measure(run, cases, Pool(cast(Engine, None)), limits, random.Random(0), step)
    assert step.detail == "45.0 s left: busy"
