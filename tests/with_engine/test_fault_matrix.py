"""What can end a build from outside, at each of its stages, or damage its caches, and the same command after that.

Each fault has an engine of its own, whose data is on a small disk. The command is the same throughout: it compiles the
test double and puts it into an image. It is struck at one stage after the other; each run goes on where the one before
was struck, and the last one is left alone.
"""

import gzip
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tests import broken
from tests.pipeline.test_broken import wheel_of
from tests.ports import free_port
from tests.with_engine import mirror, registry, second
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.second import Second
from tests.with_engine.test_compile import RELEASE, TREE, executed, small
from tfbuild.engine import Engine, containers
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing, Interrupted
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.nightly
# As BuildKit's log names the first step of each stage, in their order; the last one writes the image.
STAGES = {
    "base": r"\[system 2/2\] RUN",
    "toolchain": r"\[toolchain 1/\d\] RUN",
    "source": r"\[source 1/1\] RUN",
    "compile": r"\[build 1/1\] RUN",
    "wheel": r"\[wheel 1/\d\] RUN",
    "runtime": r"\[runtime \d/\d\] (?:RUN|COPY)",
    "image": r"exporting (?:to image|layers)",
}
# Within the compile, as the double of `last_steps` does them.
STEPS = {"last link": r"\S+ SUBCOMMAND: # //tensorflow/double:late ", "packing": r"\S+ packing"}
SECONDS = 600.0
Strike = Callable[["subprocess.Popen[str]"], None]
DISK = "6g"
BALLAST = "ballast"


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

    def __init__(self, found: Second, bridge: str, *, other_cpu: bool = True) -> None:
        self.found, self._bridge, self._other_cpu, self._running = found, bridge, other_cpu, ExitStack()
        self.start()

    @property
    def data(self) -> Path:
        return self.found.folder / "data"

    def start(self, listener: socket.socket | None = None) -> None:
        self._running.enter_context(second.dockerd(self.found, self._bridge, listener, other_cpu=self._other_cpu))

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
def started(size: str = DISK, *, other_cpu: bool = True) -> Iterator[Victim]:
    """A victim on a disk of this size, which ends with the block."""
    with second.place() as (folder, bridge), disk(folder / "data", size):
        second.certificates(folder / "tls")
        found = Second(folder=folder, host=f"unix://{folder}/docker.sock", port=free_port())
        victim = Victim(found, bridge, other_cpu=other_cpu)
        try:
            yield victim
        finally:
            victim.close()


@pytest.fixture
def victim(engine: Engine, site: Site) -> Iterator[Victim]:
    with started() as there:
        client = Engine.connect(there.found.host).client
        client.images.load(b"".join(engine.client.images.get(site.base).save(named=True)))
        client.close()
        yield there


