"""Images that lie, and images that take all they can get: each is judged failed, within its limits."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each
from tests.with_engine.test_engine import DISTRIBUTION
from tfbuild.engine import Engine, Sandbox
from tfbuild.engine import image as images
from tfbuild.engine import sandbox as sandboxes
from tfbuild.errors import Disturbed
from tfbuild.measure import probe
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.records import Check
from tfbuild.verify.verification import Baseline

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
        "USER 1000:1000",
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
        baseline = Baseline(ref=ref, id=engine.image(ref).id, env={"LD_PRELOAD": ""})
        report = session.verify(engine, ref, progress=Progress(), baseline=baseline)
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
    found = checked(
        "USER root", put(file, SITECUSTOMIZE), "USER 1000:1000", only=("guard", "interpreter", "files", "import")
    )
    assert found["import"].status == "pass", found["import"].detail
    assert {measure.name for measure in found["import"].measures} == {"import_s", "peak_mib"}
    assert found["files"].status == "fail"
    assert found["files"].detail == f"at every start Python also runs {file}"


def test_a_shell_script_is_no_interpreter(checked: Checked) -> None:
    program = "/opt/tensorflow/bin/python"
    found = checked("USER root", put(program, SHELL_PYTHON), "USER 1000:1000", only=("guard", "interpreter", "import"))
    assert found["interpreter"].status == "fail"
    assert found["interpreter"].detail.startswith(f"{program} is not a program for x86_64: it begins with b'#!/bin/sh")
    assert found["import"].status == "fail"
    assert "its answer to this run's challenge is wrong: product" in found["import"].detail


def test_replayed_answers_are_wrong(checked: Checked) -> None:
    found = checked(*tensorflow(REPLAY), only=("interpreter", "import"))
    assert found["interpreter"].status == "pass"
    assert found["import"].status == "fail"
    assert "its answer to this run's challenge is wrong: product" in found["import"].detail


def test_right_answers_without_tensorflow_are_seen_from_outside(engine: Engine, checked: Checked) -> None:
    found = checked(*tensorflow(IMITATION), only=("interpreter", "import"))
    if "cannot be inspected" in found["import"].detail:
        pytest.skip("this machine's /proc does not show the engine's processes")
    assert found["import"].status == "fail"
    assert found["import"].detail == (
        f"the process that answered has not loaded {SITE}/tensorflow/libtensorflow_framework.so.2"
    )


def test_a_label_cannot_name_another_compiler(checked: Checked) -> None:
    found = checked(f"{OTHER_VERSION} io.tfbuild.compiler=gcc-9", only=("interpreter", "import"))
    assert found["import"].detail == "TensorFlow was compiled by clang-18, but its label says gcc-9"


@pytest.mark.nightly
def test_a_library_that_is_loaded_before_all_others_is_named(checked: Checked) -> None:
    found = checked("USER root", put("/etc/ld.so.preload", "/evil.so\n"), "USER 1000:1000", only=("interpreter",))
    assert found["interpreter"].detail == "/etc/ld.so.preload loads b'/evil.so\\n'"


# --- what a plain start would run -------------------------------------------------------------------------------------

EVIL = "import os\nprint('evil')\n"
# As setcap(8) writes cap_net_raw+ep: version 2 with the effective bit, then what is permitted.
CAP_NET_RAW = "0100000200200000" + 24 * "0"
SETCAP = f'import os; os.setxattr("/usr/bin/env", "security.capability", bytes.fromhex("{CAP_NET_RAW}"))'
CACHED = f"{SITE}/__pycache__/six.cpython-311.pyc"


def root(*instructions: str) -> tuple[str, ...]:
    return ("USER root", *instructions, "USER 1000:1000")


def forge(*options: str) -> str:
    """An instruction that puts other bytecode beside a module, which Python loads without a look at the source."""
    compiled = f"python -I -m compileall -q --invalidation-mode unchecked-hash {' '.join(options)} /tmp/forged"
    return (
        f"RUN mkdir /tmp/forged && echo 'print(1)' > /tmp/forged/six.py && {compiled} && "
        f"cp /tmp/forged/__pycache__/* {SITE}/__pycache__/ && rm -r /tmp/forged"
    )


@dataclass(frozen=True, kw_only=True)
class Lie:
    """Instructions that make an image lie, the check that finds it, and what is told of it."""

    name: str
    instructions: tuple[str, ...]
    check: str
    told: str


LIES = (
    Lie(
        name="a module in another working folder",
        instructions=(*root("RUN mkdir /evil", put("/evil/tensorflow.py", EVIL)), "WORKDIR /evil"),
        check="configuration",
        told="WorkingDir is /evil, not /home/tensorflow",
    ),
    Lie(
        name="a module in the working folder",
        instructions=root(put("/home/tensorflow/tensorflow.py", EVIL)),
        check="files",
        told="/home/tensorflow/tensorflow.py is in the working folder",
    ),
    Lie(
        name="bytecode elsewhere",
        instructions=("ENV PYTHONPYCACHEPREFIX=/evil", *root(f"RUN mkdir -p /evil{SITE} && touch /evil{SITE}/six.pyc")),
        check="configuration",
        told="PYTHONPYCACHEPREFIX is set (/evil)",
    ),
    Lie(
        name="optimized bytecode, switched on",
        instructions=("ENV PYTHONOPTIMIZE=1",),
        check="configuration",
        told="PYTHONOPTIMIZE is set (1)",
    ),
    Lie(
        name="forged optimized bytecode",
        instructions=root(forge("-o 1")),
        check="bytecode",
        told="not compiled from its source: " + CACHED.replace("311.pyc", "311.opt-1.pyc"),
    ),
    Lie(
        name="forged bytecode",
        instructions=root(forge()),
        check="bytecode",
        told=f"not compiled from its source: {CACHED}",
    ),
    Lie(
        name="a module for warnings",
        instructions=("ENV PYTHONWARNINGS=ignore::evil.Warning",),
        check="configuration",
        told="PYTHONWARNINGS is set (ignore::evil.Warning)",
    ),
    Lie(
        name="packages from elsewhere",
        instructions=root(
            "RUN sed -i 's/= false/= true/' /opt/tensorflow/pyvenv.cfg",
            put("/usr/local/lib/python3.11/dist-packages/usercustomize.py", EVIL),
        ),
        check="files",
        told="/opt/tensorflow/pyvenv.cfg includes packages from elsewhere",
    ),
    Lie(
        name="code behind setuptools' own",
        instructions=root(f"RUN echo '; import evil' >> {SITE}/distutils-precedence.pth"),
        check="files",
        told=f"at every start Python also runs or adds what {SITE}/distutils-precedence.pth says",
    ),
    Lie(
        name="a second library under the allocator's name",
        instructions=("ENV LD_PRELOAD=/usr/local/lib/libtcmalloc_minimal.so.4:/evil/libtcmalloc_minimal.so.4",),
        check="configuration",
        told="LD_PRELOAD is /usr/local/lib/libtcmalloc_minimal.so.4:/evil/libtcmalloc_minimal.so.4, not",
    ),
    Lie(name="another user", instructions=("USER root",), check="configuration", told="User is root, not 1000:1000"),
    Lie(name="another command", instructions=('CMD ["sh"]',), check="configuration", told="Cmd is sh, not python"),
    Lie(
        name="an instruction for images on it",
        instructions=("ONBUILD RUN true",),
        check="configuration",
        told="OnBuild is set (RUN true)",
    ),
    Lie(
        name="a health check",
        instructions=("HEALTHCHECK CMD python /x.py",),
        check="configuration",
        told="Healthcheck is set",
    ),
    Lie(
        name="a signal", instructions=("STOPSIGNAL SIGKILL",), check="configuration", told="StopSignal is set (SIGKILL)"
    ),
    Lie(name="a shell", instructions=('SHELL ["/bin/bash"]',), check="configuration", told="Shell is set (/bin/bash)"),
    Lie(
        name="a volume at /tmp", instructions=("VOLUME /tmp/.",), check="configuration", told="Volumes is set (/tmp/.)"
    ),
    Lie(name="a volume at /", instructions=("VOLUME //",), check="configuration", told="Volumes is set (//)"),
    Lie(
        name="a volume over the probes",
        instructions=(f"VOLUME {probe.ROOT}",),
        check="configuration",
        told="Volumes is set",
    ),
    Lie(
        name="a release of its own",
        instructions=("LABEL io.tfbuild.release=2.20.0",),
        check="configuration",
        told="io.tfbuild.id is 2.21.0-mkl-py3.11-f16c, but its other labels say 2.20.0-mkl-py3.11-f16c",
    ),
    Lie(
        name="features with another space",
        instructions=('LABEL io.tfbuild.features="avx\u2003f16c"',),
        check="configuration",
        told="io.tfbuild.features is avx",
    ),
    Lie(
        name="a package of another release",
        instructions=root(f"RUN sed -i 's/^Version: .*/Version: 2.20.0/' {SITE}/tensorflow_cpu-*.dist-info/METADATA"),
        check="files",
        told="its package tensorflow-cpu is of release 2.20.0, but its label says 2.21.0",
    ),
    Lie(
        name="a file of its user",
        instructions=root(f"RUN chown 1000 {SITE}/six.py"),
        check="files",
        told=f"{SITE}/six.py can be changed by the image's user (owner 1000:0, mode 644)",
    ),
    Lie(
        name="a folder for everybody",
        instructions=root(f"RUN chmod o+w {SITE}"),
        check="files",
        told=f"{SITE} can be changed by the image's user",
    ),
    Lie(
        name="a setuid program",
        instructions=root("RUN chmod u+s /usr/bin/env"),
        check="files",
        told="/usr/bin/env is setuid or setgid",
    ),
    Lie(
        name="a program with capabilities",
        instructions=root(
            f"RUN python -c '{SETCAP}'",
        ),
        check="files",
        told="/usr/bin/env has capabilities",
    ),
    Lie(
        name="a package of its user's by a link",
        instructions=root(
            f"RUN mkdir /data && mv {SITE}/six.py /data && ln -s /data/six.py {SITE} && chown 1000 /data"
        ),
        check="files",
        told=f"/data can be changed by the image's user (owner 1000:0, mode 755), and {SITE}/six.py leads there",
    ),
    Lie(
        name="another working folder by a link",
        instructions=root(
            "RUN rm -r /home/tensorflow && mkdir /evil && ln -s /evil /home/tensorflow",
            put("/evil/tensorflow.py", EVIL),
        ),
        check="files",
        told="the working folder /home/tensorflow is /evil",
    ),
    Lie(
        name="another library beside Python's program",
        instructions=root(put("/opt/tensorflow/bin/python._pth", "/evil\n")),
        check="files",
        told="by /opt/tensorflow/bin/python._pth Python takes another library than its own",
    ),
    Lie(
        name="copts of another instruction set",
        instructions=("LABEL io.tfbuild.copts=--copt=-march=x86-64-v4",),
        check="configuration",
        told="io.tfbuild.copts is --copt=-march=x86-64-v4, not --copt=-mavx --copt=-mf16c",
    ),
    Lie(
        name="a label of nobody's",
        instructions=("LABEL io.tfbuild.evil=1",),
        check="configuration",
        told="io.tfbuild.evil is set (1)",
    ),
    Lie(
        name="another python3",
        instructions=root("RUN ln -sf /bin/sh /opt/tensorflow/bin/python3"),
        check="files",
        told="/opt/tensorflow/bin/python3 is not /opt/tensorflow/bin/python",
    ),
)


def test_the_honest_image_passes_what_finds_the_lies(checked: Checked) -> None:
    same = f"LABEL test={uuid.uuid4().hex}"
    found = checked(same, only=tuple({lie.check for lie in LIES}))
    assert {name: check.status for name, check in found.items()} == dict.fromkeys({lie.check for lie in LIES}, "pass")


@each("lie", LIES)
def test_every_lie_is_named_by_its_check(lie: Lie, checked: Checked) -> None:
    found = checked(*lie.instructions, only=("configuration", lie.check))
    assert found[lie.check].status == "fail"
    assert lie.told in found[lie.check].detail


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
    lie = ("USER root", put(ENTRYPOINT, script), "USER 1000:1000", OTHER_VERSION)
    found = checked(*lie, only=("guard",))
    assert found["guard"].status == "fail"
    assert told in found["guard"].detail


def test_an_entry_point_that_checks_one_feature_less_is_found_by_what_it_does(checked: Checked) -> None:
    edit = f"RUN sed -i 's/^compare avx f16c /compare avx /' {ENTRYPOINT} && grep '^compare avx pni' {ENTRYPOINT}"
    found = checked("USER root", edit, "USER 1000:1000", OTHER_VERSION, only=("guard",))
    assert found["guard"].status == "fail"
    assert found["guard"].detail == "the entry point starts Python on a CPU that lacks f16c"


def test_an_entry_point_other_than_the_rendered_one_fails(checked: Checked) -> None:
    found = checked("USER root", f"RUN echo : >> {ENTRYPOINT}", "USER 1000:1000", only=("guard",))
    assert found["guard"].status == "fail"
    assert found["guard"].detail.startswith(f"{ENTRYPOINT} is not what its labels ask for")


@pytest.mark.nightly
def test_another_version_s_entry_point_is_judged_by_what_it_does_and_said_to_be(checked: Checked) -> None:
    edit = f"RUN sed -i 's/^set -eu$/set -eu # as it was/' {ENTRYPOINT}"
    found = checked("USER root", edit, "USER 1000:1000", OTHER_VERSION, only=("guard",))
    assert found["guard"].status == "warn"
    assert "tfbuild 0.0.0 made it, so it was judged only by what it does" in found["guard"].detail


# --- images that take all they can get --------------------------------------------------------------------------------


def test_an_image_that_prints_without_end_is_stopped(checked: Checked) -> None:
    found = checked(*tensorflow(FLOOD), only=("import",))
    assert (found["import"].status, found["import"].detail) == ("fail", "it printed more than 8 MiB")


@each(
    "limit, instruction, told",
    [
        # A file of holes takes no disk, and the engine sends terabytes of zeros.
        ("MOST_CONTENT", "truncate -s 3G /opt/zeros", "bytes of files"),
        (
            "MOST_ENTRIES",
            "cd /srv && touch f && for i in $(seq 9000); do ln f $i; done",
            "files",
        ),
    ],
)
def test_an_image_of_endless_files_is_not_read_to_its_end(
    limit: str, instruction: str, told: str, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest image has 17,000 files with 1.1 GB; real limits are some times those of the largest image."""
    monkeypatch.setattr(images, limit, {"MOST_CONTENT": 2 << 30, "MOST_ENTRIES": 20_000}[limit])
    found = checked(*root(f"RUN {instruction}"), only=("files",))
    assert found["files"].status == "fail"
    assert "the image cannot be read: it has more than " in found["files"].detail
    assert told in found["files"].detail


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


