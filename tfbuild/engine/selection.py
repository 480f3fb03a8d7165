"""Which engine and builder a run uses: what the user names, else the environment's address, else the current context.

The SDK finds contexts only beside a config.json, which `docker context create` does not write.
https://docs.docker.com/engine/manage-resources/contexts/
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from docker.context.config import get_current_context_name
from docker.errors import TLSParameterError
from docker.tls import TLSConfig

from tfbuild.errors import EngineMissing
from tfbuild.util import ssh
from tfbuild.util.files import decode, read_regular
from tfbuild.util.terminal import cause

# What to do with Podman, which is no context of Docker's.
PODMAN = (
    "--engine unix:///run/podman/podman.sock for images and inspect; builds need Docker, since Podman has no BuildKit"
)
# Docker's own client applies these to the address in DOCKER_HOST, not to a context.
ADDRESS_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the user names; an empty field leaves the choice to the environment.

    `engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.
    """

    engine: str = ""
    builder: str = ""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which Docker's own client makes this choice."""
        variables = dict(environ)
        if "://" in self.engine:
            variables.pop("DOCKER_CONTEXT", None)
            variables["DOCKER_HOST"] = self.engine
        elif self.engine:
            for name in ADDRESS_VARIABLES:
                variables.pop(name, None)
            variables["DOCKER_CONTEXT"] = self.engine
        return variables | ({"BUILDX_BUILDER": self.builder} if self.builder else {})

    def elsewhere(self) -> bool:
        """Return whether the engine is not at a socket of this machine, without connecting to it."""
        return not endpoint(self.environment(os.environ)).local


# The environment's choice, where the user names nothing.
USUAL = EngineChoice()


def choose(engine: str, builder: str = "") -> EngineChoice:
    """Check what the user names. Raises EngineMissing for an unknown context, UsageError for a bad ssh address."""
    if engine.startswith("ssh://"):
        ssh.destination(engine)
    elif engine and "://" not in engine and engine != DEFAULT:
        read_context(engine, os.environ)
    return EngineChoice(engine=engine, builder=builder)


# --- Docker's contexts -----------------------------------------------------------------------------------------------


SOCKET = "unix:///var/run/docker.sock"
DEFAULT = "default"
META = "meta.json"
# Sockets and pipes are files of this machine, whatever listens behind them.
LOCAL = ("unix://", "npipe://")


class Docker(msgspec.Struct, frozen=True):
    """A context's endpoint of the kind "docker"; a context can also have endpoints of other kinds."""

    host: str = msgspec.field(default="", name="Host")
    skip_tls_verify: bool = msgspec.field(default=False, name="SkipTLSVerify")


class Endpoints(msgspec.Struct, frozen=True):
    docker: Docker = Docker()


class Meta(msgspec.Struct, frozen=True):
    """The fields of a context's meta.json that are needed here."""

    name: str = msgspec.field(name="Name")
    endpoints: Endpoints = msgspec.field(default=Endpoints(), name="Endpoints")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An engine's `address` (unix://, tcp://, ssh://), its TLS settings, and the name of its context if it has one."""

    address: str
    tls: TLSConfig | None = None
    context: str = ""

    @property
    def local(self) -> bool:
        """Whether the address is a file of this machine."""
        return self.address.startswith(LOCAL)


def endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return the engine that Docker's own client would talk to in this environment.

    Raises EngineMissing for missing TLS files and for an unknown context; for the latter the SDK would silently use
    the engine on this machine.
    """
    try:
        if host := environ.get("DOCKER_HOST"):
            return Endpoint(address=host, tls=_environment_tls(environ))
        name = environ.get("DOCKER_CONTEXT") or _current_context() or DEFAULT
        if name == DEFAULT:
            return Endpoint(address=SOCKET)
        docker = read_context(name, environ)
        return Endpoint(address=docker.host or SOCKET, tls=_context_tls(name, docker, environ), context=name)
    except TLSParameterError as error:
        raise EngineMissing(
            f"the engine's TLS certificates cannot be used: {str(error).split(' TLS configurations')[0]}",
            hint="DOCKER_CERT_PATH names a folder with ca.pem, cert.pem and key.pem",
        ) from error


def _current_context() -> str:
    """Return the context in Docker's configuration; the SDK reads no other than the current user's."""
    if not isinstance(name := get_current_context_name() or "", str):
        raise EngineMissing(
            f"the current context in Docker's config.json is not a name: {name!r}", hint="docker context use NAME"
        )
    return name


def read_context(name: str, environ: Mapping[str, str]) -> Docker:
    """Return the Docker endpoint of the context `name`. Raises EngineMissing where it is missing or unreadable."""
    file = _context_folder(environ, "meta", name) / META
    try:
        return decode(read_regular(file), Meta).endpoints.docker
    except FileNotFoundError:
        known = f"one of: {', '.join(context_names(environ))}; or ssh://HOST, tcp://HOST:PORT"
        hint = f"--engine unix://{name}" if name.startswith("/") else PODMAN if name == "podman" else known
        raise EngineMissing(f"there is no Docker context {name!r}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise EngineMissing(
            f"the Docker context {name!r} cannot be read: {cause(error)}", hint=f"docker context inspect {name}"
        ) from error


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all readable contexts, including the default one."""
    contexts = {DEFAULT}
    for file in (_configuration(environ) / "contexts" / "meta").glob(f"*/{META}"):
        try:
            contexts.add(decode(read_regular(file), Meta).name)
        except (OSError, ValueError):
            continue
    return sorted(contexts)


def _configuration(environ: Mapping[str, str]) -> Path:
    # A user without a name and without HOME, as in some containers, has no home: Path.home() would raise.
    return Path(environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))


def _context_folder(environ: Mapping[str, str], kind: str, name: str) -> Path:
    return _configuration(environ) / "contexts" / kind / hashlib.sha256(os.fsencode(name)).hexdigest()


def _context_tls(name: str, docker: Docker, environ: Mapping[str, str]) -> TLSConfig | None:
    folder = _context_folder(environ, "tls", name) / "docker"
    if not folder.is_dir():
        return TLSConfig(verify=False) if docker.skip_tls_verify and docker.host.startswith("tcp://") else None
    return _tls(folder, verify=not docker.skip_tls_verify)


def _environment_tls(environ: Mapping[str, str]) -> TLSConfig | None:
    """Read the TLS variables as Docker's client does: any value means yes, and certificates alone enable nothing."""
    verify, path = bool(environ.get("DOCKER_TLS_VERIFY")), environ.get("DOCKER_CERT_PATH", "")
    if not (verify or environ.get("DOCKER_TLS")) or not environ["DOCKER_HOST"].startswith("tcp://"):
        return None
    return _tls(Path(path) if path else _configuration(environ), verify=verify)


def _tls(folder: Path, *, verify: bool) -> TLSConfig:
    """Read the certificates in a folder; the client's own may be missing, since not every engine asks for one."""
    ca, certificate, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    pair = (str(certificate), str(key)) if certificate.is_file() or key.is_file() else None
    return TLSConfig(client_cert=pair, ca_cert=str(ca) if ca.is_file() else None, verify=verify)