@dataclass(frozen=True, kw_only=True)
class Command:
    """`invoke build` of the double in a folder of its own, on the victim."""

    words: tuple[str, ...]
    folder: Path
    env: dict[str, str]

    @property
    def log(self) -> str:
        paths = [*self.folder.glob("build/*/build.log")]
        return paths[0].read_text(errors="replace") if paths else ""

    def run(self, stage: str = "", strike: Strike = lambda _: None) -> tuple[int, str]:
        """Run it, strike when the stage begins, and return the exit code and what was printed."""
        for path in self.folder.glob("build/*/build.log"):
            path.unlink()
        ended = threading.Event()
        with subprocess.Popen(
            self.words, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            struck: list[bool] = []

            def watch() -> None:
                deadline = time.monotonic() + SECONDS
                while not ended.wait(0.05) and time.monotonic() < deadline:
                    if re.search(rf"^#\d+ {(STAGES | STEPS)[stage]}", self.log, re.MULTILINE):
                        strike(process)
                        struck.append(True)
                        return

            watcher = threading.Thread(target=watch)
            if stage:
                watcher.start()
            try:
                output, _ = process.communicate(timeout=SECONDS)
            finally:
                ended.set()
                process.kill()
            if stage:
                watcher.join()
                assert struck or process.returncode == 0, f"{stage} never began\n{output[-3000:]}\n{self.log[-3000:]}"
        return process.returncode, output


@pytest.fixture
def command(victim: Victim, site: Site, tmp_path: Path) -> Command:
    folder, temporary = tmp_path / "work", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    tree = small(tmp_path / "tree", uuid.uuid4().hex)
    plan = (
        "--target",
        "mkl",
        "--release",
        RELEASE,
        "--bazel",
        mirror.BAZEL,
        "--cpu",
        "westmere",
        "--source",
        str(tree),
    )
    run = ("--base", site.base, "--mirror", site.url, "--network", "host", "--need-disk", "1", "--no-verify")
    return Command(
        words=(sys.executable, "-m", "invoke", "--search-root", str(ROOT), "build", *plan, *run, "--with-headers"),
        folder=folder,
        env=os.environ | {"DOCKER_HOST": victim.found.host, "TMPDIR": str(temporary)},
    )


def one_message(output: str) -> str:
    """The error that a run ended in: one, with what to do. It may quote a traceback of TensorFlow's, indented."""
    assert not OWN_TRACEBACK.search(output), output[-6000:]
    assert output.count("error: ") >= 1, output[-6000:]
    error = output[output.rindex("\nerror: ") + 1 :]
    assert error.count("\nhint: ") == 1, error
    return error


# What strikes, what the user then gets, and how the machine is as before.
ENGINE_ENDS = "error: the container engine ended during the build"
# By the builder, or by the disk itself.
DISK_FULL = ("error: the build ran out of disk space", "error: the engine's disk is full")
OWN_TRACEBACK = re.compile("^Traceback", re.MULTILINE)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)


def test_a_build_goes_on_from_each_stage_at_which_it_was_struck(victim: Victim, command: Command) -> None:
    """Three times at each stage: the engine is killed, its disk is full, and a signal comes, each stage another one."""
    for number, stage in enumerate(STAGES):
        # Writing the image can end before it is struck; then the command has ended well.
        early = {0} if stage == "image" else set()
        code, output = command.run(stage, lambda _: victim.kill())
        assert code in {EngineMissing.exit_code} | early, output[-3000:]
        assert code == 0 or one_message(output).splitlines()[0] == ENGINE_ENDS, output[-3000:]
        victim.restart()

        code, output = command.run(stage, lambda _: victim.fill())
        victim.clear()
        assert code in {DiskFull.exit_code} | early, output[-3000:]
        assert code == 0 or one_message(output).startswith(DISK_FULL), output[-3000:]

        sent = SIGNALS[number % len(SIGNALS)]
        code, output = command.run(stage, partial(send, sent))
        killed = sent == signal.SIGKILL
        assert code in {-sent if killed else Interrupted.exit_code} | early, output[-3000:]
        assert not OWN_TRACEBACK.search(output), output[-6000:]
        left = [*Path(command.env["TMPDIR"]).glob("tfbuild-*")]
        assert bool(left) == (killed and code != 0), left
    code, output = command.run()
    assert code == 0, output[-6000:]
    # Those of the killed run among them.
    assert not [*Path(command.env["TMPDIR"]).iterdir()]
    there = Engine.connect(victim.found.host)
    assert [image.labels["io.tfbuild.wheel"] for image in there.labelled("io.tfbuild.id")] == ["source"]
    there.client.close()


@pytest.fixture
def from_registry(command: Command, engine: Engine, site: Site, tmp_path: Path) -> Iterator[Command]:
    """Its base image is in a registry, from where the engine has it again if somebody removes it."""
    (tmp_path / "registry").mkdir()
    with registry.serve(tmp_path / "registry") as server:
        name = f"127.0.0.1:{server.port}/base:x"
        engine.tag(site.base, name)
        try:
            engine.push(name, Progress())
        finally:
            engine.untag(name)
        yield replace(command, words=tuple(name if word == site.base else word for word in command.words))


def prune(victim: Victim) -> None:
    env = os.environ | {"DOCKER_HOST": victim.found.host}
    for what in ("system", "builder"):
        subprocess.run(["docker", what, "prune", "--all", "--force"], env=env, check=True, capture_output=True)