# --- what is not the image's fault ------------------------------------------------------------------------------------

Strike = Callable[[Any], None]
# The check `import`, and the one by which it knows the image's Python.
PROBED = ("interpreter", "import")


def to_client(container: Any, sent: signal.Signals) -> None:
    """Send a signal to the docker program that is attached to the container."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.joinpath("cmdline").read_bytes().split(b"\0")[-2:-1] == [container.name.encode()]:
                os.kill(int(folder.name), sent)


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    name: str
    strike: Strike
    told: str


DISTURBANCES = (
    Disturbance(name="killed", strike=lambda box: box.kill(), told="somebody killed its container (signal 9)"),
    Disturbance(name="ended", strike=lambda box: box.stop(timeout=1), told="somebody killed its container (signal 15)"),
    Disturbance(name="paused", strike=lambda box: box.pause(), told="somebody paused its container"),
    # The engine kills it first.
    Disturbance(name="removed", strike=lambda box: box.remove(force=True), told="somebody "),
    Disturbance(
        name="its client stopped", strike=partial(to_client, sent=signal.SIGSTOP), told="the docker client of its "
    ),
    Disturbance(
        name="its client killed", strike=partial(to_client, sent=signal.SIGKILL), told="the docker client of its "
    ),
)


def strike_soon(engine: Engine, ref: str, strike: Strike) -> threading.Thread:
    """Strike the first container of the image that runs, in a thread."""
    image = engine.image(ref).id

    def wait_and_strike() -> None:
        for _ in range(600):
            if running := engine.client.containers.list(filters={"ancestor": image, "status": "running"}):
                strike(running[0])
                return
            time.sleep(0.1)

    thread = threading.Thread(target=wait_and_strike)
    thread.start()
    return thread


@each("disturbance", DISTURBANCES)
def test_somebody_else_s_doing_is_no_verdict(
    disturbance: Disturbance,
    engine: Engine,
    image: Callable[..., str],
    derived: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "SECONDS", 15)
    monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name == "import"])
    ref = derived(image(RELEASE), *tensorflow(ENDLESS), f"LABEL test={uuid.uuid4().hex}")
    thread = strike_soon(engine, ref, disturbance.strike)
    with pytest.raises(Disturbed) as raised:
        session.verify(engine, ref, progress=Progress())
    thread.join()
    assert raised.value.reason.startswith(f"the image was not judged: {disturbance.told}")
    assert (
        engine.client.containers.list(all=True, ignore_removed=True, filters={"ancestor": engine.image(ref).id}) == []
    )


def test_a_container_whose_process_was_killed_from_outside_is_asked_again(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event tells of it: it looks as if the process had ended itself."""
    monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name in PROBED])
    ref = derived(image(RELEASE), f"LABEL test={uuid.uuid4().hex}")
    thread = strike_soon(engine, ref, lambda box: os.kill(box.attrs["State"]["Pid"], signal.SIGKILL))
    report = session.verify(engine, ref, progress=Progress())
    thread.join()
    assert {check.name: check.status for check in report.checks} == dict.fromkeys(PROBED, "pass")


