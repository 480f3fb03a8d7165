"""What follows from an experiment's numbers beyond a ratio. Pure."""

from collections.abc import Callable, Sequence

from tfbuild.bench.results import CaseResult, Finding


def of(name: str, cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    derive = DERIVED.get(name)
    return tuple(finding for case in cases for finding in derive(case)) if derive else ()


DERIVED: dict[str, Callable[[CaseResult], Sequence[Finding]]] = {}
