"""An engine on a small disk, which can be killed, and commands that are struck while they work on it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.with_engine import second
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import Second
from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing

SECONDS = 1200.0
DISK, BALLAST = "6g", "ballast"
Strike = Callable[["subprocess.Popen[str]"], None]


@contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """A small disk at the folder, with a file system that keeps no reserve for root."""
    image = folder.with_suffix(".img")
    folder.mkdir()
    subprocess.run(["truncate", "-s", size, image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def fill(folder: Path, left: int = 0) -> None:
    """Leave only so many bytes on the disk of the folder."""
    size = shutil.disk_usage(folder).free - left
    with (folder / BALLAST).open("wb") as file:
        while size > 4096:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
                return
            except OSError:
                size -= 4096


class Victim:
    """An engine, here on a small disk, which can be killed and started again."""

    def __init__(self, found: Second, bridge: str) -> None:
        self.found, self._bridge, self._running = found, bridge, ExitStack()
        self.start()

    @property
    def data(self) -> Path:
        return self.found.folder / "data"

    def start(self, listener: socket.socket | None = None) -> None:
        self._running.enter_context(second.dockerd(self.found, self._bridge, listener, other_cpu=False))

    def kill(self) -> None:
        os.kill(int((self.found.folder / "pid").read_text()), signal.SIGKILL)

    def replace(self) -> None:
        """Kill it and start it again at once, as systemd does it: who connects meanwhile waits, and containers run."""
        path = Path(self.found.host.removeprefix("unix://"))
        path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            self.kill()
            self._running.close()
            # Its containerd ended with it, but stays a zombie if nobody here waits for orphans.
            (self.found.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)
            self.start(listener)
        self.wait()

    def restart(self) -> None:
        """As systemd does it: everything that belongs to the engine ends."""
        self._running.close()
        while running := second.left_running(self.found.folder):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        (self.found.folder / "runtime").unlink()
        # As after a reboot, which empties /run.
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if Path(point := line.split()[1]).is_relative_to(self.found.folder / "exec"):
                subprocess.run(["umount", "--lazy", point], check=True)
        shutil.rmtree(self.found.folder / "exec")
        self.start()
        self.wait()

    def wait(self) -> None:
        """The port is open before the engine answers."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                Engine.connect(self.found.host).client.close()
                return
            except EngineMissing:
                assert time.monotonic() < deadline

    def fill(self, left: int = 0) -> None:
        """Leave only so many bytes on the disk."""
        fill(self.data, left)

    def clear(self) -> None:
        (self.data / BALLAST).unlink()

    def close(self) -> None:
        self._running.close()


@contextmanager
def started() -> Iterator[Victim]:
    """A victim whose containers see this machine's CPU, which ends with the block."""
    with second.place() as (folder, bridge), disk(folder / "data", DISK):
        second.certificates(folder / "tls")
        found = Second(folder=folder, host=f"unix://{folder}/docker.sock", port=free_port())
        victim = Victim(found, bridge)
        try:
            yield victim
        finally:
            victim.close()


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line of `invoke` in a folder of its own."""

    words: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]

    @classmethod
    def on(cls, victim: Victim, folder: Path, *words: str) -> "Command":
        (folder / "tmp").mkdir(parents=True)
        env = os.environ | {"DOCKER_HOST": victim.found.host, "TMPDIR": str(folder / "tmp")}
        return cls(words=words, folder=folder, env=env)

    def run(self, step: str = "", strike: Strike = lambda _: None) -> tuple[int, str]:
        """Run it, and strike once its output or BuildKit's log has a line that begins so: the code and the output."""
        printed = self.folder / "output"
        for path in self.folder.glob("build/*/build.log"):
            path.unlink()

        def said() -> str:
            texts = (printed, *self.folder.glob("build/*/build.log"))
            return "".join(path.read_text(errors="replace") for path in texts)

        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *self.words]
        with (
            printed.open("w") as output,
            subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=output, stderr=output, text=True, start_new_session=True
            ) as process,
        ):
            struck, deadline = not step, time.monotonic() + SECONDS
            try:
                while process.poll() is None:
                    assert time.monotonic() < deadline, said()[-6000:]
                    if not struck and re.search(rf"^(?:#\d+ )?(?:{step})", said(), re.MULTILINE):
                        strike(process)
                        struck = True
                    time.sleep(0.05)
            finally:
                process.kill()
        assert struck or process.returncode == 0, f"{step} never began\n{said()[-6000:]}"
        return process.returncode, printed.read_text()


def one_message(output: str) -> str:
    """The error that a run ended in: one, with what to do. It may quote a traceback of TensorFlow's, indented."""
    assert not re.search("^Traceback", output, re.MULTILINE), output[-6000:]
    error = output[f"\n{output}".rindex("\nerror: ") :]
    assert error.count("\nhint: ") == 1, error
    return error
