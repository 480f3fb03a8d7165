"""Names in a registry: repositories, tags and digests."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tfbuild.errors import UsageError

DOCKER_HUB = "docker.io"
HUB_HOST = "registry-1.docker.io"
# distribution-spec, "Pulling manifests". Only ASCII: clients turn some other letters of a host into ASCII ones, so that
# the name would be another host's.
PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
REPOSITORY_NAME = re.compile(rf"(?P<host>[a-zA-Z0-9][\w.-]*(?::\d+)?)/(?P<path>{PART}(?:/{PART})*)", re.ASCII)
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
# Only SHA-256 digests are used here.
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository such as "ghcr.io/us/tfbuild": `host` with its port, and the `path` below it."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """Parse "HOST/PATH". Raises UsageError if there is no registry's host in front, or the path is not valid."""
        match = REPOSITORY_NAME.fullmatch(text)
        if match is None or not is_host(match["host"]):
            raise UsageError(
                f"{text!r} is not a repository in a registry",
                hint="--registry HOST/PATH, for example ghcr.io/us/tfbuild",
            )
        return cls(host=match["host"], path=match["path"])

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def url(self) -> str:
        """Plain HTTP for loopback addresses, as the engine does it; TLS for everything else."""
        scheme = "http" if loopback(self.host.partition(":")[0]) else "https"
        return f"{scheme}://{HUB_HOST if self.host == DOCKER_HUB else self.host}/v2/{self.path}/"


def parse_image(name: str) -> tuple[Repository, str]:
    """Split an image's name as Docker does: "python:3.11-slim" is the tag 3.11-slim of docker.io/library/python.

    Raises UsageError if it is not a valid name with a tag.
    """
    path, tag = split_tag(familiar(name))
    first, slash, _ = path.partition("/")
    if not slash:
        path = f"{DOCKER_HUB}/library/{path}"
    elif not is_host(first):
        path = f"{DOCKER_HUB}/{path}"
    match = REPOSITORY_NAME.fullmatch(path)
    if match is None or not TAG.fullmatch(tag):
        raise UsageError(f"{name!r} is not an image with a tag in a registry", hint="NAME:TAG, or HOST/PATH:TAG")
    return Repository(host=match["host"], path=match["path"]), tag


def familiar(name: str) -> str:
    """Return a name as engines list it: without what all names on Docker Hub have."""
    return name.removeprefix(f"{DOCKER_HUB}/").removeprefix("library/")


def split_tag(name: str) -> tuple[str, str]:
    """Split "localhost:5000/tfbuild:x" into its repository and its tag; without a tag, that is "latest".

    A colon before the last slash belongs to a port.
    """
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "latest")


def is_host(first: str) -> bool:
    """Return whether the first part of a name is a registry's host, by Docker's rule; else it is Docker Hub's."""
    return "." in first or ":" in first or first == "localhost"


def loopback(host: str) -> bool:
    """Return whether this is one of the machine's own addresses: "127.0.0.1", "localhost", "::1"."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_secure(address: str) -> bool:
    """Return whether an address is reached by TLS, or on this machine: nobody on the way can change what comes."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and loopback(host)))
