"""Whatever an image sends back becomes a record of the right type or an error with a reason."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each
from tfbuild.engine import ContainerRun, Engine, Sandbox
from tfbuild.errors import UsageError
from tfbuild.in_container.bench import worker
from tfbuild.in_container.bench.worker import Calibrated, Dropped, Hello, Idle, Ready, WorkerSample
from tfbuild.in_container.smoke import judge, probes
from tfbuild.in_container.smoke.probes import Computed, Environment, Faults, TensorFlow
from tfbuild.measure import probe
from tfbuild.measure.probe import Installation

KINDS = (Environment, TensorFlow, Faults, Computed, Hello, Ready, Calibrated, WorkerSample, Idle, Dropped)

# A process's cgroup on a machine, in the version 2 that systemd uses, and in version 1 of a batch system.
SCOPE = "12:cpu:/x\n0::/a/b.scope\n"
JOB = "4:memory:/a/b:c\n2:cpu,cpuacct:/a\n1:name=systemd:/\n0::/\n"


def told(reading: Callable[[], float | None], files: dict[str, str]) -> float | None:
    """Return a reading on a machine with these files alone."""

    def opened(path: str) -> io.StringIO:
        name = path.removeprefix("/sys/fs/cgroup/")
        if name not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[name])

    system = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 20, "SC_CLK_TCK": 100}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sysconf", system.__getitem__)
        patch.setattr("os.sched_getaffinity", lambda _: {0, 1})
        for module in (worker, probes):
            patch.setattr(module, "open", opened, raising=False)
        return reading()


@each(
    "files, mebibytes",
    [
        ({}, 4096),
        ({"memory.max": "max\n"}, 4096),
        ({"memory.max": "1073741824\n", "memory/memory.limit_in_bytes": "1"}, 1024),
        # What version 1 has for no limit.
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4096),
        # Without a container: the group around its own has the limit.
        ({"/proc/self/cgroup": SCOPE, "a/b.scope/memory.max": "max\n", "a/memory.max": "1073741824\n"}, 1024),
        ({"/proc/self/cgroup": JOB, "memory/a/b:c/memory.limit_in_bytes": "1073741824\n"}, 1024),
        # In a container that sees the host's path, or one beside its own.
        ({"/proc/self/cgroup": JOB, "memory/memory.limit_in_bytes": "1073741824\n"}, 1024),
        ({"/proc/self/cgroup": "0::/../b:c\n", "b:c/memory.max": "1073741824\n"}, 1024),
    ],
)
def test_memory_is_the_machine_s_or_a_lower_limit_of_the_cgroup(files: dict[str, str], mebibytes: float) -> None:
    assert told(probes.memory, files) == mebibytes


@each(
    "reading, files, value",
    [
        (worker.throttled, {}, 0),
        (worker.throttled, {"cpu.stat": "nr_periods 9\nnr_throttled 7\n", "cpu/cpu.stat": "nr_throttled 1\n"}, 7),
        (worker.throttled, {"cpu/cpu.stat": "nr_throttled 3\n"}, 3),
        (worker.throttled, {"cpu.stat": "nr_periods 9\n"}, 0),
        (worker.throttled, {"/proc/self/cgroup": SCOPE, "a/cpu.stat": "nr_throttled 7\n", "cpu.stat": "usage 9"}, 7),
        (lambda: probes.used("VmHWM"), {"/proc/self/status": "VmPeak: 9 kB\nVmHWM:\t 2048 kB\nVmRSS: 7 kB\n"}, 2),
        (
            lambda: probes.used("VmRSS", "HugetlbPages"),
            {"/proc/self/status": "VmRSS: 1024 kB\nHugetlbPages: 2048 kB\n"},
            3,
        ),
        # Of a kernel without them.
        (lambda: probes.used("HugetlbPages"), {"/proc/self/status": "Name: x\nVmRSS: 7 kB\n"}, 0),
        # All but idle (4) and waiting for disks (5); guests are in the first two already.
        (worker.busy_seconds, {"/proc/stat": "cpu  10 20 30 4 5 60 70 80 9 9\nintr 1 1 1 1 1 1 1 1 1\n"}, 2.7),
        # Of the two CPUs that it may use: the load of others on the third is none of its own.
        (worker.busy_seconds, {"/proc/stat": "cpu 9\ncpu0 1 2 3 4 5 6 7 8 9\ncpu1 1 1 1 1 1 1 1 1\ncpu2 9\n"}, 0.33),
    ],
)
def test_what_the_kernel_says_of_a_process_and_the_machine(
    reading: Callable[[], float], files: dict[str, str], value: float
) -> None:
    assert told(reading, files) == value


@each(
    "seconds, calls",
    [
        ([0.1] * 9, 6),
        ([1.25, 1.25, 1.25, 1.0, 1.0, 1.0, 1.0], 6),
        ([0.9, 0.8, 0.6, 0.4, 0.4, 0.4, 0.4, 0.4, 0.1], 8),
        ([2.0] * 9, 5),
        ([0.7**number for number in range(90)], 60),
    ],
)
def test_a_workload_is_warm_when_its_calls_are_no_longer_faster(seconds: list[float], calls: int) -> None:
    passed, left = [0.0], [*seconds]

    def call() -> None:
        passed[0] += left.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: passed[0])
        worker.warm_up(SimpleNamespace(call=call))
    assert len(seconds) - len(left) == calls


@each("seconds, calls", [(0.01, 12), (0.05, 3), (0.0601, 2), (1.0, 1), (1000.0, 1), (1e-9, 120_000_000)])
def test_a_sample_is_as_many_calls_as_take_its_time(seconds: float, calls: int) -> None:
    assert worker.calibrate(SimpleNamespace(sample=lambda inner: (inner * seconds, 0.0))) == pytest.approx(calls)


def test_page_faults_are_those_of_the_calls_that_are_timed() -> None:
    """A pipeline's first batches, which no time is taken of, have faults of their own."""
    handler = worker.QuestionHandler({})
    handler.warm["x"] = SimpleNamespace(sample=lambda inner: (0.1, 0.1, 7 * inner), traces=lambda: 1)
    assert handler.sample("x", 3).faults == 21


