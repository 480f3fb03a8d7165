"""What an image has before anything is advised: what it sets, or TensorFlow's own choice where it does not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from tfbuild.context.labels import read_labels
from tfbuild.errors import TfbuildError
from tfbuild.facts import releases, targets
from tfbuild.facts.release_table import table
from tfbuild.measure import experiments
from tfbuild.measure.records import BenchReport

ONEDNN, PRELOAD = "TF_ENABLE_ONEDNN_OPTS", "LD_PRELOAD"
SET = "the image sets it"
DEFAULT = "TensorFlow's own choice on this CPU"


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """Values by variable, as far as they are known ("": not set); `chosen`: those that TensorFlow chooses itself."""

    values: dict[str, str]
    chosen: frozenset[str] = frozenset()

    def value(self, env: Mapping[str, str], name: str) -> str:
        """What holds in a process with this environment beside the image's: "" in it stands for not set."""
        own = self.values.get(name, "")
        return own if name in self.chosen and not env.get(name) else env.get(name, own)

    def and_(self, env: Mapping[str, str]) -> "InPlace":
        """The same with these set."""
        return InPlace(values={**self.values, **env}, chosen=self.chosen - env.keys())

    def why(self, names: Iterable[str]) -> str:
        return DEFAULT if self.chosen & set(names) else SET


@cache
def names() -> frozenset[str]:
    """The variables that some arm or case of an experiment sets: no others are looked at, an image may hold secrets."""
    found: set[str] = set()
    for row in experiments.known():
        for case in row.case:
            found |= case.env.keys() | {name for arm in row.arms(case) for name in arm.env}
    return frozenset(found)


def recorded(lines: Iterable[str]) -> dict[str, str]:
    """For a report: those of an image's NAME=VALUE lines that the experiments set."""
    told = (line.partition("=") for line in lines)
    return {name: value for name, _, value in told if value and name in names()}


def of(report: BenchReport) -> InPlace:
    """By the environment that the report has of its image; where it is an older one, by the image's labels."""
    env = report.image.env
    if env is None:
        env = _older(report)
    values = {**dict.fromkeys(names() if report.image.env is not None else (), ""), **env}
    if ONEDNN in values and not values[ONEDNN] and (chosen := onednn(report)):
        return InPlace(values=values | {ONEDNN: chosen}, chosen=frozenset({ONEDNN}))
    return InPlace(values=values)


def _older(report: BenchReport) -> dict[str, str]:
    """What tfbuild's labels promise, and whose malloc was found; nothing of what neither tells."""
    name = read_labels(report.image.labels).own.get("target")
    target = targets.find(name or "")
    switch = {} if name is None else {ONEDNN: "1" if target and target.onednn else ""}
    malloc = report.software.malloc.rpartition("/")[2]
    own = malloc.startswith(("libc.", "libc-", "ld-musl"))
    return switch | ({PRELOAD: "" if own else malloc} if malloc else {})


def onednn(report: BenchReport) -> str:
    """What TensorFlow takes where the switch is not set, by the facts on its release; "" where they do not tell."""
    try:
        rows = releases.rows(table().onednn, report.software.tensorflow, report.host.machine)
    except TfbuildError:
        return ""
    known = {flag.replace("_", "").lower() for flag in report.host.flags}
    if len(rows) != 1 or not rows[0].compiled:
        return ""
    return "1" if any(name.replace("_", "").lower() in known for name in rows[0].on_with) else "0"


def alike(name: str, first: str, second: str) -> bool:
    """The same value; of a library to preload the same one, wherever it lies."""
    return _library(first) == _library(second) if name == PRELOAD else first == second


def _library(value: str) -> str:
    """libtcmalloc_minimal of /usr/lib/libtcmalloc_minimal.so.4; the last one, where the value names places to look."""
    return value.rpartition(":")[2].rpartition("/")[2].partition(".so")[0]
