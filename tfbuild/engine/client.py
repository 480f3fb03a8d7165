"""The container engine: images, short runs, workers and files out of images, through the `docker` SDK.

The SDK's own builder is the classic one, so images are built by the command line (build.py); an attached container's
streams go through it as well, for it does stdin's end, TLS and ssh right, which the SDK's raw sockets do not.
"""

import errno
import io
import os
import secrets
import socket
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import docker

from tfbuild.context import labels
from tfbuild.engine import build, docker_cli, docker_contexts, ssh_tunnel, transfer
from tfbuild.engine import buildx as builders
from tfbuild.engine.build import BuildPlace, BuildSettings
from tfbuild.engine.buildx import Builder
from tfbuild.engine.gpus import Offer, offered
from tfbuild.engine.sdk_errors import NO_ANSWER, translated
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.engine.worker import Worker
from tfbuild.errors import EngineMissing, TfbuildError, UnknownImage
from tfbuild.oci import credentials
from tfbuild.util.process import Attached, interruptible
from tfbuild.util.progress import Progress

CONNECT_SECONDS = 10
CALL_SECONDS = 300
MOST_OUTPUT = 8 * 1024 * 1024
# Threads count as well: TensorFlow starts two pools of one thread a core each, and Python's own.
MOST_PROCESSES = 8192
MOST_LINKS = 16
MOST_REASON = 300
STREAM_BYTES = 1 << 20
# The mode bit of Go's os.FileMode for a symbolic link, as in the engine's X-Docker-Container-Path-Stat header.
GO_SYMLINK = 1 << 27
GO_NOT_REGULAR = sum(1 << bit for bit in (31, 27, 26, 25, 24, 21, 19))