TIMED = (*PROBED, "throughput")


def test_a_worker_of_the_throughput_that_was_killed_from_outside_is_no_failure(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name in TIMED])
    ref = derived(image(RELEASE), f"LABEL test={uuid.uuid4().hex}")
    id_, killed = engine.image(ref).id, threading.Event()

    def strike() -> None:
        """Kill a worker, one of three containers."""
        for _ in range(6000):
            workers = engine.client.containers.list(filters={"ancestor": id_, "status": "running"}, ignore_removed=True)
            if len(workers) == 3:
                os.kill(workers[0].attrs["State"]["Pid"], signal.SIGKILL)
                killed.set()
                return
            time.sleep(0.1)

    thread = threading.Thread(target=strike)
    thread.start()
    baseline = Baseline(ref=ref, id=id_, env={"LD_PRELOAD": ""})
    report = session.verify(engine, ref, baseline=baseline, progress=Progress())
    thread.join()
    assert killed.is_set()
    (found,) = (check for check in report.checks if check.name == "throughput")
    # On a busy machine, rounds may be too few or too noisy.
    assert found.status in ("pass", "skip"), found.detail


# What TensorFlow's package does besides, once it is imported.
CLOCK = """
import time
wall, cpu = time.perf_counter, time.process_time
time.perf_counter, time.process_time = lambda: wall() * {0}, lambda: cpu() * {0}
"""
RECORDS = """
import json
dumps = json.dumps
json.dumps = lambda row, **more: dumps({{**row, **{{key: {0}[key] for key in row if key in {0}}}}}, **more)
"""
COUNTED = "a worker says that its samples took "
FORGED = (
    ("a slow clock", CLOCK.format(0.1), COUNTED),
    ("a fast clock", CLOCK.format(10), (COUNTED, "the workers report samples of ")),
    ("CPU time of years", RECORDS.format({"cpu": 1e9}), COUNTED),
    ("hardly any CPU time", RECORDS.format({"cpu": 1e-3}), COUNTED),
    ("no item in a call", RECORDS.format({"items": 0}), "its calls have "),
)


