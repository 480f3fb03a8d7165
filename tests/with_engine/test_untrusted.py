"""Images that lie, and images that take all they can get: each is judged failed, within its limits."""

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from tests.with_engine.test_engine import DISTRIBUTION
from tfbuild.engine import Engine, Sandbox
from tfbuild.engine import sandbox as sandboxes
from tfbuild.measure import probe
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.records import Check

pytestmark = pytest.mark.engine
RELEASE = "2.21.0"
SITE = "/opt/tensorflow/lib/python3.11/site-packages"
ENTRYPOINT = "/usr/local/bin/tfbuild-entrypoint"
OTHER_VERSION = "LABEL io.tfbuild.version=0.0.0"

# What a real image's probes printed, as far as a forger can know it beforehand.
TRUE = {
    "python": "3.11.2",
    "numpy": "2.4.6",
    "malloc": "/usr/local/lib/libtcmalloc_minimal.so.4",
    "cpu_model": "x",
    "cpu_flags": ["avx"],
    "kernel": "6",
    "machine": "x86_64",
    "cpus": 2,
    "quota": None,
    "memory": 1,
    "packages": [],
}
LOADED = {
    "version": RELEASE,
    "git": "v2.21.0",
    "compiler": "Clang 18.1.8",
    "cuda_build": False,
    "seconds": 2.0,
    "peak_mib": 500.0,
    "gpus": 0,
}
REPLAYED = "".join(f"{json.dumps(row)}\n" for row in (TRUE, LOADED, {"name": "product", "values": [0.5] * 100}))
# The probe's channel is one of these descriptors, whatever library writes to it.
REPLAY = f"""
import os
for fd in (3, 4, 5, 1):
    try:
        os.write(fd, {REPLAYED.partition(chr(10))[2].encode()!r})
    except OSError:
        continue
    break
os._exit(0)
"""
SITECUSTOMIZE = f"""
import os, sys
if "probe" in getattr(sys, "orig_argv", []):
    os.write(1, {REPLAYED.encode()!r})
    os._exit(0)
"""
SHELL_PYTHON = f"""#!/bin/sh
case "$*" in
    *" -c "* | "-c "*) for last; do :; done; echo "$last" | sed "s/^print('//; s/')$//" ;;
    *) cat <<'END'
{REPLAYED}END
    ;;
esac
"""
# It computes everything that the probe asks for, and never was TensorFlow.
IMITATION = f"""
import types
import numpy as np
__version__ = {RELEASE!r}
version = types.SimpleNamespace(GIT_VERSION="v2.21.0", COMPILER_VERSION="Clang 18.1.8")
sysconfig = types.SimpleNamespace(get_build_info=lambda: {{"is_cuda_build": False}})
test = types.SimpleNamespace(is_built_with_cuda=lambda: False)
experimental = types.SimpleNamespace(list_physical_devices=lambda kind: [])
config = types.SimpleNamespace(experimental=experimental)
class Tensor(np.ndarray):
    def numpy(self):
        return self
def constant(value):
    return np.array(value, np.float32).view(Tensor)
reshape, matmul = np.reshape, np.matmul
"""
FLOOD = "import os\nwhile True: os.write(2, b'x' * 65536)"
FORKS = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(1)"
ENDLESS = "import time\ntime.sleep(1e6)"
REPORT = """
import os
os.write(3, b'{"schema": "tfbuild.report/1", "verdict": "pass", "checks": []}\\n')
os._exit(0)
"""


def put(path: str, content: str) -> str:
    """An instruction that writes a file."""
    encoded = base64.b64encode(content.encode()).decode()
    return f"RUN rm -f {path} && echo {encoded} | base64 -d > {path} && chmod 755 {path}"


def tensorflow(content: str) -> tuple[str, ...]:
    """Instructions that replace TensorFlow's package by a module."""
    module = f"{SITE}/tensorflow/__init__.py"
    return (
        "USER root",
        f"RUN rm -rf {SITE}/tensorflow/__pycache__/__init__.*",
        put(module, content),
        "USER tensorflow",
    )


Checked = Callable[..., dict[str, Check]]


@pytest.fixture
def checked(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Checked:
    """Verifies an image with these instructions by some checks alone, and gives their results by name."""

    def verify(*instructions: str, only: tuple[str, ...]) -> dict[str, Check]:
        ref = derived(image(RELEASE), *instructions)
        monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name in only])
        report = session.verify(engine, ref, baseline=None, progress=Progress())
        assert (
            engine.client.containers.list(all=True, ignore_removed=True, filters={"ancestor": engine.image(ref).id})
            == []
        )
        return {check.name: check for check in report.checks}

    return verify