@dataclass(frozen=True, kw_only=True)
class Image:
    """What the engine says of an image: `size` in bytes, `architecture` in the engine's words ("amd64").

    `created`: RFC 3339.
    """

    id: str
    labels: Mapping[str, str]
    size: int
    env: tuple[str, ...]
    entrypoint: tuple[str, ...]
    architecture: str
    repo_digests: tuple[str, ...]
    tags: tuple[str, ...] = ()
    created: str = ""


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """A finished container: `seconds` by the engine's clock; each stream is cut at its limit (`truncated`)."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class Files:
    """Out of an image: `files` by absolute path, and where its symbolic `links` point, as they are written."""

    files: Mapping[str, bytes]
    links: Mapping[str, str]


class Engine:
    """One container engine; make it with connect()."""

    chosen = USUAL

    def __init__(self, client: Any, host: str = "", *, local: bool = True, chosen: EngineChoice = USUAL) -> None:
        """`host`: what Docker's own client is told; "" leaves it to what is `chosen`, and else to the environment.

        `local`: whether the engine's socket is on this machine.
        """
        self.client = client
        self.host = host
        self.local = local
        self.chosen = chosen
        with translated():
            facts = client.version()
        self.version: str = facts["Version"]
        self.platform = f"{facts['Os']}/{facts['Arch']}"

    @classmethod
    def connect(cls, host: str = "", *, chosen: EngineChoice = USUAL) -> "Engine":
        """The engine at `host`, or the one that is `chosen` or that the environment names.

        That is DOCKER_HOST, the current context, or the socket. Raises EngineMissing where none answers.
        """
        found = docker_contexts.endpoint(docker_cli.environment(host, chosen))
        if found.address.startswith("ssh://"):
            host = ssh_tunnel.to(found.address)
        try:
            with translated():
                address = host or found.address
                _knock(address)
                with credentials.readable():
                    client = _Client(base_url=address, tls=found.tls or False, timeout=CONNECT_SECONDS)
                client.api.timeout = CALL_SECONDS
                return cls(client, host, local=found.local, chosen=chosen)
        except EngineMissing as error:
            if found.local:
                raise
            raise EngineMissing(
                f"no container engine answers at {found.address}: {error.reason.removeprefix(NO_ANSWER)}",
                hint=_advice(found, error.reason),
            ) from error

    @property
    def data_root(self) -> Path:
        """The folder of images and caches, by the engine's own words: on its machine, which may be another one."""
        with translated():
            return Path(self.client.info()["DockerRootDir"])

    def image(self, ref: str) -> Image:
        """The image named `ref`; UnknownImage where it is not on this engine."""
        with translated(ref):
            return _image(self.client.images.get(ref).attrs)

    def labelled(self, label: str) -> list[Image]:
        """All images that carry `label`, those without a name too."""
        with translated():
            return [_image(image.attrs) for image in self.client.images.list(filters={"label": label})]

    def history(self, ref: str) -> tuple[str, ...]:
        """What made the image's layers and settings, in the words of its builder, the last first."""
        with translated(ref):
            return tuple(str(step.get("CreatedBy") or "") for step in self.client.api.history(ref))

    def exists(self, ref: str) -> bool:
        """True where the image is on this engine."""
        try:
            self.image(ref)
        except UnknownImage:
            return False
        return True

    def tag(self, ref: str, new: str) -> None:
        """Gives the image `ref` the further name `new` ("repository:tag")."""
        repository, tag = split(new)
        with translated(ref):
            self.client.images.get(ref).tag(repository, tag)

    def untag(self, ref: str) -> None:
        """Takes the name `ref` away; with its last name the image itself goes, its parents stay."""
        with translated(ref):
            self.client.images.remove(ref, noprune=True)

    def remove(self, ref: str) -> None:
        """Removes the image with all of its names."""
        image = self.image(ref)
        with translated(ref):
            self.client.images.remove(image.id, force=True)

    def push(self, ref: str, progress: Progress) -> None:
        """Uploads an image under its own name; layers that the registry has are skipped. Raises TransferFailed.

        The engine itself tries each layer again, and uses the credentials that `docker login` stored.
        """
        repository, tag = split(ref)
        with progress.step(f"push {ref}") as step, translated(ref):
            with credentials.readable():
                events = self.client.api.push(repository, tag, stream=True, decode=True)
            transfer.follow(events, step, pushing=True)

    def pull(self, ref: str, progress: Progress) -> None:
        """Downloads the image `ref` ("repository@sha256:..."); layers that are here stay. Raises TransferFailed."""
        with progress.step(f"pull {ref}") as step, translated(ref):
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
    ) -> ContainerRun:
        """Runs a command to its end in a container of its own, which is removed whatever happens.

        `files` are put in before it starts, readable and executable by all. An `entrypoint` of () clears the image's.
        `mounts`: folders of the engine's machine, by their place in the container, where they can only be read; `user`:
        "uid:gid" in place of the image's; `gpus`: with all that the engine offers. Raises TimeoutError after `timeout`
        seconds. `limit`: bytes kept of each stream.
        """
        deadline = time.monotonic() + timeout
        with (
            interruptible(),
            self._container(ref, command, env, entrypoint, files, network, mounts, user, gpus) as container,
            closing(self._attach(container)) as attached,
        ):
            attached.send(stdin, close=True)
            truncated = False
            while attached.open:
                try:
                    attached.pump(deadline)
                except TimeoutError:
                    raise TimeoutError(f"{ref}: {' '.join(command)[:80]} ran longer than {timeout:g} s") from None
                truncated |= _cut(attached.out, limit) | _cut(attached.err, limit)
            attached.process.wait()
            exit_code, seconds = _ended(container)
            return ContainerRun(
                exit_code=exit_code,
                stdout=attached.out.decode(errors="replace"),
                stderr=attached.err.decode(errors="replace"),
                seconds=seconds,
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
    ) -> Worker:
        """Starts a container that answers lines with lines; close it, or use it in a `with`. `gpus`: as of run()."""
        with ExitStack() as stack:
            made = self._container(ref, command, env, entrypoint, files, network, gpus=gpus)
            container = stack.enter_context(made)
            attached = stack.enter_context(closing(self._attach(container)))

            def exit_code() -> int:
                attached.process.wait(timeout=CONNECT_SECONDS)
                return _ended(container)[0]

            return Worker(container, attached, exit_code, stack.pop_all())

    def read_file(self, ref: str, path: str, destination: Path, limit: int) -> Path:
        """Copies one regular file of at most `limit` bytes out of the image; nothing of the image is started.

        Links are followed by the engine, inside the image. Raises UnknownImage, FileNotFoundError, IsADirectoryError
        (no regular file) or OSError with EFBIG. `destination` is there whole or not at all.
        """
        # Some images name no command, and the engine creates no container without one.
        with self._container(ref, ("-",), {}, None, {}, "none") as container:
            stream = _open_file(container, path, limit)
            part = destination.with_name(f"{destination.name}.{secrets.token_hex(4)}.part")
            try:
                with closing(stream), part.open("wb") as out:
                    _copy_only_member(stream, out, path, limit)
                part.replace(destination)
            finally:
                part.unlink(missing_ok=True)
        return destination

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int) -> "Files":
        """The regular files of the image whose paths `wanted` picks, and its links there; nothing of it is started.

        Paths are absolute, and those of the image itself: links are not followed. All of the image passes through.
        Raises UnknownImage, or OSError with EFBIG where the files have more than `limit` bytes together.
        """
        files: dict[str, bytes] = {}
        links: dict[str, str] = {}
        with self._container(ref, ("-",), {}, None, {}, "none") as container, translated(ref):
            chunks = io.BufferedReader(_Chunks(container.export(STREAM_BYTES)), STREAM_BYTES)
            with closing(chunks), tarfile.open(fileobj=chunks, mode="r|", bufsize=STREAM_BYTES) as archive:
                for member in archive:
                    path = f"/{member.name.removeprefix('./').strip('/')}"
                    if member.issym() and wanted(path):
                        links[path] = member.linkname
                    elif member.isreg() and wanted(path):
                        files[path] = _content(archive, member, path, limit)
                        limit -= member.size
        return Files(files=files, links=links)

    def build(self, context: Path, settings: BuildSettings, *, tag: str) -> str:
        """Builds a folder with BuildKit, names the image `tag` and gives its id; the whole output goes to `log`.

        `watch` gets each line that a step prints, and gives what progress shows of it. Raises BuildFailed with the last
        lines that matter, DiskFull, EngineMissing where no client can build, or TimeoutError after `seconds`.
        Ctrl-C or SIGTERM ends the build inside the engine too, then comes as KeyboardInterrupt.
        """
        return build.build(context, self._place, settings, tag=tag)

    def export(self, context: Path, settings: BuildSettings, *, stage: str, output: Path) -> None:
        """Builds one stage of a folder and writes that stage's files to `output`. Raises what build() does."""
        build.export(context, self._place, settings, stage=stage, output=output)

    @cached_property
    def builder(self) -> Builder | None:
        """The buildx builder that the user names in place of the engine's own. Raises EngineMissing."""
        name = builders.named(self.chosen.environment(os.environ))
        if not name:
            return None
        program = docker_cli.find_cli(self.host, plugin=True, chosen=self.chosen).path
        return builders.find(name, program, docker_cli.environment(self.host, self.chosen))

    @property
    def _place(self) -> BuildPlace:
        return BuildPlace(host=self.host, builder=self.builder, chosen=self.chosen)

    @property
    def cpus(self) -> int:
        """Processors of the engine's machine."""
        with translated():
            return int(self.client.info()["NCPU"])

    @property
    def memory(self) -> int:
        """Bytes of memory of the engine's machine."""
        with translated():
            return int(self.client.info()["MemTotal"])

    @cached_property
    def gpus(self) -> Offer:
        """What the engine says of GPUs; whether a container with them starts is another question (lacks_gpus)."""
        with translated():
            return offered(self.client.info())

    def lacks_gpus(self, ref: str) -> str:
        """Why containers of the image get no GPU from this engine, or nothing: one that has them was started."""
        if not self.gpus.requests:
            return self.gpus.reason
        try:
            tried = self.run(ref, ["python", "-c", ""], entrypoint=(), gpus=True, timeout=CALL_SECONDS)
        except UnknownImage:
            raise
        except TfbuildError as error:
            return _not_started(self.gpus, error.reason)
        except TimeoutError as error:
            return _not_started(self.gpus, str(error))
        return _not_started(self.gpus, tried.stderr) if tried.exit_code else ""

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
    ) -> Iterator[Any]:
        """A created container without rights, removed at the end by its name, which is known before it exists."""
        name = f"tfbuild-{secrets.token_hex(6)}"
        with translated(ref):
            try:
                container = self.client.containers.create(
                    self.client.images.get(ref).id,
                    list(command),
                    name=name,
                    labels={labels.CONTAINER: "1"},
                    # An empty list means the image's own to the engine; [""] clears it.
                    entrypoint=None if entrypoint is None else list(entrypoint) or [""],
                    environment=dict(env),
                    network_mode=network,
                    mounts=[docker.types.Mount(to, at, type="bind", read_only=True) for to, at in mounts.items()],
                    user=user or None,
                    device_requests=list(self.gpus.requests) if gpus else None,
                    stdin_open=True,
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges"],
                    pids_limit=MOST_PROCESSES,
                    # What it prints is read while it runs; the engine's copy would grow without a bound.
                    log_config={"Type": "none"},
                )
                if files:
                    container.put_archive("/", _archive(files))
                yield container
            finally:
                self._discard(name)

    def _discard(self, name: str) -> None:
        with suppress(docker.errors.NotFound):
            self.client.api.remove_container(name, force=True, v=True)


