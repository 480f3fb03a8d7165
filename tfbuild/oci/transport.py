"""Requests to one repository: retries, TLS, credentials, and bounds on what is read."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection

from tfbuild.errors import RegistryRefused, TfbuildError, conceal, without_secrets
from tfbuild.oci import credentials
from tfbuild.oci.credentials import Credentials
from tfbuild.oci.manifests import IMAGES, INDEX, Forged, parse_object
from tfbuild.oci.references import Repository, is_secure
from tfbuild.util.terminal import cause, printable

# Manifests: the specification asks registries to take 4 MiB. Configurations of images here have some ten KB.
MOST_BYTES = 4 << 20
MOST_REASON = 200
# How long a registry may take for the head of an answer; its body may take a second more for each LEAST_RATE bytes.
SECONDS = 25.0
LEAST_RATE = 16 << 10
# After so long, a request that failed is not repeated.
PATIENCE = 50.0
# Requests at once when many images are read.
WORKERS = 8
TRIES = 5
BACKOFF = 0.5
MOST_PATIENCE = 60
BUSY = (429, 500, 502, 503, 504)
# OpenSSL's names for an answer that is not TLS, by its version.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
# What requests raises and prints of a proxy.
PROXY_ERRORS = (requests.exceptions.ProxyError, requests.exceptions.InvalidProxyURL)
PROXY_WORDS = ("SOCKS", "Proxy URL")
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
TOKEN = re.compile("[!-~]*")

# Hints for refusals, which a container engine passes on too (engine/transfer.py).
FULL = "the registry's quota or size limit is reached: make room there"
# How registries name a limit on space, most of them in a 403 (github.com/goharbor/harbor, src/pkg/quota/errors.go).
SPACE = ("quota", "upper limit", "storage limit", "no space left", "insufficient storage")
TOO_MANY = "too many requests: docker login raises the limit, or try again later"
# Both ECR (github.com/moby/buildkit/issues/3776) and Harbor (goharbor/harbor, src/server/middleware/immutable) use
# that word.
IMMUTABLE = (
    "tags are immutable there: exempt the moving ones, such as latest-mkl, any-mkl, 2.20-mkl and 2.20.0-mkl, "
    "and arriving-* and sha256-*; fixed tags do not change"
)
# ECR and Google's Artifact Registry.
UNKNOWN_NAME = "check that the repository exists, and its name: some registries do not create one on the first push"
# Docker's engines push manifests of Docker's own type (20.10 and 26, the latter with containerd's store too). Quay's
# loader refused those in an OCI index (github.com/quay/quay/pull/1959) until pull/6070 of 2026-05-28.
MIXED = (
    "some registries, such as older versions of Quay, refuse an OCI index of manifests of Docker's own type: "
    "use a newer version, or another registry"
)
HINTS = {
    401: "docker login {host}; the stored login may have expired",
    403: "these credentials do not allow that: docker login {host} as a user with the permission",
    404: UNKNOWN_NAME,
    405: "the registry does not allow that: it may be a read-only mirror",
    409: "another operation is in progress there: try again later",
    413: FULL,
    429: TOO_MANY,
    507: "the registry's disk is full: make room there",
}
SERVER_ERROR = "the registry has an internal error: try again later"
UNSUPPORTED = "the registry does not support this request, as it says above: check the --registry address"
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Deadline(HTTPConnection):
    """Gives up on the head of an answer after `timeout`: the socket's own limit begins anew with each byte."""

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3
        late = threading.Event()

        def give_up() -> None:
            late.set()
            with suppress(OSError, AttributeError):
                self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout or SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            answer = super().getresponse()
        except Exception as error:
            if late.is_set():
                raise TimeoutError(f"no answer within {SECONDS:.0f} s") from error
            raise
        finally:
            timer.cancel()
        if late.is_set():  # what had come by then may look like a whole head
            raise TimeoutError(f"no answer within {SECONDS:.0f} s")
        return answer


class _SecureDeadline(_Deadline, HTTPSConnection):
    """The same over TLS."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Deadline


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureDeadline


class _Adapter(HTTPAdapter):
    """Sends requests on connections with a deadline, through a proxy too."""

    pools: ClassVar = {"http": _Pool, "https": _SecurePool}

    def init_poolmanager(self, *args: Any, **settings: Any) -> None:
        super().init_poolmanager(*args, **settings)
        self.poolmanager.pool_classes_by_scheme = self.pools

    def proxy_manager_for(self, proxy: str, **settings: Any) -> PoolManager:
        manager: PoolManager = super().proxy_manager_for(proxy, **settings)
        manager.pool_classes_by_scheme = self.pools
        return manager


class _Patience(Retry):
    """Repeats a failed request until PATIENCE seconds have passed. An answer such as 429 is not a failure."""

    _until = 0.0

    def new(self, **changes: Any) -> Self:
        later = super().new(**changes)
        later._until = self._until or time.monotonic() + PATIENCE - SECONDS
        return later

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: Any = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: Any = None,
    ) -> Self:
        if error is not None and self._until and time.monotonic() > self._until:
            self.total = 0
        return super().increment(method, url, response, error, _pool, _stacktrace)


def parallel(read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of `read` for each item, in their order, from several requests at once."""
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(read, items))