@each(
    "error, line",
    [
        (ValueError(), "ValueError: "),
        (probes.Unfit("no\nsuch"), "no such"),
        (OSError("at x:\n  it broke \n\n[[node]] [Op:x]"), "OSError: it broke"),
        (OSError("e" * 400), f"OSError: {'e' * 291}"),
    ],
)
def test_the_cause_of_an_error_is_one_line(error: Exception, line: str) -> None:
    assert worker.cause(error) == line


@each(
    "files, cpus",
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n", "cpu/cpu.cfs_quota_us": "1\n", "cpu/cpu.cfs_period_us": "1\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"/proc/self/cgroup": SCOPE, "a/b.scope/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1.5),
        ({"/proc/self/cgroup": JOB, "cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "25000"}, 2),
    ],
)
def test_a_quota_is_that_of_either_version_of_cgroups(files: dict[str, str], cpus: float | None) -> None:
    assert told(probes.quota, files) == cpus


@each(
    "kind, counts, costs",
    [
        ("Sum", (1024,), True),
        ("Sum", (1, None), True),
        ("MatMul", (10, 2000), True),
        ("Max", (1023, 2), False),
        ("Reshape", (10**6,), False),
        ("BlockLSTM", (None,), True),
    ],
)
def test_a_constant_is_costly_by_its_kind_and_size(kind: str, counts: tuple[int | None, ...], costs: bool) -> None:
    inputs = [SimpleNamespace(shape=SimpleNamespace(num_elements=lambda count=count: count)) for count in counts]
    assert worker.costly(SimpleNamespace(type=kind, inputs=inputs)) == costs


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"per_tensor": NaN}', "invalid character"),
        ('{"per_tensor": 1e999}', "out of range"),
        ('{"per_tensor": 1e13}', "an absurd number: 1"),
        ('{"per_tensor": ' + "9" * 400 + "}", "out of range"),
        ("{}", "missing required field `per_tensor`"),
        ("", "truncated"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"per_tensor": 0}\udcff', "surrogates not allowed"),
    ],
)
def test_absurd_numbers_and_shapes_are_refused(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        probe.parse_record(line, Faults)


@each(
    "sent, why",
    [('{"per_tensor": 0}\n{"per_tensor": 0}\n', "2 lines instead of at most 1"), ('{"per_tensor": 0}', "cut")],
)
def test_another_number_of_lines_and_a_cut_off_one_are_refused(sent: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        probe.parse_records(sent, (Faults,))


@pytest.mark.parametrize("name", ["a\x1b[31mred", "line\nline", "\u202egnp.exe"])
def test_texts_that_would_fool_a_terminal_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not printable"):
        probe.parse_record(json.dumps({"name": name, "values": []}), Computed)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(line=st.text(max_size=200) | JSON.map(json.dumps), kind=st.sampled_from(KINDS))
def test_any_line_is_a_record_or_a_reason(line: str, kind: type) -> None:
    with suppress(ValueError):
        assert isinstance(probe.parse_record(line, kind), kind)


@dataclass
class OneRun:
    """An engine that runs a container once: `ends` is how, or TimeoutError."""

    ends: ContainerRun | None
    command: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, ref: str, command: list[str], **options: Any) -> ContainerRun:
        self.command, self.options = command, options
        if self.ends is None:
            raise TimeoutError
        return self.ends


def ended(stdout: str = "", stderr: str = "", exit_code: int = 0, *, truncated: bool = False) -> OneRun:
    return OneRun(ContainerRun(exit_code=exit_code, stdout=stdout, stderr=stderr, truncated=truncated))


def asked(engine: OneRun, sandbox: Sandbox | None = None) -> judge.Results:
    return probe.ask(cast(Engine, engine), "x", "import", [Dropped], sandbox=sandbox)


@pytest.mark.parametrize("sandbox", [None, cast(Sandbox, object())], ids=["trusted", "in a sandbox"])
def test_the_probe_that_is_named_runs(sandbox: Sandbox | None) -> None:
    engine = ended('{"count": 3}\n')
    results = asked(engine, sandbox)
    assert (results.records, results.missing) == ((Dropped(count=3),), "")
    assert engine.command == ["python", f"{probe.FOLDER}/smoke", "probe", "import"]
    assert engine.options["sandbox"] is sandbox
    assert engine.options["files"] == ({} if sandbox else probe.probe_files()), "a sandbox has them"


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (OneRun(None), judge.TOO_LONG),
        (ended("x" * 9, truncated=True), probe.FLOOD_REASON),
        (ended('{"count": "3"}\n'), "the probe's output cannot be trusted: "),
        (ended(), "no result"),
        (ended(stderr="ImportError", exit_code=1), "exit code 1: ImportError"),
    ],
)
def test_a_probe_without_an_answer_says_why(engine: OneRun, why: str) -> None:
    results = asked(engine)
    assert results.records == ()
    assert results.missing.startswith(why)