def _not_started(offer: Offer, why: str) -> str:
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    told = lines[-1][:MOST_REASON] if lines else "it ended without a word"
    return f"the engine offers GPUs ({offer.way}), but a container that has them does not start: {told}"


def _image(attrs: Mapping[str, Any]) -> Image:
    config = attrs.get("Config") or {}
    return Image(
        id=attrs["Id"],
        labels=config.get("Labels") or {},
        size=attrs["Size"],
        env=tuple(config.get("Env") or ()),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        architecture=attrs["Architecture"],
        repo_digests=tuple(attrs.get("RepoDigests") or ()),
        tags=tuple(attrs.get("RepoTags") or ()),
        created=attrs.get("Created", ""),
    )


class _Api(docker.APIClient):  # type: ignore[misc]
    """Requests lets REQUESTS_CA_BUNDLE overrule a session's CA, which is the engine's own, not that of the web."""

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        return super().merge_environment_settings(url, proxies, stream, self.verify if verify is None else verify, cert)


class _Client(docker.DockerClient):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        self.api = _Api(**options)


def _knock(address: str) -> None:
    """EngineMissing where nobody listens at the engine's socket; the SDK would leave its own end of it open."""
    if address.startswith("unix://"):
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(CONNECT_SECONDS)
                end.connect(address.removeprefix("unix://"))
        except OSError as error:
            why = f"{error.strerror or error} ({address})"
            raise EngineMissing(f"{NO_ANSWER}{why}", hint="invoke engine") from error


