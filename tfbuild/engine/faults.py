"""What goes wrong with an engine: the SDK's errors in our terms, a full disk, an engine that ended.

A container that dies with its engine looks like one that was killed, and the API does not say when the engine started.
A connection does: it ends with the process at its other end, and nothing inside a container can end it.
"""

import re
import select
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import requests

from tfbuild.errors import BadMirror, DiskFull, EngineMissing, TfbuildError, UnknownImage
from tfbuild.oci import credentials
from tfbuild.util.terminal import cause

# The SDK raises these where an engine, or a registry behind it, refuses or cannot be reached.
SDK_ERRORS = (docker.errors.APIError, requests.exceptions.RequestException)
NO_ANSWER = "no container engine answers: "
DENIED_HINT = "sudo usermod -aG docker $USER, then log in again; or run this command with sudo"
# How the engine's own messages end if its disk, or a quota there, is full; containerd adds a word. Elsewhere in them
# such words may be an image's.
NO_SPACE = re.compile(r"(?:no space left on device|disk quota exceeded)(?:: unknown)?\s*$")
# An image's name that somebody else removes at the same time; for the SDK, that is not an ImageNotFound.
NO_REFERENCE = "reference does not exist"


@contextmanager
def translated(ref: str = "") -> Iterator[None]:
    """Turn the SDK's errors into EngineMissing, UnknownImage, DiskFull, BadMirror, or TfbuildError for other refusals.

    The SDK also reads registry credentials; if it cannot, the error becomes RegistryRefused.
    """
    try:
        yield
    except docker.errors.APIError as error:
        if isinstance(error, docker.errors.ImageNotFound) or NO_REFERENCE in (error.explanation or ""):
            raise UnknownImage(f"no image {ref!r} on this engine", hint="docker image ls lists its images") from error
        refused = TfbuildError(f"the container engine refused: {error.explanation or error}")
        raise disk_full(error.explanation) or refused from error
    except docker.errors.ImageLoadError as error:
        refused = BadMirror(f"{ref} cannot be loaded: {error}", hint="make the bundle again: invoke bundle")
        raise disk_full(str(error)) or refused from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        if (refusal := credentials.refused(error)) is not None:
            raise refusal from error
        raise EngineMissing(f"{NO_ANSWER}{cause(error)}", hint=unanswered(error)) from error


def unanswered(error: BaseException | None) -> str:
    """Return what to do if no engine of this machine answers: start one, or join those who may use it."""
    while error is not None:
        if isinstance(error, PermissionError):
            return DENIED_HINT
        error = error.__cause__ or error.__context__
    return "invoke engine"


def disk_full(message: str | None) -> DiskFull | None:
    """Return the error for an engine's message if it says that the engine's disk is full."""
    if NO_SPACE.search(message or "") is None:
        return None
    return DiskFull(f"the engine's disk is full: {(message or '').strip()}", hint=PRUNE_HINT)


# --- a full disk ------------------------------------------------------------------------------------------------------

# With less free space, the disk is why the engine failed, whatever it says: its clean-up frees only a little.
FULL_BYTES = 16 << 20
# Only the layers: without the filter, what an interrupted compile continues from goes too.
PRUNE = "docker builder prune --filter type=regular"
PRUNE_HINT = f"{PRUNE}, docker image prune; then run the same command again: what was built is kept"


def disk_is_full(folder: Path | None) -> bool:
    """Return whether the engine's disk is full; False if its `folder` is not known."""
    return folder is not None and shutil.disk_usage(folder).free < FULL_BYTES


def require_free(folder: Path | None, required: int, hint: str = PRUNE_HINT) -> None:
    """Raise DiskFull, with the hint, if fewer than `required` bytes are free in `folder`, where that can be seen."""
    if folder and (space := shutil.disk_usage(folder).free) < required:
        message = f"{required / 1e9:.1f} GB are needed on {folder}, but only {space / 1e9:.1f} GB are free"
        raise DiskFull(message, hint=hint)


# --- an engine that ended ---------------------------------------------------------------------------------------------

# No event has this name, so the engine sends nothing but the head of its answer.
NO_EVENT = {"filters": '{"event": ["none"]}'}
REPEAT_HINT = "run the same command again: what was made is kept"


@contextmanager
def held_connection(client: Any) -> Iterator[Callable[[], bool]]:
    """Keep a connection to the engine open, and yield whether the engine at its end has ended. Raises EngineMissing."""
    # The SDK's own events() does not show its connection.
    api = client.api
    with translated():
        response = api._get(api._url("/events"), params=NO_EVENT, stream=True)

    def ended() -> bool:
        if not response.ok:
            return False  # a proxy may refuse to list events; its answer ends at once
        return bool(select.select([response.raw], [], [], 0)[0])

    with closing(response):
        yield ended
