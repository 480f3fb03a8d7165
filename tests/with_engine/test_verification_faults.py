"""What ends a verification from outside is no verdict on the image, and the same command ends well.

On an engine of its own, which builds an image once; then the build is cached, so that a command verifies at once.
"""

import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.with_engine.test_build import ID, RELEASE
from tests.with_engine.victim import Command, Victim, one_message, started
from tfbuild.cli.options import certificates
from tfbuild.context.labels import UNVERIFIED
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
SECONDS = 1200.0
Process = subprocess.Popen[str]
Strike = Callable[[Process], None]
NAME, UNNAMED = f"tfbuild:{ID}", f"tfbuild:{ID}{UNVERIFIED}"
BUILD = (
    "build", "--target", "mkl", "--wheel", "official", "--release", RELEASE, "--base", "tfbuild-test:base",
    "--network", "host", "--need-disk", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def victim(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """With the base image that the command names; its containers see this machine's CPU."""
    log = tmp_path_factory.mktemp("base") / "log"
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference
    with started() as there:
        client = Engine.connect(there.found.host).client
        client.images.load(b"".join(engine.client.images.get(base).save(named=True)))
        client.images.get(engine.image(base).id).tag("tfbuild-test", "base")
        client.close()
        yield there


@pytest.fixture(scope="module")
def command(victim: Victim, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command.on(victim, tmp_path_factory.mktemp("faults") / "work", *BUILD)


def kept(victim: Victim) -> set[str]:
    """The names of tfbuild's images on the victim."""
    there = Engine.connect(victim.found.host)
    names = {name for image in there.labelled("io.tfbuild.id") for name in image.tags}
    there.client.close()
    return names


def test_a_verification_that_is_struck_from_outside_is_no_verdict(victim: Victim, command: Command) -> None:
    def limit(process: Process) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))

    def nothing() -> None: ...

    for step, strike, error, after in (
        ("import", Process.kill, -signal.SIGKILL, nothing),
        ("import", lambda _: victim.kill(), EngineMissing.exit_code, victim.restart),
        ("numerics", lambda _: victim.replace(), EngineMissing.exit_code, nothing),
        ("guard", lambda _: victim.fill(), DiskFull.exit_code, victim.clear),
        ("isa", limit, DiskFull.exit_code, nothing),
    ):
        code, output = command.run(rf"verify: {step} \.\.\.", strike)
        after()
        assert code == error, output[-3000:]
        if error > 0:
            assert one_message(output).startswith("error: "), output[-3000:]
        assert (kept(victim), [*command.folder.glob("reports/*")]) == ({UNNAMED}, []), step
    code, output = command.run()
    assert code == 0, output[-6000:]
    assert kept(victim) == {NAME}
    assert sorted(path.name for path in command.folder.glob("reports/*")) == [
        f"{ID}.{kind}" for kind in ("html", "json", "md")
    ]
    assert not [*Path(command.env["TMPDIR"]).iterdir()]