def _advice(found: docker_contexts.Endpoint, reason: str) -> str:
    """What to do about an engine on another machine that does not answer."""
    look = f"docker {f'--context {found.context}' if found.context else f'--host {found.address}'} version"
    if "400 Client Error" in reason:
        return (
            f"it may want TLS: DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH=FOLDER, or a context with certificates; {look}"
        )
    if "certificate" in reason:
        files = f"the context {found.context}" if found.context else "DOCKER_CERT_PATH"
        return f"the CA and the client's certificate of {files} must be those that the engine was set up with; {look}"
    return f"is it up, and reachable from here? {look}"


def split(ref: str) -> tuple[str, str]:
    """("localhost:5000/tfbuild", "x") of "localhost:5000/tfbuild:x": a colon before the last slash is a port's."""
    repository, colon, tag = ref.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (ref, "latest")


def _cut(buffer: bytearray, limit: int) -> bool:
    too_long = len(buffer) > limit
    del buffer[limit:]
    return too_long


def _ended(container: Any) -> tuple[int, float]:
    """Exit code and seconds of a container that has ended, or that the engine could not start (126 to 128)."""
    container.reload()
    state = container.attrs["State"]
    if state["Running"] or (state["Status"] == "created" and not state["Error"]):
        raise TfbuildError(f"the streams of container {container.name} were lost while it was {state['Status']}")
    start, end = (datetime.fromisoformat(state[key]) for key in ("StartedAt", "FinishedAt"))
    return int(state["ExitCode"]), max(0.0, (end - start).total_seconds()) if start.year > 1 else 0.0


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of `files` (absolute path: content), the same bytes each time; the engine makes the folders it lacks."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _open_file(container: Any, path: str, limit: int) -> Any:
    """The engine's tar stream of the regular file at `path`, links followed inside the image."""
    where = path
    for _ in range(MOST_LINKS):
        try:
            stream, found = container.get_archive(where)
        except docker.errors.APIError as error:
            # Missing, a folder that is none, links in a circle: the engine's words differ by version.
            raise FileNotFoundError(errno.ENOENT, error.explanation or os.strerror(errno.ENOENT), path) from None
        if found["mode"] & GO_SYMLINK and found["linkTarget"]:
            stream.close()
            where = found["linkTarget"]
            continue
        if found["mode"] & GO_NOT_REGULAR:
            stream.close()
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        if found["size"] > limit:
            stream.close()
            raise OSError(errno.EFBIG, f"larger than {limit} bytes ({found['size']})", path)
        return stream
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


class _Chunks(io.RawIOBase):
    """A file to read out of the SDK's iterator of chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = iter(chunks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        self._rest = self._rest or next(self._chunks, b"")
        count = min(len(target), len(self._rest))
        target[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, limit: int) -> bytes:
    if member.size > limit:
        raise OSError(errno.EFBIG, f"larger than what is left of the limit ({limit} bytes)", path)
    source = archive.extractfile(member)
    return source.read() if source else b""


def _copy_only_member(stream: Any, out: IO[bytes], path: str, limit: int) -> None:
    with tarfile.open(fileobj=io.BufferedReader(_Chunks(stream)), mode="r|") as archive:
        member = archive.next()
        source = archive.extractfile(member) if member and member.isreg() else None
        if member is None or source is None:
            raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
        copied = 0
        while chunk := source.read(1 << 20):
            copied += len(chunk)
            if copied > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
            out.write(chunk)
