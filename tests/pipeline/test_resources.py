"""Bazel's share of a machine, from cgroup files, written from the kernel's documentation (admin-guide/cgroup-v2)."""

from math import inf
from pathlib import Path

import pytest

from tfbuild.pipeline.compiling import NO_LIMITS, cgroup_limits, machine_share, memory_hint

GIB = 1 << 30
HERE = Path(__file__).parents[1] / "data" / "cgroup"


@pytest.mark.parametrize(
    ("name", "cpus", "memory"),
    [
        # A systemd scope: the slice above it has the tighter memory limit.
        ("v2-nested", 1.5, 6 * GIB),
        # Inside a container with a cgroup namespace: the path is "/", and the files are at the top.
        ("v2-container", 4.0, 8 * GIB),
        ("v2-unlimited", inf, inf),
        ("nothing", inf, inf),
    ],
)
def test_the_tightest_limit_counts(name: str, cpus: float, memory: float) -> None:
    assert cgroup_limits(HERE / name) == (cpus, memory)


# The second one in a container that sees its own cgroup alone.
@pytest.mark.parametrize("above", ["", "../"])
def test_a_cgroup_whose_name_has_colons_is_found(above: str, tmp_path: Path) -> None:
    name = "kubepods.slice:cri-containerd:0a1b"
    files = {
        "proc/self/cgroup": f"12:cpu:/x\n0::/{above}{name}\n",
        f"sys/fs/cgroup/{name}/cpu.max": "150000 100000\n",
        f"sys/fs/cgroup/{name}/memory.max": f"{4 * GIB}\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert cgroup_limits(tmp_path) == (1.5, 4 * GIB)


@pytest.mark.parametrize(
    ("cpus", "memory", "limits", "jobs", "ram"),
    [
        (64, 256 * GIB, NO_LIMITS, 64, 254),
        (64, 32 * GIB, NO_LIMITS, 15, 30),
        (16, 64 * GIB, (4.0, inf), 4, 62),
        (16, 64 * GIB, (0.5, inf), 1, 62),
        (16, 64 * GIB, (inf, 8 * GIB), 3, 6),
        # A limit larger than the machine has no effect.
        (4, 16 * GIB, (32.0, 512 * GIB), 4, 14),
        (8, 2 * GIB, NO_LIMITS, 1, 1),
    ],
)
def test_jobs_follow_from_processors_and_memory(
    cpus: int, memory: int, limits: tuple[float, float], jobs: int, ram: int
) -> None:
    share = machine_share(cpus=cpus, memory=memory, limits=limits)
    assert share.bazelrc() == f"build --jobs={jobs}\nbuild --local_ram_resources={ram * 1024}\n"
    assert share.reason.endswith(", within this cgroup's limits") == (limits != NO_LIMITS)
    # An executor's jobs are not this machine's.
    remote = machine_share(cpus=cpus, memory=memory, limits=limits, remote=True)
    assert (remote.jobs, remote.ram) == (100, share.ram)


@pytest.mark.parametrize(
    ("jobs", "hint"), [(8, "--jobs 4"), (3, "--jobs 1"), (1, "one action at a time is already too much")]
)
def test_the_user_s_choice_wins_and_where_memory_ran_out_the_hint_is_another(jobs: int, hint: str) -> None:
    share = machine_share(cpus=64, memory=8 * GIB, jobs=jobs)
    assert (share.jobs, share.reason) == (
        jobs, f"--jobs={jobs}: as asked for; 64 by processors, 3 by 8.0 GiB of memory at 2 GiB an action"
    )  # fmt: skip
    assert memory_hint(share).startswith(hint)