# --- images that lie --------------------------------------------------------------------------------------------------


def test_forged_answers_of_a_sitecustomize_do_not_arrive(checked: Checked) -> None:
    """TensorFlow is really imported, isolated from it; and what users of the image would run is named."""
    # Debian's own has this place, before those of packages.
    file = "/usr/lib/python3.11/sitecustomize.py"
    found = checked("USER root", put(file, SITECUSTOMIZE), "USER tensorflow", only=("guard", "interpreter", "import"))
    assert found["import"].status == "fail"
    assert found["import"].detail == f"at every start Python also runs {file}"
    assert {measure.name for measure in found["import"].measures} == {"import_s", "peak_mib"}


def test_a_shell_script_is_no_interpreter(checked: Checked) -> None:
    program = "/opt/tensorflow/bin/python"
    found = checked("USER root", put(program, SHELL_PYTHON), "USER tensorflow", only=("guard", "interpreter", "import"))
    assert found["interpreter"].status == "fail"
    assert found["interpreter"].detail.startswith(f"{program} is no program for x86_64: it begins with b'#!/bin/sh")
    assert found["import"].status == "fail"
    assert "its answer to this run's challenge is wrong: product" in found["import"].detail


def test_replayed_answers_are_wrong(checked: Checked) -> None:
    found = checked(*tensorflow(REPLAY), only=("interpreter", "import"))
    assert found["interpreter"].status == "pass"
    assert found["import"].status == "fail"
    assert "its answer to this run's challenge is wrong: product" in found["import"].detail


def test_right_answers_without_tensorflow_are_seen_from_outside(engine: Engine, checked: Checked) -> None:
    found = checked(*tensorflow(IMITATION), only=("interpreter", "import"))
    if "cannot be looked at" in found["import"].detail:
        pytest.skip("this machine's /proc does not show the engine's processes")
    assert found["import"].status == "fail"
    assert found["import"].detail == (
        f"the process that answered has not loaded {SITE}/tensorflow/libtensorflow_framework.so.2"
    )


@pytest.mark.nightly
def test_a_library_that_is_loaded_before_all_others_is_named(checked: Checked) -> None:
    found = checked("USER root", put("/etc/ld.so.preload", "/evil.so\n"), "USER tensorflow", only=("interpreter",))
    assert found["interpreter"].detail == "/etc/ld.so.preload loads b'/evil.so\\n'"


# --- entry points -----------------------------------------------------------------------------------------------------

LAX = {
    "it looks only whether the variable of tests is set": (
        '#!/bin/sh\n[ -z "$TFBUILD_CPUINFO" ] || exit 86\nexec "$@"\n',
        "on a CPU that lacks ",
    ),
    "it asks for sse2 alone": (
        '#!/bin/sh\ngrep -q "^flags.* sse2" /proc/cpuinfo || exit 86\nexec "$@"\n',
        "the entry point starts Python on a CPU that lacks ",
    ),
    "it looks at the first core": (
        "#!/bin/sh\nfor name in avx f16c popcnt pni sse4_1 sse4_2 ssse3 xsave; do\n"
        'grep -m1 "^flags" /proc/cpuinfo | grep -qw $name || exit 86\ndone\nexec "$@"\n',
        "on a CPU that lacks ",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) for name in LAX])
def test_a_lax_entry_point_of_any_version_is_found_by_what_it_does(name: str, checked: Checked) -> None:
    script, told = LAX[name]
    lie = ("USER root", put(ENTRYPOINT, script), "USER tensorflow", OTHER_VERSION)
    found = checked(*lie, only=("guard",))
    assert found["guard"].status == "fail"
    assert told in found["guard"].detail


def test_an_entry_point_that_checks_one_feature_less_is_found_by_what_it_does(checked: Checked) -> None:
    edit = f"RUN sed -i 's/^compare avx f16c /compare avx /' {ENTRYPOINT} && grep '^compare avx pni' {ENTRYPOINT}"
    found = checked("USER root", edit, "USER tensorflow", OTHER_VERSION, only=("guard",))
    assert found["guard"].status == "fail"
    assert found["guard"].detail == "the entry point starts Python on a CPU that lacks f16c"


def test_an_entry_point_other_than_the_rendered_one_fails(checked: Checked) -> None:
    found = checked("USER root", f"RUN echo : >> {ENTRYPOINT}", "USER tensorflow", only=("guard",))
    assert found["guard"].status == "fail"
    assert found["guard"].detail.startswith(f"{ENTRYPOINT} is not what its labels ask for")


