"""Translate the many errors of the `docker` SDK into the few of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests

from tfbuild.engine import disk_space
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage
from tfbuild.oci import credentials

# The SDK raises these where an engine, or a registry behind it, refuses or cannot be reached.
REFUSED = (docker.errors.APIError, requests.exceptions.RequestException)
NO_ANSWER = "no container engine answers: "
# How the engine's own messages end if its disk, or a quota there, is full; containerd adds a word. Elsewhere in them
# such words may be an image's.
NO_SPACE = re.compile(r"(?:no space left on device|disk quota exceeded)(?:: unknown)?\s*$")


@contextmanager
def translated(ref: str = "") -> Iterator[None]:
    """Turn the SDK's errors into EngineMissing, UnknownImage, DiskFull, or TfbuildError for other refusals.

    The SDK also reads registry credentials; where it cannot, the error becomes RegistryRefused.
    """
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise UnknownImage(f"no image {ref!r} on this engine", hint="docker image ls lists its images") from error
    except docker.errors.APIError as error:
        if is_no_space(error):
            raise disk_full(error.explanation) from error
        raise TfbuildError(f"the container engine refused: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        if (refusal := credentials.refused(error)) is not None:
            raise refusal from error
        raise EngineMissing(f"{NO_ANSWER}{reason(error)}", hint="invoke engine") from error


def is_no_space(error: docker.errors.APIError) -> bool:
    """Return whether the engine refused because its disk is full."""
    return NO_SPACE.search(error.explanation or "") is not None


def disk_full(message: str) -> DiskFull:
    """Return the error for a message of the engine that says so."""
    return DiskFull(f"the engine's disk is full: {message.strip()}", hint=disk_space.HINT)


def reason(error: BaseException) -> str:
    """Return the message of the innermost cause ("No such file or directory"); the SDK wraps it four times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
