"""Translate the many errors of the `docker` SDK into the few of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests

from tfbuild.errors import EngineMissing, TfbuildError, UnknownImage
from tfbuild.oci import credentials

# The SDK raises these where an engine, or a registry behind it, refuses or cannot be reached.
REFUSED = (docker.errors.APIError, requests.exceptions.RequestException)
NO_ANSWER = "no container engine answers: "


@contextmanager
def translated(ref: str = "") -> Iterator[None]:
    """Turn the SDK's errors into EngineMissing, UnknownImage, or TfbuildError for anything else that it refuses.

    The SDK also reads registry credentials; where it cannot, the error becomes RegistryRefused.
    """
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise UnknownImage(f"no image {ref!r} on this engine", hint="docker image ls lists its images") from error
    except docker.errors.APIError as error:
        raise TfbuildError(f"the container engine refused: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        if (refusal := credentials.refused(error)) is not None:
            raise refusal from error
        raise EngineMissing(f"{NO_ANSWER}{reason(error)}", hint="invoke engine") from error


def reason(error: BaseException) -> str:
    """Return the message of the innermost cause ("No such file or directory"); the SDK wraps it four times."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
