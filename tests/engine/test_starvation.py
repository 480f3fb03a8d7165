"""What the kernel counts decides whether a container that ran too long had the CPU time to end."""

from pathlib import Path

from tests.rows import each
from tfbuild.engine import starvation
from tfbuild.engine.starvation import Load

CPUS, SECONDS = 2, 90.0


@each(
    "name, waited, used, busy, starved",
    [
        ("others take what it needs", 60, 20, 175, True),
        ("it sleeps on a busy machine", 0.1, 1, 178, False),
        ("it computes too long", 1, 89, 95, False),
        ("it computes too long beside others", 20, 70, 179, False),
        ("its own threads take each other's time", 85, 178, 179, False),
        ("the kernel counts nothing", 0, 0, 0, False),
    ],
)
def test_a_container_is_starved_if_it_waited_and_others_computed(
    name: str, waited: float, used: float, busy: float, starved: bool
) -> None:
    begin = Load(at=5, busy=1000, used=200, waited={7: 300, 8: 900})
    end = Load(at=5 + SECONDS, busy=1000 + busy, used=200 + used, waited={7: 300 + waited, 8: 900, 9: 0.01})
    why = starvation.starved(begin, end, cpus=CPUS)
    assert bool(why) == starved, name
    if starved:
        assert why == "it waited for a CPU for 60 of 90 s, while others used 86 % of this machine's CPU time"


def test_each_thread_of_the_container_counts(tmp_path: Path) -> None:
    for process, container, waits in (("1", "a", [3, 7]), ("2", "a", [5]), ("3", "b", [9])):
        for number, seconds in enumerate(waits):
            thread = tmp_path / process / "task" / f"{process}{number}"
            thread.mkdir(parents=True)
            (thread / "schedstat").write_text(f"12 {seconds * 10**9} 4\n")
        (tmp_path / process / "cgroup").write_text(f"0::/docker/{container}\n")
    (tmp_path / "4").mkdir()  # it has just ended
    (tmp_path / "cpuinfo").touch()
    assert starvation.waited("docker/a", tmp_path) == {10: 3, 11: 7, 20: 5}
    assert starvation.waited("docker/c", tmp_path) == {}


def test_a_kernel_counts_what_its_processors_do(tmp_path: Path) -> None:
    first = starvation.load()
    sum(range(10**7))
    second = starvation.load()
    assert second.busy > first.busy > 0
    assert second.at > first.at
    assert starvation.load(proc=tmp_path).busy == 0
