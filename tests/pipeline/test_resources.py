"""Bazel's share of a machine, from cgroup files of both versions.

v1-container was recorded; the others were written from the kernel's documentation (admin-guide/cgroup-v1 and -v2).
"""

from pathlib import Path

import pytest

from tfbuild.pipeline import compiling, resources
from tfbuild.pipeline.resources import Limits

GIB = 1 << 30
HERE = Path(__file__).parents[1] / "data" / "cgroup"


@pytest.mark.parametrize(
    ("name", "cpus", "memory"),
    [
        # A systemd scope: the slice above it has the tighter memory limit.
        ("v2-nested", 1.5, 6 * GIB),
        # Inside a container with a cgroup namespace: the path is "/", and the files are at the top.
        ("v2-container", 4.0, 8 * GIB),
        ("v2-unlimited", None, None),
        # docker run --cpus 2 --memory 4g under cgroup v1: the path is the host's, the files are at the top.
        ("v1-container", 2.0, 4 * GIB),
        ("v1-unlimited", None, None),
        ("nothing", None, None),
    ],
)
def test_the_tightest_limit_counts(name: str, cpus: float | None, memory: int | None) -> None:
    assert resources.limits(HERE / name) == Limits(cpus=cpus, memory=memory)


# The second one beside controllers of version 1, the third in a container that sees its own cgroup alone.
@pytest.mark.parametrize(("mounted", "above"), [("", ""), ("unified/", ""), ("", "../")])
def test_a_cgroup_whose_name_has_colons_is_found(mounted: str, above: str, tmp_path: Path) -> None:
    name = "kubepods.slice:cri-containerd:0a1b"
    files = {
        "proc/self/cgroup": f"0::/{above}{name}\n",
        f"sys/fs/cgroup/{mounted}{name}/cpu.max": "150000 100000\n",
        f"sys/fs/cgroup/{mounted}{name}/memory.max": f"{4 * GIB}\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert resources.limits(tmp_path) == Limits(cpus=1.5, memory=4 * GIB)


@pytest.mark.parametrize(
    ("cpus", "memory", "limits", "jobs", "ram"),
    [
        (64, 256 * GIB, Limits(), 64, 254),
        (64, 32 * GIB, Limits(), 15, 30),
        (2, 24 * GIB, Limits(), 2, 22),
        (16, 64 * GIB, Limits(cpus=4.0), 4, 62),
        (16, 64 * GIB, Limits(cpus=0.5), 1, 62),
        (16, 64 * GIB, Limits(memory=8 * GIB), 3, 6),
        # A limit larger than the machine has no effect.
        (4, 16 * GIB, Limits(cpus=32.0, memory=512 * GIB), 4, 14),
        (8, 2 * GIB, Limits(), 1, 1),
    ],
)
def test_jobs_follow_from_processors_and_memory(cpus: int, memory: int, limits: Limits, jobs: int, ram: int) -> None:
    share = resources.share(cpus=cpus, memory=memory, limits=limits)
    assert share.bazelrc() == f"build --jobs={jobs}\nbuild --local_ram_resources={ram * 1024}\n"
    assert share.reason.endswith(", within this cgroup's limits") == (limits != Limits())


def test_the_users_choice_wins_and_the_reason_says_so() -> None:
    share = resources.share(cpus=64, memory=8 * GIB, limits=Limits(), jobs=12)
    assert share.jobs == 12
    assert share.reason == "--jobs=12: as asked for; 64 by processors, 3 by 8.0 GiB of memory at 2 GiB an action"


def test_an_engine_elsewhere_is_not_bound_by_this_cgroup() -> None:
    assert resources.process_limits(local=False) == Limits()
    assert resources.process_limits(local=True) == resources.limits(Path("/"))


@pytest.mark.parametrize(
    ("jobs", "hint"), [(8, "--jobs 4"), (3, "--jobs 1"), (1, "one action at a time is already too much")]
)
def test_where_memory_ran_out_the_hint_is_a_setting(jobs: int, hint: str) -> None:
    share = resources.share(cpus=8, memory=64 * GIB, limits=Limits(), jobs=jobs)
    assert compiling.memory_hint(share).startswith(hint)


def test_an_executors_jobs_are_not_this_machines() -> None:
    machine = {"cpus": 4, "memory": 16 << 30, "limits": resources.Limits()}
    assert resources.share(**machine, remote=True).jobs == 100  # type: ignore[arg-type]
    assert resources.share(**machine, remote=True, jobs=7).jobs == 7  # type: ignore[arg-type]
    assert resources.share(**machine, remote=True).ram == resources.share(**machine).ram  # type: ignore[arg-type]