def session() -> requests.Session:
    """Return a session that repeats failed requests, and gives up on servers that send byte by byte."""
    made = requests.Session()
    retry = _Patience(
        total=TRIES,
        backoff_factor=BACKOFF,
        backoff_jitter=BACKOFF,
        status_forcelist=BUSY,
        allowed_methods=("GET", "HEAD", "PUT", "POST", "DELETE"),
        respect_retry_after_header=True,
        retry_after_max=MOST_PATIENCE,
        raise_on_status=False,
    )
    for scheme in ("https://", "http://"):
        made.mount(scheme, _Adapter(max_retries=retry, pool_maxsize=WORKERS))
    return made


class Connection:
    """Send requests to one repository, with the credentials of the engine's client.

    `ca`: a company's CA certificates in PEM.
    """

    def __init__(self, repository: Repository, *, ca: Path | None = None) -> None:
        self.repository = repository
        self._session = session()
        # Passed with each request: REQUESTS_CA_BUNDLE would override the session's own setting.
        self._verify: str | bool | None = str(ca) if ca is not None else None
        # Otherwise requests replaces the engine's credentials by those in ~/.netrc.
        self._session.auth = lambda request: request
        self._authorization = ""

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        data: bytes | Path | None = None,
        accept: Container[int] = (),
    ) -> requests.Response:
        """Return the registry's answer if it is a success or its status is in `accept`. Raises RegistryRefused."""
        url = urljoin(self.repository.url, path)
        answer = self._send(method, url, headers, data)
        if answer.status_code == 401 and (challenge := answer.headers.get("WWW-Authenticate", "")):
            answer.close()
            self._authorization = self._authorize(challenge)
            answer = self._send(method, url, headers, data)
        if answer.status_code < 400 or answer.status_code in accept:
            if method != "GET" or answer.status_code >= 400:
                # A connection can be used again once its answer is read to the end.
                body_of(answer)
            return answer
        raise self._refusal(answer, sent=data if isinstance(data, bytes) else b"")

    def _send(self, method: str, url: str, headers: Mapping[str, str], data: bytes | Path | None) -> requests.Response:
        own = urlsplit(url)[:2] == urlsplit(self.repository.url)[:2]  # scheme and host
        authorization = {"Authorization": self._authorization} if self._authorization and own else {}
        with reaching(self.repository.host), data.open("rb") if isinstance(data, Path) else nullcontext(data) as body:
            return self._session.request(
                method,
                url,
                headers={**headers, **authorization},
                data=body,
                timeout=SECONDS,
                stream=True,
                verify=self._verify,
            )

    def _authorize(self, challenge: str) -> str:
        """Return the header that a challenge demands: the credentials themselves, or a token obtained with them.

        "" if the token server refuses them: the registry's own 401 is then reported. Raises RegistryRefused if the
        token server fails.
        """
        known = credentials.stored(self.repository.host)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return known.basic
        fields = dict(CHALLENGE.findall(rest))
        realm = fields.get("realm", "")
        if not is_secure(realm):
            raise RegistryRefused(
                f"the token server of {self.repository.host} is {printable(realm, MOST_REASON)!r}, which is not https",
                hint="no credentials were sent there; check the --registry address",
            )
        server = f"{urlsplit(realm).hostname}, the token server of {self.repository.host},"
        with reaching(server):
            answer = self._get_token(
                realm, {name: fields[name] for name in ("service", "scope") if name in fields}, known
            )
        if answer.status_code in (400, 401, 403, 404):
            answer.close()
            return ""
        if answer.status_code != 200:
            raise self._refusal(answer, server)
        token = parse_object(body_of(answer), "token")
        bearer = str(token.get("token") or token.get("access_token") or "")
        conceal(known.name, bearer)
        if not TOKEN.fullmatch(bearer):
            raise RegistryRefused(f"{server} sent a token that no request can have", hint="try again later")
        return f"Bearer {bearer}"

    def _get_token(self, realm: str, query: dict[str, str], known: Credentials) -> requests.Response:
        """Request a token as the engine does: an identity token is sent as OAuth2's refresh token.

        Source: distribution.github.io/distribution/spec/auth/token and .../oauth.
        """
        settings: dict[str, Any] = {"timeout": SECONDS, "stream": True, "verify": self._verify}
        if known.identity:
            form = {"grant_type": "refresh_token", "client_id": "tfbuild", "refresh_token": known.identity}
            return self._session.post(realm, data={**form, **query}, **settings)
        headers = {"Authorization": known.basic} if known.basic else {}
        return self._session.get(realm, params=query, headers=headers, **settings)

    def _refusal(self, answer: requests.Response, server: str = "", *, sent: bytes = b"") -> RegistryRefused:
        status = without_secrets(str(answer.reason), foreign=True)
        summary = f"{server or self.repository} answers {answer.status_code} {status}"
        reason = _reason(answer)
        mixed = answer.request.headers.get("Content-Type") == INDEX and IMAGES[1].encode() in sent
        hint = _hint(answer.status_code, reason, mixed=mixed)
        return RegistryRefused(f"{summary}: {reason or 'no reason given'}", hint=hint.format(host=self.repository.host))