@pytest.mark.nightly
@each("name, code, told", FORGED)
def test_times_that_an_image_forges_are_not_those_seen_from_outside(
    name: str, code: str, told: str | tuple[str, ...], checked: Checked
) -> None:
    folder, encoded = f"{SITE}/tensorflow", base64.b64encode(code.encode()).decode()
    append = f"RUN rm {folder}/__pycache__/__init__.* && echo {encoded} | base64 -d >> {folder}/__init__.py"
    found = checked(*root(append), only=TIMED)
    assert found["import"].status == "pass", found["import"].detail
    assert found["throughput"].status == "fail", found["throughput"].detail
    assert found["throughput"].detail.removeprefix("could not be measured: ").startswith(told)


def test_an_image_that_ends_itself_as_if_it_were_killed_fails(checked: Checked) -> None:
    found = checked(*tensorflow("import os; os._exit(137)"), only=("import",))
    assert (found["import"].status, found["import"].detail[-17:]) == ("fail", "killed by SIGKILL")


def test_a_limit_on_the_size_of_files_here_is_no_verdict(engine: Engine, image: Callable[..., str]) -> None:
    script = (
        "import resource, sys; from tfbuild.engine import Engine; from tfbuild.util.progress import Progress; "
        "from tfbuild.verify import session; from tfbuild.verify.checks import CHECKS; "
        "session.CHECKS = [check for check in CHECKS if check.name == 'isa']; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "session.verify(Engine.connect(), sys.argv[1], progress=Progress())"
    )
    done = subprocess.run([sys.executable, "-c", script, image(RELEASE)], capture_output=True, text=True, check=False)
    assert "Disturbed: error: the image was not judged: " in done.stderr
    assert "cannot hold a copy of the image's /opt/tensorflow/lib" in done.stderr
    assert "File too large (ulimit -f)" in done.stderr
