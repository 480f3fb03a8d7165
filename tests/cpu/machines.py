"""Recorded machines (tests/data/machines.toml) as the text that their kernels print."""

from functools import cache
from pathlib import Path

from tfbuild import facts
from tfbuild.facts import Facts

DATA = Path(__file__).parents[1] / "data"


class Machine(Facts, frozen=True):
    name: str
    microarchitecture: str
    flags: str
    level: str
    model: str = ""
    vendor: str = ""
    family: str = ""
    model_number: str = ""
    stepping: str = ""
    implementer: str = ""
    architecture: str = ""
    part: str = ""
    variant: str = ""
    hides: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        return "aarch64" if self.implementer else "x86_64"

    def core(self, number: int = 0, *, without: tuple[str, ...] = ()) -> str:
        """One processor's block in /proc/cpuinfo."""
        flags = " ".join(flag for flag in self.flags.split() if flag not in without)
        if self.arch == "aarch64":
            return (
                f"processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: {flags}\n"
                f"CPU implementer\t: {self.implementer}\n"
                f"CPU architecture: {self.architecture}\nCPU variant\t: {self.variant}\nCPU part\t: {self.part}\n"
            )
        return (
            f"processor\t: {number}\nvendor_id\t: {self.vendor}\ncpu family\t: {self.family}\n"
            f"model\t\t: {self.model_number}\nmodel name\t: {self.model}\nstepping\t: {self.stepping}\n"
            f"flags\t\t: {flags}\n"
        )

    def cpuinfo(self, cores: int = 2) -> str:
        return "\n".join(self.core(number) for number in range(cores)) + "\n"


class Recording(Facts, frozen=True):
    """A text in any format, and the answer; `refused`: there is none."""

    name: str
    source: str
    text: str
    features: str = ""
    level: str = ""
    vendor: str = ""
    model: str = ""
    microarchitecture: str = ""
    refused: bool = False


class MachineTable(Facts, frozen=True):
    machine: tuple[Machine, ...]
    recording: tuple[Recording, ...]


@cache
def table() -> MachineTable:
    return facts.parse((DATA / "machines.toml").read_text(encoding="utf-8"), MachineTable, "machines.toml")


def machines() -> tuple[Machine, ...]:
    return table().machine


def recordings() -> tuple[Recording, ...]:
    return table().recording


def machine(name: str) -> Machine:
    return next(row for row in machines() if row.name == name)


def recording(name: str) -> Recording:
    return next(row for row in recordings() if row.name == name)
