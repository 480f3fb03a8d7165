"""The settings that an image already has: its environment, or TensorFlow's default where it sets nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from tfbuild import facts
from tfbuild.errors import TfbuildError
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.measure import experiments
from tfbuild.measure.records import BenchReport, CaseResult
from tfbuild.plan import find_release

ONEDNN, PRELOAD = "TF_ENABLE_ONEDNN_OPTS", "LD_PRELOAD"
SET = "the image sets it"
DEFAULT = "TensorFlow's default on this CPU"


@dataclass(frozen=True, kw_only=True)
class CurrentSettings:
    """Known values by variable ("": not set). `chosen`: variables whose value TensorFlow chose itself."""

    values: dict[str, str]
    chosen: frozenset[str] = frozenset()

    def value(self, env: Mapping[str, str], name: str) -> str:
        """Return the value in a process with this environment on top of the image's ("" in it: unset)."""
        own = self.values.get(name, "")
        return own if name in self.chosen and not env.get(name) else env.get(name, own)

    def updated(self, env: Mapping[str, str]) -> "CurrentSettings":
        """Return a copy with these variables set."""
        return CurrentSettings(values={**self.values, **env}, chosen=self.chosen - env.keys())

    def holds(self, env: Mapping[str, str]) -> bool:
        """Whether this environment agrees with what is in place or advised, as far as that is known."""
        return all(alike(name, value, self.values.get(name, value)) for name, value in env.items())

    def why(self, names: Iterable[str]) -> str:
        """Say who chose the values of these variables: the image, or TensorFlow itself."""
        return DEFAULT if self.chosen & set(names) else SET


@cache
def variable_names() -> frozenset[str]:
    """Return the variables that experiments set. No others are read, because the environment may hold secrets."""
    variables: set[str] = set()
    for row in experiments.known():
        for case in row.case:
            variables |= case.env.keys() | {name for arm in row.arms(case) for name in arm.env}
    return frozenset(variables)


def recorded_settings(lines: Iterable[str]) -> dict[str, str]:
    """Return, of an image's NAME=VALUE lines, the variables that experiments set."""
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, _, value in pairs if value and name in variable_names()}


def read_settings(report: BenchReport) -> CurrentSettings:
    """Read the settings from the environment in a report; nothing is known of a report without one."""
    if report.image.env is None:
        return CurrentSettings(values={})
    values = {**dict.fromkeys(variable_names(), ""), **report.image.env}
    if not values[ONEDNN] and (chosen := onednn(report)):
        return CurrentSettings(values=values | {ONEDNN: chosen}, chosen=frozenset({ONEDNN}))
    return CurrentSettings(values=values)


def onednn(report: BenchReport) -> str:
    """Return TensorFlow's default for oneDNN, by the facts on its release; "" if they do not say."""
    try:
        release = find_release(report.software.tensorflow, newer=True)
        rows = releases.rows(table().onednn, release, report.host.machine)
    except TfbuildError:
        return ""
    known = {facts.squeeze(flag) for flag in report.host.flags}
    if len(rows) != 1 or not rows[0].compiled:
        return ""
    return "1" if any(facts.squeeze(name) in known for name in rows[0].on_with) else "0"


def common_env(case: CaseResult) -> dict[str, str]:
    """Return what the case sets for all of its arms."""
    first, *others = (arm.env for arm in case.arms)
    return {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}


def alike(name: str, first: str, second: str) -> bool:
    """Whether the values are equal; for a library to preload, whether it is the same one, in any folder."""
    return _library(first) == _library(second) if name == PRELOAD else first == second


def _library(value: str) -> str:
    """Return "libtcmalloc_minimal" for /usr/lib/libtcmalloc_minimal.so.4; of a list of paths, use the last."""
    return value.rpartition(":")[2].rpartition("/")[2].partition(".so")[0]