@contextmanager
def reaching(server: str, option: str = "--registry") -> Iterator[None]:
    """Turn a failure to get an answer from `server` into RegistryRefused."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        if any(name in str(error) for name in NO_TLS):
            raise RegistryRefused(
                f"{server} does not speak TLS: {cause(error)}",
                hint="put a TLS proxy in front of it: plain HTTP is only used for loopback addresses",
            ) from error
        raise RegistryRefused(
            f"{server} has no certificate that this machine trusts: {cause(error)}",
            hint="--ca-cert FILE with the CA that signed it",
        ) from error
    except (requests.exceptions.RequestException, ValueError) as error:
        if variable := _variable_of_proxy(error):
            needs = "; SOCKS needs the Python package PySocks in tfbuild's environment" if "SOCKS" in str(error) else ""
            raise RegistryRefused(
                f"the proxy in {variable} cannot be used to reach {server}: {cause(error)}",
                hint=f"correct or unset {variable}, or exclude the host by NO_PROXY{needs}",
            ) from error
        raise RegistryRefused(
            f"{server} does not answer: {cause(error)}", hint=f"check the {option} address, or try again later"
        ) from error


def _variable_of_proxy(error: Exception) -> str:
    """Return the variable with the proxy that failed, as requests chooses it; "" if no proxy is to blame."""
    if not isinstance(error, PROXY_ERRORS) and not any(word in str(error) for word in PROXY_WORDS):
        return ""
    variables = (name for scheme in ("https", "all", "http") for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()))
    return next((name for name in variables if os.environ.get(name)), "")


def body_of(answer: requests.Response) -> bytes:
    """Return the whole body, as `chunks` reads it."""
    return b"".join(chunks(answer))


def chunks(answer: requests.Response, most: int = MOST_BYTES, option: str = "--registry") -> Iterator[bytes]:
    """Yield the parts of a body. Raises Forged if it is longer than `most` bytes.

    Raises RegistryRefused if the connection breaks, or is slower than LEAST_RATE after SECONDS.
    """
    size, began = 0, time.monotonic()
    try:
        while chunk := answer.raw.read1(1 << 16, decode_content=True):
            size += len(chunk)
            if size > most:
                answer.close()
                raise Forged(f"{answer.url} sends more than {most} bytes", hint=f"check the {option} address")
            if (seconds := time.monotonic() - began) > SECONDS + size / LEAST_RATE:
                answer.close()
                raise RegistryRefused(f"{answer.url} sent only {size} bytes in {seconds:.0f} s", hint="try again later")
            yield chunk
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise RegistryRefused(f"{answer.url} broke off: {cause(error)}", hint="try again") from error


def next_page(answer: requests.Response) -> str:
    """Return the address of a list's next page; "" if this is the last."""
    url = answer.links.get("next", {}).get("url", "")
    return urljoin(answer.url, url) if url else ""


def _reason(answer: requests.Response) -> str:
    """Return the registry's own explanation, made safe for a terminal; "" if it gives none."""
    try:
        errors = parse_object(body_of(answer), "error").get("errors")
        first = errors[0] if isinstance(errors, list) and errors else {}
        parts = [first.get("message"), first.get("detail")] if isinstance(first, dict) else []
        text = ": ".join(part for part in parts if isinstance(part, str) and part)
    except TfbuildError:
        text = ""
    return printable(without_secrets(text, foreign=True), MOST_REASON).strip()


def _hint(status: int, reason: str, *, mixed: bool) -> str:
    """Return the hint for an answer with this status and the registry's own `reason`; {host} stands for the host.

    `mixed`: the request had an OCI index of manifests of Docker's type.
    """
    text = reason.lower()
    if status == 429:
        # Some registries call a limit on requests a quota.
        return TOO_MANY
    if "immutable" in text:
        return IMMUTABLE
    if any(phrase in text for phrase in SPACE):
        return FULL
    if status in (400, 415) and mixed:
        return MIXED
    return HINTS.get(status, SERVER_ERROR if status >= 500 else UNSUPPORTED)