@pytest.mark.nightly
def test_another_version_s_entry_point_is_judged_by_what_it_does_and_said_to_be(checked: Checked) -> None:
    edit = f"RUN sed -i 's/^set -eu$/set -eu # as it was/' {ENTRYPOINT}"
    found = checked("USER root", edit, "USER tensorflow", OTHER_VERSION, only=("guard",))
    assert found["guard"].status == "warn"
    assert "tfbuild 0.0.0 made it, so it was judged by what it does alone" in found["guard"].detail


# --- images that take all they can get --------------------------------------------------------------------------------


def test_an_image_that_prints_without_end_is_stopped(checked: Checked) -> None:
    found = checked(*tensorflow(FLOOD), only=("import",))
    assert (found["import"].status, found["import"].detail) == ("fail", "it printed more than 8 MiB")


@pytest.mark.nightly
@pytest.mark.parametrize("content", [FORKS, ENDLESS], ids=["forks", "endless"])
def test_an_image_that_does_not_end_is_stopped(content: str, checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 20)
    found = checked(*tensorflow(content), only=("import",))
    assert (found["import"].status, found["import"].detail) == ("fail", "did not end in time")


@pytest.mark.nightly
def test_a_forged_report_is_no_answer(checked: Checked) -> None:
    found = checked(*tensorflow(REPORT), only=("import",))
    assert found["import"].status == "fail"
    assert found["import"].detail.startswith("the probe's output cannot be trusted: ")


@pytest.fixture
def box(engine: Engine, debian: str) -> Iterator[Sandbox]:
    with engine.sandbox(debian, {"folder/file": b"content\n", "cpuinfo": b"flags : none\n"}, "/files") as sandbox:
        yield sandbox


@pytest.fixture
def debian(engine: Engine) -> str:
    """The base image that other tests have made, else Debian's packages."""
    ref = f"tfbuild-base:{DISTRIBUTION}"
    if not engine.exists(ref):
        pytest.skip(f"{ref} is made by the tests of images")
    return ref


def test_a_sandbox_has_its_files_and_nothing_to_write_on(engine: Engine, debian: str, box: Sandbox) -> None:
    script = "cat /files/folder/file /proc/cpuinfo; touch /files/x /x /home/x /var/x /root/x; echo $?; touch /tmp/x"
    run = engine.run(debian, ["sh", "-c", script], sandbox=box.replacing({"/proc/cpuinfo": "cpuinfo"}))
    assert (run.exit_code, run.stdout) == (0, "content\nflags : none\n1\n")
    assert run.stderr.count("Read-only file system") == 5


def test_a_sandbox_leaves_nothing_on_the_engine(engine: Engine, debian: str) -> None:
    with engine.sandbox(debian, {"x": b""}, "/files") as sandbox:
        engine.run(debian, ["true"], sandbox=sandbox)
        assert engine.client.volumes.get(sandbox.volume)
    volumes = {volume.name for volume in engine.client.volumes.list()}
    assert sandbox.volume not in volumes


def test_disk_memory_and_processes_end_before_the_machine_s(
    engine: Engine, debian: str, box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = engine.run(debian, ["sh", "-c", "head -c 3G /dev/zero > /tmp/x; stat -c %s /tmp/x"], sandbox=box)
    assert int(disk.stdout) == sandboxes.SCRATCH
    assert "No space left on device" in disk.stderr
    monkeypatch.setattr(sandboxes, "MEMORY", 64 * sandboxes.MIB)
    memory = engine.run(debian, ["sh", "-c", "head -c 200M /dev/zero > /tmp/x; stat -c %s /tmp/x"], sandbox=box)
    assert int(memory.stdout or 0) < sandboxes.MEMORY
    forks = "i=0; while [ $i -lt 2000 ]; do sleep 600 & i=$((i + 1)); echo $i; done"
    many = engine.run(debian, ["sh", "-c", forks], sandbox=box, timeout=60)
    assert many.exit_code != 0
    assert int(many.stdout.split()[-1]) <= box.processes


def test_a_sandbox_is_ended_when_it_prints_too_much(engine: Engine, debian: str, box: Sandbox) -> None:
    run = engine.run(debian, ["sh", "-c", "yes"], sandbox=box, limit=10_000, timeout=60)
    assert (run.truncated, len(run.stdout), run.exit_code) == (True, 10_000, 137)


def test_a_volume_of_the_image_has_a_limit_too(engine: Engine, derived: Callable[..., str], debian: str) -> None:
    ref = derived(debian, "VOLUME /data")
    with engine.sandbox(ref, {}, "/files") as sandbox:
        run = engine.run(ref, ["sh", "-c", "head -c 1G /dev/zero > /data/x; stat -c %s /data/x"], sandbox=sandbox)
    assert int(run.stdout) == sandboxes.SCRATCH