def test_a_probe_gets_its_environment_and_gpus() -> None:
    engine = ended('{"count": 3}\n')
    probe.ask(cast(Engine, engine), "x", "import", [Dropped], {"TF_NUM": "1"}, gpus=True)
    assert engine.options["env"] == {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_NUM": "1"}
    assert (engine.options["gpus"], engine.options["timeout"]) == (True, judge.SECONDS)
    probe.ask(cast(Engine, engine), "x", "import", [Dropped], {"TF_CPP_MIN_LOG_LEVEL": "3"})
    assert (engine.options["env"], engine.options["gpus"]) == ({"TF_CPP_MIN_LOG_LEVEL": "3"}, False)


def test_a_line_has_a_limit_and_so_has_the_reason() -> None:
    line = '{"count": 3}'.ljust(probe.MOST_LINE)
    assert probe.parse_record(line, Dropped) == Dropped(count=3)
    with pytest.raises(ValueError, match=f"a line has {probe.MOST_LINE + 1} characters"):
        probe.parse_record(f"{line} ", Dropped)
    with pytest.raises(ValueError, match="Expected") as error:
        probe.parse_record(json.dumps({"count": 4000 * "x"}), Dropped)
    assert len(str(error.value)) <= 200


# --- an installed TensorFlow in place of an image ---------------------------------------------------------------------

ECHO = b"""
import os, sys
for line in sys.stdin:
    print(line.strip(), sys.argv[1:], os.environ.get("SET"), os.environ.get("HOME"), flush=True)
"""


def state(name: str) -> str:
    return Path(f"/proc/{name}/stat").read_text().rpartition(") ")[2][0]


def test_a_process_stands_in_for_a_container(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    installed = Installation()
    with installed.watched("a test"):
        image = installed.image(str(tmp_path))
        assert image.id == f"{tmp_path}/bin/python", "a link would lead out of the environment"
        assert installed.image(image.id).id == image.id
        files = {f"{probe.ROOT}/bench/echo.py": ECHO}
        options = {"env": {"SET": "1", "HOME": ""}, "files": files, "gpus": False, "sandbox": None}
        worker = installed.worker(image.id, ["python", f"{probe.ROOT}/bench/echo.py", "a"], **options)
        with worker:
            assert worker.ask("hello", 30) == "hello ['a'] 1 None", "an empty variable is unset"
            worker.pause()
            with pytest.raises(TimeoutError):
                worker.ask("again", 0.2)
            assert state(worker.name) == "T"
        assert not Path(f"/proc/{worker.name}").exists()
        done = installed.run(image.id, ["python", f"{probe.ROOT}/bench/echo.py"], stdin=b"x\n", timeout=30)
        assert (done.exit_code, done.stdout.split()[0]) == (0, "x")
        with pytest.raises(TimeoutError):
            installed.run(image.id, ["python", "-c", "import time; time.sleep(9)"], timeout=0.2)
        command = ["python", "-c", "import tempfile; print(tempfile.mkdtemp())"]
        left = Path(installed.run(image.id, command, timeout=30).stdout.strip())
        assert left.is_dir()
    assert not left.exists(), "what a process leaves behind goes with the run"
    with pytest.raises(UsageError, match="has no Python"):
        installed.image(str(tmp_path / "bin"))


def test_a_python_without_tensorflow_says_so() -> None:
    installed = Installation()
    with installed.watched("a test"):
        results = probe.ask(installed, sys.executable, "start", (Environment, TensorFlow))
    assert probe.host(results.record, installed).cpu
    assert "No module named 'tensorflow'" in results.ended.why
