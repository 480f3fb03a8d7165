"""What `docker login` stored for a registry, in its helper or its file, read by the engine's own SDK."""

import base64
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import requests
from docker import auth
from docker.credentials import StoreError
from docker.errors import DockerException, InvalidConfigFile

from tfbuild.errors import RegistryRefused, conceal


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A name and its secret, or an identity token instead; "" for what is not stored."""

    name: str = ""
    secret: str = ""
    identity: str = ""

    @property
    def basic(self) -> str:
        """The value of the header with name and secret, in UTF-8 as Docker's client sends them; "" without them."""
        return f"Basic {_encoded(self.name, self.secret)}" if self.name and self.secret else ""


def stored(host: str) -> Credentials:
    """Return the credentials for a registry's host. Raises RegistryRefused if unreadable."""
    # Helpers know Docker Hub by another name, which the SDK fills in.
    registry = None if host == auth.INDEX_NAME else host
    with readable():
        entry = auth.resolve_authconfig(auth.load_config(), registry=registry) or {}
        name, secret = (str(entry.get(key, entry.get(key.lower())) or "") for key in ("Username", "Password"))
        token = str(entry.get("IdentityToken") or "")
        conceal(name, secret, token, _encoded(name, secret) if secret else "")
    return Credentials(identity=token) if token else Credentials(name=name, secret=secret)


def _encoded(name: str, secret: str) -> str:
    return base64.b64encode(f"{name}:{secret}".encode()).decode()


def conceal_login(repository: str) -> None:
    """Hide what the engine sends to the registry of a repository, which may repeat it in its answer."""
    stored(auth.resolve_repository_name(repository)[0])


@contextmanager
def readable() -> Iterator[None]:
    """Turn what the SDK raises when it reads credentials into RegistryRefused."""
    try:
        with warnings.catch_warnings():
            # It warns if a helper is not installed, which the error says too.
            warnings.simplefilter("ignore", UserWarning)
            yield
    except requests.exceptions.RequestException:
        raise
    except DockerException as error:
        if (refusal := refused(error)) is None:
            raise
        raise refusal from error
    # The helper printed something unexpected, or an "auth" is not base64 of "name:secret".
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from error


def refused(error: Exception) -> RegistryRefused | None:
    """Return the refusal if a credential helper failed or a file has another shape; None for other errors."""
    if isinstance(error.__cause__, StoreError):
        return _unreadable(str(error.__cause__))
    return _unreadable(str(error)) if isinstance(error, InvalidConfigFile) else None


def _unreadable(reason: str) -> RegistryRefused:
    return RegistryRefused(
        f"the stored credentials cannot be read: {reason.strip()}",
        hint="check auths, credsStore and credHelpers in Docker's config.json (a helper must be on PATH as "
        "docker-credential-NAME), or run docker login again",
    )