def test_a_build_whose_engine_is_pruned_ends_well_by_the_same_command(victim: Victim, from_registry: Command) -> None:
    """All images, containers and caches that are not in use go."""
    for stage in ("base", "compile", "image"):
        code, output = from_registry.run(stage, lambda _: prune(victim))
        assert code in (0, BuildFailed.exit_code), output[-3000:]
        assert code == 0 or one_message(output)
        prune(victim)
    code, output = from_registry.run()
    assert code == 0, output[-6000:]
    assert not [*Path(from_registry.env["TMPDIR"]).iterdir()]


# In the linked library. The linker writes it, and it is deleted if that fails: the disk is not full afterwards.
BALLAST_BYTES = 96 << 20
LAST_STEPS = f"""
genrule(
    name = "ballast",
    outs = ["ballast.o"],
    cmd = "head -c {BALLAST_BYTES} /dev/zero > ballast.bin; " +
          "printf '.data\\\\n.globl ballast\\\\nballast: .incbin \\"ballast.bin\\"\\\\n' > ballast.s; " +
          "/usr/bin/clang-16 -c ballast.s -o $@",
)

genrule(
    name = "late",
    srcs = ["ballast.o"],
    outs = ["late.lds"],
    cmd = "sleep 15; touch $@",
)
"""


@pytest.fixture
def last_steps(command: Command) -> Command:
    """The link of its tree writes much, and begins late; its packing takes a while."""
    tree = Path(command.words[command.words.index("--source") + 1])
    rules = tree / "tensorflow/double/BUILD"
    text = rules.read_text().replace("linkshared = 1,\n    deps = [", 'linkshared = 1,\n    deps = ["late.lds"] + [')
    rules.write_text(text.replace('"features.cc", ', '"features.cc", "ballast.o", ') + LAST_STEPS)
    packer = tree / "tensorflow/tools/pip_package/build_pip_package.sh"
    packer.write_text(packer.read_text().replace("set -eu\n", "set -eu\necho packing\nsleep 15\n"))
    return replace(command, words=(*command.words, "--bazel-flag=--subcommands"))


