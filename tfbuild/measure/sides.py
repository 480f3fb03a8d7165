"""The sides of a comparison: a side is an arm on this machine, with its image, environment and parameters."""

from dataclasses import dataclass, field, replace

from msgspec import structs

from tfbuild.in_container.bench.worker import Hello, Ready
from tfbuild.measure import records
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.workers import Key


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where arms run: the image, the image `against` which it is compared, and this machine's CPUs and GPUs.

    `sets`: variables that the image sets and an arm may unset; `no_gpu`: why there is no GPU.
    """

    image: str
    against: str
    cpus: int
    gpus: int
    sets: frozenset[str] = frozenset()
    no_gpu: str = ""

    def fill(self, text: str) -> str:
        """Fill in the number of this machine's CPUs, half of it, or four times as many."""
        return text.format(cpus=self.cpus, fourfold=4 * self.cpus, half=max(1, self.cpus // 2))

    def params(self, case: Case, arm: Arm) -> dict[str, records.Value]:
        """Return the parameters of the arm's workload, with texts like "{cpus}" replaced by their numbers."""
        params = {**case.params, **arm.params}
        return {name: int(self.fill(str(value))) if _varies(value) else value for name, value in params.items()}

    def arms(self, row: Experiment, case: Case) -> tuple[Arm, ...]:
        """Return the case's arms, without those that equal another arm on this machine."""
        seen: set[Key] = set()
        kept = []
        for arm in row.arms(case):
            key = self.key(case, arm)
            if key not in seen or not any(map(_varies, arm.env.values())):
                kept.append(arm)
            seen.add(key)
        return tuple(kept)

    def key(self, case: Case, arm: Arm) -> Key:
        """Return what the arm's worker is started with."""
        env = {name: self.fill(value) for name, value in {**case.env, **arm.env}.items()}
        image = self.against if arm.image == "against" else self.image
        # TensorFlow uses a GPU for whatever it can, so only cases that need one get one: the others measure CPUs.
        return Key(image=image, env=tuple(sorted(env.items())), process=arm.process, gpus=case.needs == "gpu")

    def lacks(self, row: Experiment, case: Case) -> str:
        """Say what the case needs and cannot have here; "" if nothing is missing."""
        if case.needs == "gpu" and not self.gpus:
            return self.no_gpu or "TensorFlow in this image sees no GPU"
        if case.needs == "against" and not self.against:
            return "there is no other image to compare with (--against IMAGE)"
        unset = sorted({name for arm in row.arms(case) for name, value in arm.env.items() if not value})
        if case.needs == "tuning" and not self.sets & set(unset):
            return f"this image sets none of {', '.join(unset)}: there is nothing to unset"
        return ""


def _varies(value: object) -> bool:
    """Whether it is a text of a row, like "{cpus}", that stands for a number of this machine."""
    return isinstance(value, str) and "{" in value


@dataclass
class Side:
    """An arm as it runs: its worker and its state so far.

    `home`: which start of its worker built its workload (0: none yet).
    """

    name: str
    arm: Arm
    key: Key
    params: dict[str, records.Value]
    workload: str
    inner: int = 1
    home: int = 0
    ready: Ready = field(default_factory=Ready)
    status: str = records.MEASURED
    reason: str = ""

    @property
    def live(self) -> bool:
        return self.status == records.MEASURED

    def give_up(self, status: str, reason: str) -> None:
        """Stop measuring this side, for a reason that its record states."""
        self.status, self.reason = status, reason

    def same_work(self, other: "Side") -> bool:
        """Whether it does the same work as the other side, in whichever worker."""
        return (self.workload, self.params) == (other.workload, other.params)


def line_up(row: Experiment, case: Case, machine: Machine) -> list[Side]:
    """Return a side for each arm, the baseline first, and the baseline again at the end."""
    sides = []
    for arm in machine.arms(row, case):
        params, workload = machine.params(case, arm), row.work(case, arm)
        filled = structs.replace(arm, name=machine.fill(arm.name), code=machine.fill(arm.code))
        sides.append(Side(name=filled.name, arm=filled, key=machine.key(case, arm), params=params, workload=workload))
    first = sides[0]
    apart = any(side.key != first.key for side in sides)
    key = replace(first.key, process=f"{first.key.process} again".strip()) if apart else first.key
    return [*sides, replace(first, name=AGAIN, key=key)]


def wrong_allocator(arm: Arm, hello: Hello) -> str:
    """Say why the process lacks the allocator that the arm is about; "" if it has it."""
    if arm.malloc and arm.malloc not in hello.malloc.rpartition("/")[2]:
        return f"the image has no {arm.malloc}: malloc comes from {hello.malloc or 'an unknown library'}"
    return ""
