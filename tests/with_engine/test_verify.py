"""Images that were built wrong, mislabelled, or broken by their base: each fails the check that is there for it."""

import base64
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.with_engine.test_engine import debian
from tfbuild.cpu import isa
from tfbuild.engine import Engine, Sandbox
from tfbuild.engine import containers as sandboxes
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.report import Report

__all__ = ["debian"]  # a fixture
pytestmark = pytest.mark.engine
RELEASE = "2.21.0"
SITE = "/opt/tensorflow/lib/python3.11/site-packages"
ENTRYPOINT = "/usr/local/bin/tfbuild-entrypoint"
BMI2_FOR_F16C = " ".join(isa.resolve("avx,bmi2", arch="x86_64").features)


def root(*instructions: str) -> tuple[str, ...]:
    return ("USER root", *(f"RUN {line}" for line in instructions), "USER 1000:1000")


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """Instructions that spoil an image, the `check` that names the fault, and the others that fail as well."""

    name: str
    instructions: tuple[str, ...]
    check: str
    named: str
    others: frozenset[str] = frozenset()


LABELS = frozenset({"configuration"})
WRONG = (
    Wrong(
        name="foreign guard text",
        instructions=root(f"sed -i 's/^compare avx f16c /compare avx /' {ENTRYPOINT}"),
        check="guard", named="does not match the image's labels",
    ),
    # One row for both: to read all code takes longest.
    Wrong(
        name="a missing feature and code above its label",
        instructions=(f'LABEL io.tfbuild.features="{BMI2_FOR_F16C}"',),
        check="code", named="needs f16c beyond its labels; it does not use bmi2", others=LABELS | {"guard"},
    ),
    Wrong(
        name="no TCMalloc", instructions=("ENV LD_PRELOAD=",),
        check="tcmalloc", named="malloc is that of /", others=LABELS,
    ),
    Wrong(
        name="oneDNN off",
        instructions=("ENV TF_ENABLE_ONEDNN_OPTS=0",),
        check="onednn", named="no convolution ran in oneDNN", others=LABELS,
    ),
    Wrong(
        name="wrong release",
        instructions=("LABEL io.tfbuild.release=2.20.0",),
        check="import", named="TensorFlow is 2.21.0, not 2.20.0", others=LABELS | {"guard"},
    ),
    Wrong(
        name="wrong Python",
        instructions=("LABEL io.tfbuild.python=3.12",),
        check="import", named="Python is 3.11.2, not 3.12", others=LABELS | {"guard"},
    ),
    Wrong(
        name="wrong compiler",
        instructions=("LABEL io.tfbuild.compiler=gcc-9",),
        check="import", named="TensorFlow was compiled by clang-18, but its label says gcc-9",
    ),
    Wrong(
        name="a diverting PYTHON variable",
        instructions=("ENV PYTHONOPTIMIZE=1",),
        check="configuration", named="PYTHONOPTIMIZE is set (1)",
    ),
    Wrong(
        name="wrong entry point",
        instructions=('ENTRYPOINT ["/usr/bin/env"]',),
        check="configuration", named=f"Entrypoint is /usr/bin/env, not {ENTRYPOINT}",
        others=frozenset({"guard"}),
    ),
    Wrong(
        name="wrong base",
        instructions=("LABEL {other_base}",),
        check="configuration", named="its layers are not those of",
    ),
    Wrong(
        name="a broken NumPy", instructions=root(f"rm {SITE}/numpy/__init__.py"), check="import", named="numpy",
    ),
)  # fmt: skip


@pytest.fixture
def verified(engine: Engine, derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Verifies an image with further instructions by some of the checks."""

    def verify(ref: str, *instructions: str, only: set[str]) -> Report:
        ref = derived(ref, *instructions, f"LABEL test={uuid.uuid4().hex}")
        monkeypatch.setattr(session, "CHECKS", tuple(check for check in CHECKS if check.name in only))
        return session.verify(engine, ref, progress=Progress())

    return verify


def shown(report: Report) -> str:
    return "\n".join(f"{check.status} {check.name}: {check.detail}" for check in report.checks)


HARMLESS = root("mkdir /srv/model && head -c 10M /dev/urandom > /srv/model/weights.pth")


def test_the_right_image_passes_with_files_of_its_users(
    image: Callable[..., str], verified: Callable[..., Report]
) -> None:
    """All checks pass on the image as it is built (test_build.py); the check code reads none of these files."""
    report = verified(image(RELEASE), *HARMLESS, only={row.check for row in WRONG} - {"code"})
    assert {check.status for check in report.checks} == {"pass"}, shown(report)


@pytest.fixture
def other_base(engine: Engine, derived: Callable[..., str]) -> str:
    """An image that no other one is built on, as labels name a base."""
    ref = derived("scratch", "COPY Dockerfile /", f"LABEL test={uuid.uuid4().hex}")
    return f"org.opencontainers.image.base.name={ref} org.opencontainers.image.base.digest={engine.image(ref).id}"


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_image_fails_the_check_that_is_there_for_it(
    wrong: Wrong, other_base: str, image: Callable[..., str], verified: Callable[..., Report]
) -> None:
    instructions = [line.format(other_base=other_base) for line in wrong.instructions]
    # What runs in TensorFlow needs its start, which takes seconds.
    started = set() if wrong.check in ("configuration", "guard", "code") else {"import"}
    only = {"configuration", wrong.check} | wrong.others | started
    report = verified(image(RELEASE), *instructions, only=only)
    failed = {check.name: check.detail for check in report.checks if check.status == "fail"}
    assert set(failed) == {wrong.check} | wrong.others, shown(report)
    assert wrong.named in failed[wrong.check], shown(report)
    assert not report.passed


# --- images that take all they can get --------------------------------------------------------------------------------

FLOOD = "import os\nwhile True: os.write(2, b'x' * 65536)"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param(FLOOD, "it printed more than 8 MiB", id="flood"),
        pytest.param("import os; os._exit(137)", "which the kernel sends when memory runs out", id="killed"),
    ],
)
def test_an_image_that_takes_all_or_kills_itself_has_failed(
    code: str, told: str, image: Callable[..., str], verified: Callable[..., Report]
) -> None:
    module, encoded = f"{SITE}/tensorflow/__init__.py", base64.b64encode(code.encode()).decode()
    lines = (f"rm -rf {SITE}/tensorflow/__pycache__/__init__.*", f"echo {encoded} | base64 -d > {module}")
    report = verified(image(RELEASE), *root(*lines), only={"import"})
    (check,) = report.checks
    assert check.status == "fail"
    assert check.detail.endswith(told)


@pytest.fixture
def box(engine: Engine, debian: str) -> Iterator[Sandbox]:
    with engine.sandbox(debian, {"folder/file": b"content\n"}, "/files") as sandbox:
        yield sandbox
    volumes = {volume.name for volume in engine.client.volumes.list()}
    assert sandbox.volume not in volumes, "nothing is left on the engine"


def test_disk_memory_processes_and_output_end_before_the_machine_s(
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
    talkative = engine.run(debian, ["sh", "-c", "yes"], sandbox=box, limit=10_000, timeout=60)
    assert (talkative.truncated, len(talkative.stdout), talkative.exit_code) == (True, 10_000, 137)