def test_a_compile_that_was_struck_in_its_last_link_or_its_packing_goes_on_there(
    victim: Victim, last_steps: Command
) -> None:
    code, output = last_steps.run("last link", lambda _: victim.fill(BALLAST_BYTES // 2))
    assert code == DiskFull.exit_code, output[-6000:]
    assert one_message(output).startswith(DISK_FULL), output[-3000:]
    victim.clear()

    code, output = last_steps.run("packing", lambda _: victim.kill())
    assert code == EngineMissing.exit_code, output[-6000:]
    assert one_message(output).splitlines()[0] == ENGINE_ENDS
    victim.restart()

    code, output = last_steps.run()
    assert code == 0, output[-6000:]
    # Each kernel's text is new: the run before the last one can only have linked them, and this one only packed.
    assert executed(output) == 0, output[-3000:]


def send(sent: signal.Signals, process: "subprocess.Popen[str]") -> None:
    process.send_signal(sent)


# --- caches that were damaged since -----------------------------------------------------------------------------------

SITE = "/opt/tensorflow/lib/python3.11/site-packages"
# In the image: what the compile made, and what pip made of a package without a wheel.
MADE = (f"{SITE}/tensorflow/libtensorflow_double.so", f"{SITE}/x.py")
PACKER = "tensorflow/tools/pip_package/make_wheel.py"
CLEAR = "docker builder prune --filter type=exec.cachemount"


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """Builds that compile and install again, all of it from caches: the program that packs the wheel changes.

    `packer`: the text of that program; `required`: the URL of what pip has to make a wheel of.
    """

    victim: Victim
    command: Command
    packer: str
    required: str

    def run(self) -> tuple[int, str]:
        tree = Path(self.command.words[self.command.words.index("--source") + 1])
        text = self.packer.replace("Summary: ", f"Requires-Dist: x @ {self.required}\\nSummary: {uuid.uuid4().hex} ")
        (tree / PACKER).write_text(text)
        return self.command.run()

    def made(self) -> dict[str, bytes]:
        """Build, and return what the image has."""
        code, output = self.run()
        assert code == 0, output[-6000:]
        there = Engine.connect(self.victim.found.host)
        (image,) = (image for image in there.labelled("io.tfbuild.id") if image.tags)
        contents = there.read_contents(image.id, MADE, 1 << 26)
        there.client.close()
        assert {*contents} == {*MADE}
        return contents

    def refused(self) -> str:
        """Build, which fails; do what the hint says, and return the message."""
        code, output = self.run()
        assert code == BuildFailed.exit_code, output[-3000:]
        message = one_message(output)
        assert f"`{CLEAR}`" in message
        env = os.environ | {"DOCKER_HOST": self.victim.found.host}
        subprocess.run([*CLEAR.split(), "--force"], env=env, check=True, capture_output=True)
        assert not self.cache("runs")
        return message

    def cache(self, mark: str) -> list[Path]:
        """The cache with this folder in it: `runs` is Bazel's, `wheels` is pip's."""
        return [path.parent for path in self.victim.data.glob(f"overlay2/*/diff/{mark}")]

    @property
    def disk(self) -> Path:
        """Bazel's disk cache."""
        (found,) = self.victim.data.glob("overlay2/*/diff/*/disk")
        return found

    @property
    def contents(self) -> list[Path]:
        """The files there that are named by their digest."""
        return [path for path in self.disk.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name)]


def damage(cache: list[Path], one: Callable[[Path], object], *kinds: str) -> None:
    """Damage each file of a cache that has files of these kinds."""
    files = [path for folder in cache for path in folder.rglob("*") if path.is_file()]
    assert all(any(path.match(kind) for path in files) for kind in kinds), files
    for path in files:
        one(path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def overwritten(path: Path) -> None:
    """Also it belongs to somebody else, and nobody may read it."""
    path.write_bytes(os.urandom(path.stat().st_size))
    os.chown(path, 12345, 12345)
    path.chmod(0)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def source_package() -> bytes:
    """The package x-1.0 without a wheel, which it brings itself."""
    files = {
        "pyproject.toml": b"[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        "backend.py": b"import shutil\ndef build_wheel(folder, *_):\n"
        b"    return shutil.copy('x-1.0-py3-none-any.whl', folder).rpartition('/')[2]\n",
        "x-1.0-py3-none-any.whl": wheel_of("word = 'right'\n"),
    }
    return gzip.compress(containers.archive({f"/x-1.0/{name}": content for name, content in files.items()}))


@pytest.fixture
def rebuild(victim: Victim, command: Command) -> Iterator[Rebuild]:
    path = "/x-1.0.tar.gz"
    with broken.serve({path: source_package()}) as server:
        packer = (TREE / PACKER).read_text()
        yield Rebuild(victim=victim, command=command, packer=packer, required=f"{server.url}{path}")


def test_damaged_caches_of_bazel_and_pip_give_the_same_image_or_a_hint_that_helps(rebuild: Rebuild) -> None:
    right = rebuild.made()
    of_bazel = ("ac_*", "[0-9a-f]*", "*.jsonl")
    damage(rebuild.cache("wheels"), emptied, "*.whl")
    damage(rebuild.cache("runs"), emptied, *of_bazel)
    assert rebuild.made() == right
    # Some results are left, whose outputs are not what they say.
    spared = {path: path.read_bytes() for path in sorted(rebuild.disk.glob("ac_*"))[::2]}
    damage(rebuild.cache("runs"), overwritten, *of_bazel)
    for path, content in spared.items():
        path.write_bytes(content)
    assert rebuild.made() == right
    wrong = [path for path in rebuild.contents if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]
    assert not wrong, "they would be compiled again each time"
    damage(rebuild.cache("wheels"), a_folder, "*.whl")
    shutil.rmtree(disk_cache := rebuild.disk)
    disk_cache.write_text("in place of the folder")
    assert rebuild.made() == right
    # A result that is one still, of an output with another name.
    for path in rebuild.disk.glob("ac_*"):
        path.write_bytes(path.read_bytes().replace(b"/double/", b"/dauble/"))
    message = rebuild.refused()
    assert "was not created: the tree's rule does not make it, or its result in the cache is damaged" in message
    assert rebuild.made() == right
    for cache in rebuild.cache("runs"):
        for path in cache.glob("runs/*.lock"):
            a_folder(path)
    message = rebuild.refused()
    assert message.startswith("error: a cache of the builder is damaged: ")
    assert "/mnt/cache/runs/" in message
    assert rebuild.made() == right
