"""The container engine: images, short runs, workers and files out of images, through the `docker` SDK.

Two things go through Docker's command line instead. Images are built by it (build.py), because the SDK has only the
classic builder. Containers are attached by it, because it handles the end of stdin, TLS and ssh, which the SDK's raw
sockets do not.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tfbuild.engine import build, connection, containers, copy_out, docker_cli, faults, leases, selection, transfer
from tfbuild.engine import sandbox as sandboxes
from tfbuild.engine.build import BuildPlace, BuildSettings
from tfbuild.engine.connection import CALL_SECONDS, CONNECT_SECONDS
from tfbuild.engine.containers import ContainerRun, Process, Worker, process_of
from tfbuild.engine.copy_out import Files
from tfbuild.engine.docker_cli import Builder
from tfbuild.engine.faults import translated
from tfbuild.engine.gpus import Offer, offered, why_none
from tfbuild.engine.image import Image, parse_image, split_tag
from tfbuild.engine.sandbox import Sandbox
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import UnknownImage
from tfbuild.oci import credentials
from tfbuild.util import files
from tfbuild.util.process import Attached, interruptible
from tfbuild.util.progress import Progress

MOST_OUTPUT = 8 * 1024 * 1024


class Engine:
    """One container engine; make it with connect()."""

    chosen = USUAL
    # Containers of runs that were killed, which connect() removed.
    swept: tuple[str, ...] = ()

    def __init__(self, client: Any, host: str = "", *, local: bool = True, chosen: EngineChoice = USUAL) -> None:
        """`host`: the address that Docker's own client gets; "" leaves it to `chosen`, then to the environment.

        `local`: whether the engine's socket is on this machine.
        """
        self.client = client
        self.host = host
        self.local = local
        self.chosen = chosen
        with translated():
            version = client.version()
        self.version: str = version["Version"]
        names = [str(part.get("Name", "")) for part in version.get("Components") or ()]
        self.podman = "Podman Engine" in names
        self.platform = f"{version['Os']}/{version['Arch']}"

    @classmethod
    def connect(cls, host: str = "", *, chosen: EngineChoice = USUAL) -> "Engine":
        """Connect to the engine at `host`, else to the `chosen` one, else to the one that the environment names.

        The environment's is DOCKER_HOST, the current context, or the socket. Also removes what killed runs left: their
        containers there (`swept`), and their temporary folders here. Raises EngineMissing where none answers.
        """
        endpoint = selection.endpoint(docker_cli.environment(host, chosen))
        if endpoint.address.startswith("ssh://"):
            host = connection.tunnel_to(endpoint.address)
        connection.check_address(host or endpoint.address)
        with connection.explained(endpoint):
            client = connection.open_client(host or endpoint.address, endpoint.tls)
            engine = cls(client, host, local=endpoint.local, chosen=chosen)
        engine.swept = tuple(leases.sweep(client))
        files.sweep()
        return engine

    @property
    def data_root(self) -> Path:
        """The engine's folder of images and caches; the path is one of its machine, which may not be this one."""
        with translated():
            return Path(self.client.info()["DockerRootDir"])

    def image(self, ref: str) -> Image:
        """Return the image named `ref`. Raises UnknownImage where it is not on this engine."""
        with translated(ref):
            return parse_image(self.client.images.get(ref).attrs)

    def labelled(self, label: str) -> list[Image]:
        """Return all images that carry `label`, including those without a name."""
        with translated():
            ids = [row["Id"] for row in self.client.api.images(filters={"label": label})]
        images = []
        for image in ids:
            with suppress(UnknownImage):  # somebody has just removed it
                images.append(self.image(image))
        return images

    def history(self, ref: str) -> tuple[str, ...]:
        """Return the instructions that made the image, as its builder recorded them, the last one first."""
        with translated(ref):
            return tuple(str(step.get("CreatedBy") or "") for step in self.client.api.history(ref))

    def exists(self, ref: str) -> bool:
        """Return whether the image is on this engine."""
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

    def push(self, ref: str, progress: Progress) -> None:
        """Upload an image under its own name, without the layers that the registry has. Raises TransferFailed.

        The engine itself retries each layer, and uses the credentials that `docker login` stored.
        """
        repository, tag = split_tag(ref)
        with progress.step(f"push {ref}") as step, translated(ref):
            credentials.conceal_login(repository)
            with credentials.readable():
                events = self.client.api.push(repository, tag, stream=True, decode=True)
            transfer.follow(events, step, pushing=True)

    def pull(self, ref: str, progress: Progress) -> None:
        """Download the image `ref` ("repository@sha256:..."), without the layers that the engine has.

        Raises TransferFailed.
        """
        with progress.step(f"pull {ref}") as step, translated(ref):
            credentials.conceal_login(ref)
            with credentials.readable():
                events = self.client.api.pull(ref, stream=True, decode=True, platform=self.platform)
            transfer.follow(events, step, pushing=False)

    def run(
        self,
        ref: str,
        command: Sequence[str] = (),
        *,
        env: Mapping[str, str] = {},
        entrypoint: Sequence[str] | None = None,
        files: Mapping[str, bytes] = {},
        timeout: float = 120,
        stdin: bytes = b"",
        network: str = "none",
        limit: int = MOST_OUTPUT,
        mounts: Mapping[str, str] = {},
        user: str = "",
        gpus: bool = False,
        sandbox: Sandbox | None = None,
        look: Callable[[Process | None], None] | None = None,
        look_after: int = 0,
    ) -> ContainerRun:
        """Run a command to its end in a new container, which is always removed.

        `files` are copied in before it starts, readable and executable by all. An `entrypoint` of () clears the
        image's. `mounts`: folders of the engine's machine by their path in the container, read-only there; `user`:
        "uid:gid" in place of the image's; `gpus`: all that the engine offers; `limit`: bytes kept of each stream.
        A `sandbox` confines the container; it is then also ended as soon as a stream exceeds `limit`. `look` gets the
        process after `look_after` lines on stdout; only then stdin ends. Raises TimeoutError after `timeout` seconds.
        """
        deadline, lease = time.monotonic() + timeout, timeout + leases.MARGIN_SECONDS
        with (
            interruptible(),
            self._container(
                ref, command, env, entrypoint, files, network, mounts, user, gpus, lease, sandbox
            ) as container,
            closing(self._attach(container)) as attached,
        ):
            undisturbed = self._undisturbed(container, attached, sandbox)
            attached.send(stdin, close=look is None)
            truncated = False
            while attached.open and not (truncated and sandbox):
                try:
                    attached.pump(deadline)
                except TimeoutError:
                    undisturbed()
                    raise TimeoutError(f"{ref}: {' '.join(command)[:80]} ran longer than {timeout:g} s") from None
                truncated |= containers.truncate(attached.out, limit) | containers.truncate(attached.err, limit)
                if look and attached.out.count(b"\n") >= look_after:
                    look(process_of(container) if self.local else None)
                    attached.send(b"", close=True)
                    look = None
            # One that is still open printed too much, and is killed.
            ended = None if attached.open else attached.process.wait()
            return ContainerRun(
                exit_code=containers.KILLED if ended is None else containers.exit_code(container, undisturbed),
                stdout=attached.out.decode(errors="replace"),
                stderr=attached.err.decode(errors="replace"),
                truncated=truncated,
            )

    def worker(
        self,
        ref: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] = {},
        entrypoint: Sequence[str] | None = None,
        files: Mapping[str, bytes] = {},
        network: str = "none",
        gpus: bool = False,
        sandbox: Sandbox | None = None,
    ) -> Worker:
        """Start a container that answers each line with a line; close it, or use it in a `with`.

        `gpus`, `sandbox`: as in run().
        """
        with ExitStack() as stack:
            container = stack.enter_context(
                self._container(ref, command, env, entrypoint, files, network, gpus=gpus, sandbox=sandbox)
            )
            attached = stack.enter_context(closing(self._attach(container)))

            undisturbed = self._undisturbed(container, attached, sandbox)

            def exit_code() -> int:
                attached.process.wait(timeout=CONNECT_SECONDS)
                return containers.exit_code(container, undisturbed)

            return Worker(container, attached, exit_code, undisturbed, stack.pop_all())

    def _undisturbed(self, container: Any, attached: Attached, sandbox: Sandbox | None) -> Callable[[], None]:
        """Return what raises NotJudged if an image is judged by a container that somebody outside disturbed."""
        if sandbox is None:
            return lambda: None
        return partial(containers.require_undisturbed, self.client, container, attached.process)

    @contextmanager
    def sandbox(self, ref: str, files: Mapping[str, bytes], path: str) -> Iterator[Sandbox]:
        """Make a sandbox whose containers see `files`, by their paths below `path`; on this engine until it ends."""
        with ExitStack() as stack, self._unstarted(ref, sandboxes.volume(path)) as container, translated(ref):
            container.put_archive(path, containers.archive(files))
            box = sandboxes.sandbox_at(container, path, sandboxes.processes(self.cpus))
            # It goes with its container, unless somebody removed that (docker container prune).
            stack.callback(sandboxes.discard, self.client, box)
            yield box

    def require_whole(self, sandbox: Sandbox) -> None:
        """Raise NotJudged if somebody removed the sandbox's files. Then a container gets an empty volume."""
        sandboxes.require_volume(self.client, sandbox)

    def read_file(self, ref: str, path: str, destination: Path, limit: int) -> Path:
        """Copy one regular file of at most `limit` bytes out of the image without starting it.

        The engine follows links, inside the image. `destination` is written whole or not at all. Raises UnknownImage,
        FileNotFoundError, IsADirectoryError (not a regular file) or OSError with EFBIG.
        """
        with self._unstarted(ref) as container:
            copy_out.read_file(container, path, destination, limit)
        return destination

    def read_contents(self, ref: str, paths: Sequence[str], limit: int) -> dict[str, bytes]:
        """Read those of some regular files that the image has, each of at most `limit` bytes, without starting it.

        Links are followed inside the image. Raises UnknownImage, IsADirectoryError, or OSError with EFBIG.
        """
        with self._unstarted(ref) as container:
            return copy_out.read_contents(container, paths, limit)

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int) -> Files:
        """Read the regular files and links of the image whose paths `wanted` picks, without starting the image.

        Paths are absolute, and links are not followed. The engine sends the whole image for this. Raises UnknownImage,
        or OSError with EFBIG where the files together exceed `limit` bytes.
        """
        with self._unstarted(ref) as container:
            return copy_out.read_files(container, wanted, limit)

    def build(self, context: Path, settings: BuildSettings, *, tag: str, stage: str = "") -> str:
        """Build a folder with BuildKit, name the image `tag` and return its id; the whole output goes to `log`.

        With `stage`, the image is that stage and not the last one.

        `watch` gets each line that a step prints, and returns what progress shows of it. Raises BuildFailed with the
        last lines that matter, DiskFull, EngineMissing where no client can build, or TimeoutError after `seconds`.
        Ctrl-C or SIGTERM also ends the build inside the engine, then raises KeyboardInterrupt.
        """
        with faults.building(self._require_answer):
            return build.build(context, self._place, settings, tag=tag, stage=stage)

    def export(self, context: Path, settings: BuildSettings, *, stage: str, output: Path) -> None:
        """Build one stage of a folder and write that stage's files to `output`. Raises what build() raises."""
        with faults.building(self._require_answer):
            build.export(context, self._place, settings, stage=stage, output=output)

    def _require_answer(self) -> None:
        """Raise EngineMissing if the engine takes no new connection: while it shuts down it serves the old ones."""
        Engine.connect(self.host, chosen=self.chosen).client.close()

    def watched(self, use: str) -> AbstractContextManager[Callable[[], None]]:
        """Raise EngineMissing for any error in the block if the engine ended during it, even if it is back.

        Likewise DiskFull if its disk is full. Yields a function that raises them as well, for failures that the block
        would put down to an image. `use`: what the engine does meanwhile, as in "ended during `use`".
        """
        return faults.watched(self.client, self._require_answer, partial(faults.require_some_space, self, use), use)

    def require_buildkit(self) -> None:
        """Raise EngineMissing where the engine is Podman, which has no BuildKit, or no `docker` program can use it."""
        if self.podman and self.builder is None:
            raise build.no_buildkit(self.version)
        docker_cli.find_cli(self.host, plugin=self.builder is not None, chosen=self.chosen)

    @cached_property
    def builder(self) -> Builder | None:
        """The buildx builder that the user named in place of the engine's own. Raises EngineMissing."""
        name = docker_cli.named_builder(self.chosen.environment(os.environ))
        if not name:
            return None
        program = docker_cli.find_cli(self.host, plugin=True, chosen=self.chosen).path
        return docker_cli.find_builder(name, program, docker_cli.environment(self.host, self.chosen))

    @property
    def _place(self) -> BuildPlace:
        return BuildPlace(host=self.host, builder=self.builder, chosen=self.chosen)

    @property
    def cpus(self) -> int:
        """The number of processors of the engine's machine."""
        with translated():
            return int(self.client.info()["NCPU"])

    @property
    def memory(self) -> int:
        """The memory of the engine's machine, in bytes."""
        with translated():
            return int(self.client.info()["MemTotal"])

    @cached_property
    def gpus(self) -> Offer:
        """The GPUs that the engine offers; whether a container with them starts is for lacks_gpus() to try."""
        with translated():
            return offered(self.client.info())

    def lacks_gpus(self, ref: str, sandbox: Sandbox | None = None) -> str:
        """Return why containers of the image get no GPU here, by starting one with GPUs; "" where it starts."""
        run, command = partial(self.run, entrypoint=(), timeout=CALL_SECONDS, sandbox=sandbox), ["python", "-c", ""]
        return why_none(self.gpus, partial(run, ref, command, gpus=True))

    def _attach(self, container: Any) -> Attached:
        program = docker_cli.find_cli(self.host, chosen=self.chosen).path
        command = [program, "start", "--attach", "--interactive", container.name]
        return Attached(command, docker_cli.environment(self.host, self.chosen))

    @contextmanager
    def _container(
        self,
        ref: str,
        command: Sequence[str],
        env: Mapping[str, str],
        entrypoint: Sequence[str] | None,
        files: Mapping[str, bytes],
        network: str,
        mounts: Mapping[str, str] = {},
        user: str = "",
        gpus: bool = False,
        seconds: float = leases.LONGEST_SECONDS,
        sandbox: Sandbox | None = None,
        own: Sequence[Any] = (),
    ) -> Iterator[Any]:
        """Create a container without capabilities; remove it at the end by its name, which is known beforehand.

        `seconds`: how long this process needs it at most (tfbuild.engine.leases).
        """
        name = f"tfbuild-{secrets.token_hex(6)}"
        with translated(ref):
            try:
                image = self.client.images.get(ref)
                container = self.client.containers.create(
                    image.id,
                    list(command),
                    name=name,
                    labels=leases.lease(name, seconds),
                    # The engine takes an empty list for the image's own entrypoint; [""] clears it.
                    entrypoint=None if entrypoint is None else list(entrypoint) or [""],
                    environment=dict(env),
                    network_mode=network,
                    user=user or None,
                    device_requests=list(self.gpus.requests) if gpus else None,
                    **containers.confinement(image, sandbox, [*containers.read_only(mounts), *own], gpus=gpus),
                )
                if files:
                    container.put_archive("/", containers.archive(files))
                yield container
            finally:
                containers.discard(self.client, name)

    def _unstarted(self, ref: str, *own: Any) -> AbstractContextManager[Any]:
        """Create a container to copy files out of, or into its `own` mounts."""
        # Some images name no command, and the engine creates no container without one.
        return self._container(ref, ("-",), {}, None, {}, "none", own=own)
