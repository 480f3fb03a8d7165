"""The container engine: images, short runs, workers and files out of images, through the `docker` SDK.

Two things go through Docker's command line instead: builds (build.py), and the streams of containers, because it
handles the end of stdin, TLS and ssh, which the SDK's raw sockets do not.
"""

import errno
import os
import secrets
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack

import docker

from tfbuild.engine import build, connection, containers, faults, transfer
from tfbuild.engine import image as images
from tfbuild.engine.build import BuildSettings
from tfbuild.engine.connection import CALL_SECONDS, HERE, Endpoint
from tfbuild.engine.containers import ContainerRun, Sandbox, Worker
from tfbuild.engine.faults import translated
from tfbuild.engine.image import Image, parse_image
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage, reason_of
from tfbuild.oci import credentials
from tfbuild.oci.references import split_tag
from tfbuild.util.process import Attached, interruptible
from tfbuild.util.progress import Progress

MOST_OUTPUT = 8 * 1024 * 1024
# The system's containerd, in which new installations of Docker 29 keep images and caches. The engine does not tell its
# folder. A containerd that dockerd itself started is below the engine's own.
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTAINERD_CONFIG, CONTAINERD_ROOT = Path("/etc/containerd/config.toml"), Path("/var/lib/containerd")


class ContainerOptions(TypedDict, total=False):
    """What a container gets.

    `files` are copied in before it starts, readable and executable by all. An `entrypoint` of () clears the image's.
    `gpus`: all that the engine has; `huge`: the engine's reserved huge pages. A `sandbox` confines the container.
    """

    env: Mapping[str, str]
    entrypoint: Sequence[str] | None
    files: Mapping[str, bytes]
    network: str
    gpus: bool
    huge: bool
    sandbox: Sandbox | None


