"""An engine on a small disk, which can be killed and started again."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.with_engine import second
from tests.with_engine.second import Second

DISK, BALLAST = "6g", "ballast"


@dataclass(kw_only=True)
class Victim:
    """An engine, here on a small disk, which can be killed and started again."""

    found: Second
    bridge: str
    running: ExitStack = field(default_factory=ExitStack)

    @property
    def data(self) -> Path:
        return self.found.folder / "data"

    def start(self) -> None:
        self.running.enter_context(second.dockerd(self.found, self.bridge, other_cpu=False))

    def kill(self) -> None:
        os.kill(int((self.found.folder / "pid").read_text()), signal.SIGKILL)

    def restart(self) -> None:
        """As systemd does it: everything that belongs to the engine ends."""
        self.running.close()
        while running := second.left_running(self.found.folder):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        (self.found.folder / "runtime").unlink()
        # As after a reboot, which empties /run.
        second.unmount(self.found.folder / "exec")
        shutil.rmtree(self.found.folder / "exec")
        self.start()

    def fill(self) -> None:
        """Leave no byte on the disk."""
        size = shutil.disk_usage(self.data).free
        with (self.data / BALLAST).open("wb") as file:
            while size > 4096:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    return
                except OSError:
                    size -= 4096

    def clear(self) -> None:
        (self.data / BALLAST).unlink()


@contextmanager
def started() -> Iterator[Victim]:
    """A victim whose containers see this machine's CPU, which ends with the block."""
    with second.place() as (folder, bridge), ExitStack() as stack:
        data, image = folder / "data", folder / "data.img"
        data.mkdir()
        subprocess.run(["truncate", "-s", DISK, image], check=True)
        # Without a reserve for root.
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, data], check=True)
        stack.callback(second.unmount, data)
        second.certificates(folder / "tls")
        found = Second(folder=folder, host=f"unix://{folder}/docker.sock", port=free_port())
        victim = Victim(found=found, bridge=bridge)
        with victim.running:
            victim.start()
            yield victim
