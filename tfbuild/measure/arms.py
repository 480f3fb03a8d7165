"""The sides of a comparison: where each runs, with what, and what became of it. Nothing is started or asked here."""

from dataclasses import dataclass, field, replace

from msgspec import structs

from tfbuild.in_container.bench.records import Hello, Ready
from tfbuild.measure import records
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.workers import Key


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where arms run: the image and the one it is compared with, this machine's processors and GPUs.

    `sets`: the variables that the image's own environment sets, which an arm may take away; `no_gpu`: why there is
    none, in words.
    """

    image: str
    against: str
    cpus: int
    gpus: int
    sets: frozenset[str] = frozenset()
    no_gpu: str = ""

    def fill(self, text: str) -> str:
        """A row's text with this machine's processors in it, or half of them, or four times as many."""
        return text.format(cpus=self.cpus, fourfold=4 * self.cpus, half=max(1, self.cpus // 2))

    def params(self, case: Case, arm: Arm) -> dict[str, records.Value]:
        """What the arm's workload gets here: where a row has such a text, the number that it stands for."""
        given = {**case.params, **arm.params}
        return {name: int(self.fill(str(value))) if _varies(value) else value for name, value in given.items()}

    def arms(self, row: Experiment, case: Case) -> tuple[Arm, ...]:
        """The case's arms, without those whose number is another arm's on this machine."""
        seen: set[Key] = set()
        kept = []
        for arm in row.arms(case):
            key = self.key(case, arm)
            if key not in seen or not any(map(_varies, arm.env.values())):
                kept.append(arm)
            seen.add(key)
        return tuple(kept)

    def key(self, case: Case, arm: Arm) -> Key:
        env = {name: self.fill(value) for name, value in {**case.env, **arm.env}.items()}
        image = self.against if arm.image == "against" else self.image
        # TensorFlow puts on a GPU whatever it can: only what asks for one gets one, all else is about processors.
        return Key(image=image, env=tuple(sorted(env.items())), process=arm.process, gpus=case.needs == "gpu")

    def lacks(self, row: Experiment, case: Case) -> str:
        """What the case needs and is not here, in words; or nothing."""
        if case.needs == "gpu" and not self.gpus:
            return self.no_gpu or "TensorFlow in this image sees no GPU"
        if case.needs == "against" and not self.against:
            return "there is no other image to compare with (--against IMAGE)"
        taken = sorted({name for arm in row.arms(case) for name, value in arm.env.items() if not value})
        if case.needs == "tuning" and not self.sets & set(taken):
            return f"this image sets none of {', '.join(taken)}: there is nothing to take away"
        return ""


def _varies(value: object) -> bool:
    """Whether it is a text of a row that stands for a number of this machine's."""
    return isinstance(value, str) and "{" in value


@dataclass
class Side:
    """An arm as it runs: its worker, and what was found of it so far.

    `home`: the start of its worker in which its workload was built (0: in none yet).
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
        self.status, self.reason = status, reason

    def does_what(self, other: "Side") -> bool:
        """The same work, whoever runs it."""
        return (self.workload, self.params) == (other.workload, other.params)


def line_up(row: Experiment, case: Case, machine: Machine) -> list[Side]:
    """A side for each arm, the baseline first, and the baseline again at the end."""
    sides = []
    for arm in machine.arms(row, case):
        params, workload = machine.params(case, arm), row.work(case, arm)
        mine = structs.replace(arm, name=machine.fill(arm.name), code=machine.fill(arm.code))
        sides.append(Side(name=mine.name, arm=mine, key=machine.key(case, arm), params=params, workload=workload))
    first = sides[0]
    apart = any(side.key != first.key for side in sides)
    key = replace(first.key, process=f"{first.key.process} again".strip()) if apart else first.key
    return [*sides, replace(first, name=AGAIN, key=key)]


def wrong_allocator(arm: Arm, hello: Hello) -> str:
    """Why the arm's process is not what the arm is named after, or nothing."""
    if arm.malloc and arm.malloc not in hello.malloc.rpartition("/")[2]:
        return f"the image has no {arm.malloc}: malloc is that of {hello.malloc or 'nobody'}"
    return ""