class Engine:
    """One container engine; make it with connect()."""

    def __init__(self, client: Any, name: str = "", endpoint: Endpoint = HERE) -> None:
        """Take the SDK's client of an engine, its `name` (an address, or a context's), and where it is."""
        self.client = client
        self.name = name
        self.endpoint, self.local = endpoint, endpoint.local
        with translated():
            version = client.version()
        self.version: str = version["Version"]
        self.platform = f"{version['Os']}/{version['Arch']}"

    @classmethod
    def connect(cls, name: str = "") -> "Engine":
        """Connect to the engine `name` (an address, or a Docker context), else to the one that Docker's client uses.

        Raises EngineMissing if none answers.
        """
        endpoint = connection.endpoint(connection.environment(name, os.environ))
        client = connection.open_client(endpoint)
        if endpoint.address.startswith("ssh://"):
            name = connection.tunnel_to(endpoint.address)
        return cls(client, name, endpoint)

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Docker's own client talks to this engine."""
        return connection.environment(self.name, os.environ)

    def require_answer(self) -> None:
        """Raise EngineMissing if the engine takes no new connection: while it shuts down it serves the old ones."""
        connection.open_client(self.endpoint).close()

    def _info(self) -> Mapping[str, Any]:
        with translated():
            info: Mapping[str, Any] = self.client.info()
        return info

    @property
    def data_root(self) -> Path | None:
        """The engine's folder of images and caches; None if it is elsewhere, in a VM, or closed to this user."""
        info = self._info()
        stored = ["driver-type", "io.containerd.snapshotter.v1"] in (info.get("DriverStatus") or ())
        shared = stored and (info.get("Containerd") or {}).get("Address") == CONTAINERD_SOCKET
        root = _containerd_root() if shared else Path(info["DockerRootDir"])
        # Docker Desktop's is in its VM; in WSL, or beside another engine, this machine has a folder of that name too.
        here = self.local and info.get("OperatingSystem") != "Docker Desktop"
        # Path.is_dir() raises where a folder above is closed, as it is with userns-remap.
        return root if here and os.path.isdir(root) else None

    def image(self, ref: str) -> Image:
        """Return the image named `ref`. Raises UnknownImage if it is not on this engine."""
        with translated(ref):
            return parse_image(self.client.images.get(ref).attrs)

    def labelled(self, label: str) -> list[Image]:
        """Return all images that carry `label`, including those without a name."""
        with translated():
            ids = [row["Id"] for row in self.client.api.images(filters={"label": label})]
        found = []
        for image in ids:
            with suppress(UnknownImage):  # somebody has just removed it
                found.append(self.image(image))
        return found

    def exists(self, ref: str) -> bool:
        """Return whether the engine has the image."""
        with suppress(UnknownImage):
            self.image(ref)
            return True
        return False

    def tag(self, ref: str, new: str) -> None:
        """Give the image `ref` another name: `new` ("repository:tag")."""
        repository, tag = split_tag(new)
        with translated(ref):
            self.client.images.get(ref).tag(repository, tag)

    def untag(self, ref: str) -> None:
        """Remove the name `ref`. An image goes with its last name; its parents stay."""
        with translated(ref):
            self.client.images.remove(ref, noprune=True)

    def remove(self, ref: str) -> None:
        """Remove the image with all of its names."""
        image = self.image(ref)
        with translated(ref):
            self.client.images.remove(image.id, force=True)

    def save(self, names: Sequence[str], path: Path) -> None:
        """Write these images to one file, with the layers that they share once. Raises TransferFailed."""
        # The SDK saves one image alone.
        command = [build.find_program(self.environ)[0], "save", *names]
        # Not by --output: a client that is killed leaves its own temporary file beside `path`.
        with path.open("wb") as file:
            done = subprocess.run(
                command, env=self.environ, stdout=file, stderr=subprocess.PIPE, text=True, check=False
            )
        if done.returncode:
            why = done.stderr.strip()
            # The daemon tells of the engine's disk, the client of that of `path`.
            if (full := faults.disk_full(why)) and "daemon" not in why:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            raise full or transfer.TransferFailed(f"docker save: {why}")

    def push(self, ref: str, progress: Progress) -> None:
        """Upload an image under its own name, without the layers that the registry has. Raises TransferFailed."""
        repository, tag = split_tag(ref)
        with progress.step(f"push {ref}") as step, translated(ref):
            credentials.conceal_login(repository)
            with credentials.readable():
                events = self.client.api.push(repository, tag, stream=True, decode=True)
            transfer.follow(events, step, pushing=True)

    def pull(self, ref: str, progress: Progress) -> None:
        """Download the image `ref`, without the layers that the engine has, if need be again. Raises TransferFailed."""
        transfer.retried(lambda: self._pull(ref, progress), progress)

    def _pull(self, ref: str, progress: Progress) -> None:
        with progress.step(f"pull {ref}") as step, translated(ref):
            credentials.conceal_login(ref)
            with credentials.readable(), transfer.beginning():
                events = self.client.api.pull(ref, stream=True, decode=True, platform=self.platform)
            transfer.follow(events, step, pushing=False)

    def run(
        self,
        ref: str,
        command: Sequence[str] = (),
        *,
        timeout: float = 120,
        stdin: bytes = b"",
        limit: int = MOST_OUTPUT,
        **options: Unpack[ContainerOptions],
    ) -> ContainerRun:
        """Run a command to its end in a new container, which is always removed.

        It is ended as soon as one of its streams exceeds `limit` bytes. Raises TimeoutError after `timeout` seconds.
        """
        with interruptible(), ExitStack() as stack:
            questions = stack.enter_context(tempfile.TemporaryFile())
            questions.write(stdin)
            questions.seek(0)
            container = stack.enter_context(self._container(ref, command, **options))
            streams = stack.enter_context(closing(self._attach(container, questions)))
            deadline = time.monotonic() + timeout  # the time that a slow engine took for the container does not count
            while streams.open and max(len(streams.out), len(streams.err)) <= limit:
                try:
                    streams.pump(deadline)
                except TimeoutError:
                    raise TimeoutError(f"{ref}: {' '.join(command)[:80]} ran longer than {timeout:g} s") from None
            return ContainerRun(
                exit_code=containers.KILLED if streams.open else containers.exit_code(streams),
                stdout=streams.out[:limit].decode(errors="replace"),
                stderr=streams.err[:limit].decode(errors="replace"),
                truncated=streams.open,
            )

    def worker(self, ref: str, command: Sequence[str], **options: Unpack[ContainerOptions]) -> Worker:
        """Start a container that answers each line with a line; close it, or use it in a `with`."""
        with ExitStack() as stack:
            container = stack.enter_context(self._container(ref, command, **options))
            attached = stack.enter_context(closing(self._attach(container)))
            return Worker(container.name, container.kill, attached, stack.pop_all())

    @contextmanager
    def sandbox(self, ref: str, files: Mapping[str, bytes], path: str) -> Iterator[Sandbox]:
        """Make a sandbox whose containers see `files`, by their paths below `path`; on this engine until it ends."""
        # It starts empty, whatever the image has there.
        volume = docker.types.Mount(path, None, type="volume", no_copy=True)
        with self._unstarted(ref, volume) as container, translated(ref):
            container.put_archive(path, containers.archive(files))
            container.reload()
            (mount,) = (mount for mount in container.attrs["Mounts"] if mount["Destination"] == path)
            yield Sandbox(
                processes=containers.PROCESSES + containers.PROCESSES_PER_CPU * self.cpus,
                volume=mount["Name"],
                path=path,
            )

    def read_file(self, ref: str, path: str, destination: Path, limit: int) -> Path:
        """Copy one regular file of at most `limit` bytes out of the image without starting it.

        The engine follows links, inside the image. `destination` is not left half written. Raises UnknownImage,
        FileNotFoundError, IsADirectoryError (not a regular file) or OSError with EFBIG.
        """
        with self._unstarted(ref) as container:
            images.read_file(container, path, destination, limit)
        return destination

    def copy_files(
        self, ref: str, folder: str, wanted: Callable[[str], bool], destination: Path, limit: int
    ) -> Iterator[tuple[str, Path]]:
        """Yield the names below `folder` of the regular files of the image that `wanted` picks by them, each copied to
        `destination` until the next one is asked for. Raises what read_file() raises.
        """
        with self._unstarted(ref) as container:
            yield from images.copy_files(container, folder, wanted, destination, limit)

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int) -> dict[str, bytes]:
        """Read the regular files of the image whose absolute paths `wanted` picks, without starting it.

        The engine sends the whole image for this. Raises UnknownImage, or OSError with EFBIG if the files together
        exceed `limit` bytes, or the image has more content than any real one.
        """
        with self._unstarted(ref) as container:
            return images.read_files(container, wanted, limit)

    def build(self, context: Path, settings: BuildSettings) -> None:
        """Build a folder with BuildKit; all that is printed goes to the log.

        Raises BuildFailed with the last lines that matter, DiskFull, EngineMissing if no client can build, or
        TimeoutError. Ctrl-C also ends the build inside the engine.
        """
        with self.watched("the build"):
            build.build(context, self.environ, settings)

    @contextmanager
    def watched(self, use: str) -> Iterator[Callable[[], None]]:
        """Raise EngineMissing for any error in the block if the engine ended during it, even if it is back.

        Likewise DiskFull if its disk is full. Yields a function that raises them as well, for failures that the block
        would blame on an image. `use`: what the engine does meanwhile, as in "ended during `use`".
        """
        with faults.held_connection(self.client) as ended:

            def require_engine() -> None:
                try:
                    self.require_answer()
                except EngineMissing as missing:
                    why = missing.reason.removeprefix(faults.NO_ANSWER)
                    message = f"the container engine stopped answering during {use}: {why}"
                    raise EngineMissing(message, hint=f"{missing.hint}; {faults.REPEAT_HINT}") from missing
                # In this order: a new connection may have waited until the next engine started.
                if ended():
                    hint = f"{faults.REPEAT_HINT}; the engine's log says why it ended (journalctl -u docker)"
                    raise EngineMissing(f"the container engine ended during {use}, and was started again", hint=hint)
                # It does not always say so itself.
                if faults.disk_is_full(root := self.data_root):
                    message = f"the engine's disk is full: no space is left on {root} for {use}"
                    raise DiskFull(message, hint=faults.PRUNE_HINT)

            try:
                yield require_engine
            except DiskFull:
                raise
            except Exception:
                require_engine()
                raise

    def require_buildkit(self) -> None:
        """Raise EngineMissing if the `docker` program cannot build with BuildKit on this engine."""
        build.find_program(self.environ)

    @property
    def cpus(self) -> int:
        """The number of processors of the engine's machine."""
        return int(self._info()["NCPU"])

    @property
    def memory(self) -> int:
        """The memory of the engine's machine, in bytes."""
        return int(self._info()["MemTotal"])

    def lacks_gpus(self, ref: str, sandbox: Sandbox | None = None) -> str:
        """Return why containers of the image get no GPU here, by starting one with GPUs; "" if it starts."""
        try:
            trial = self.run(ref, ["python", "-c", ""], entrypoint=(), timeout=CALL_SECONDS, sandbox=sandbox, gpus=True)
        except UnknownImage:
            raise
        except (TfbuildError, TimeoutError) as error:
            return f"no container gets a GPU here: {reason_of(error)}"
        said = trial.stderr.strip().rpartition("\n")[2] or "it exited without output"
        return f"no container gets a GPU here: {said}" if trial.exit_code else ""

    def _attach(self, container: Any, stdin: IO[bytes] | None = None) -> Attached:
        command = [build.find_program(self.environ)[0], "start", "--attach", "--interactive", container.name]
        return Attached(command, self.environ, stdin)

    @contextmanager
    def _container(
        self, ref: str, command: Sequence[str], own: Sequence[Any] = (), **options: Unpack[ContainerOptions]
    ) -> Iterator[Any]:
        """Create a container without capabilities, with its `own` mounts; remove it at the end by its name."""
        name = f"tfbuild-{secrets.token_hex(6)}"
        gpus, entrypoint = options.get("gpus", False), options.get("entrypoint")
        huge = [containers.HUGE_PAGES] if options.get("huge") else []
        with translated(ref):
            try:
                image = self.client.images.get(ref)
                container = self.client.containers.create(
                    image.id,
                    list(command),
                    name=name,
                    labels={containers.LABEL: str(os.getpid())},
                    # The engine takes an empty list for the image's own entrypoint; [""] clears it.
                    entrypoint=None if entrypoint is None else list(entrypoint) or [""],
                    environment=dict(options.get("env", {})),
                    use_config_proxy=False,  # which may have a password, and serves no container without a network
                    network_mode=options.get("network", "none"),
                    device_requests=[containers.GPUS] if gpus else None,
                    **containers.confinement(options.get("sandbox"), [*own, *huge], gpus=gpus),
                )
                if copied := options.get("files"):
                    container.put_archive("/", containers.archive(copied))
                yield container
            finally:
                containers.discard(self.client, name)

    def _unstarted(self, ref: str, *own: Any) -> AbstractContextManager[Any]:
        # Some images name no command, and the engine creates no container without one.
        return self._container(ref, ("-",), own)


def _containerd_root() -> Path:
    """Return the folder of the system's containerd."""
    with suppress(OSError, ValueError, KeyError):
        return Path(str(tomllib.loads(CONTAINERD_CONFIG.read_text(encoding="utf-8"))["root"]))
    return CONTAINERD_ROOT
