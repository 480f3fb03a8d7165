"""Requests to one repository: retries, TLS, credentials, and bounds on what is read and how long that takes."""

import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from tfbuild.errors import RegistryRefused, TfbuildError, UsageError, conceal, without_secrets
from tfbuild.oci import credentials
from tfbuild.oci.credentials import Credentials
from tfbuild.oci.manifests import Malformed, descriptors, parse_object
from tfbuild.oci.references import Repository, is_secure, loopback
from tfbuild.util.terminal import cause, printable

# Manifests: the specification asks registries to take 4 MiB. Configurations of images here have some ten KB.
MOST_BYTES = 4 << 20
MOST_REASON = 200
# How long everything before an answer's body may take: names, proxies, TLS, what is sent, redirections, headers. The
# body may take a second more for each LEAST_RATE bytes.
SECONDS = 25.0
LEAST_RATE = 16 << 10
# After so long, a request that failed is not repeated.
PATIENCE = 50.0
# How long a program may take that knows passwords, and that may ask somebody to unlock them.
HELPER_SECONDS = 120.0
# Requests at once when many images are read.
WORKERS = 8
TRIES = 5
BACKOFF = 0.5
MOST_WAIT = 60
BUSY_STATUSES = (429, 500, 502, 503, 504)
# OpenSSL's names for an answer that is not TLS, by its version.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
# Of several ways, docker's client takes the token too.
BEARER = re.compile(r"\bbearer (.*?)(?:, *\w+ \w+=|$)", re.IGNORECASE)
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
TOKEN = re.compile("[!-~]*")
Item = TypeVar("Item")
Result = TypeVar("Result")


# --- deadlines, redirects and proxies ---------------------------------------------------------------------------------


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return what `call` returns. Raises requests' Timeout after that time; what hangs then ends with this process."""
    outcome = _started(call)
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        outcome.add_done_callback(_close)
        raise requests.exceptions.Timeout from error


def _started(call: Callable[[], Result]) -> "Future[Result]":
    """Start a call in a thread that ends with this process: an executor's would be waited for, also after Ctrl-C."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def _close(late: "Future[Any]") -> None:
    """Close an answer that nobody waits for any more."""
    if late.exception() is None and isinstance(answer := late.result(), requests.Response):
        answer.close()


class _Adapter(requests.adapters.HTTPAdapter):
    def __init__(self, pem: str) -> None:
        self._pem = pem
        super().__init__()

    def build_connection_pool_key_attributes(self, *about: Any, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        host, pool = super().build_connection_pool_key_attributes(*about, **more)
        return host, {**pool, "ca_cert_data": self._pem}


class HttpSession(requests.Session):
    """Repeats requests that failed, never leaves TLS for plain HTTP, and reaches this machine without a proxy."""

    def __init__(self, ca: Path | None = None) -> None:
        """Trust a company's `ca` beside the public ones, which vouch for clouds where a registry may keep content."""
        super().__init__()
        if ca is not None:
            self.mount("https://", _Adapter(trusted(ca)))

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:
        """Send one request; after PATIENCE seconds, a failure is not repeated."""
        if loopback(urlsplit(str(request.url)).hostname or ""):
            settings["proxies"] = {}
        until = time.monotonic() + PATIENCE - SECONDS
        for left in reversed(range(TRIES + 1)):
            wait = random.uniform(BACKOFF, 2 * BACKOFF) * 2 ** (TRIES - left) / 2
            try:
                answer = within(SECONDS, partial(super().send, request, **settings))
            except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
                if not left or time.monotonic() > until or _is_certain(error):
                    raise
            else:
                if answer.status_code not in BUSY_STATUSES or not left or time.monotonic() > until:
                    return answer
                wait = _retry_after(answer) or wait
                answer.close()
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Use the logins of ~/.netrc where a redirection leads only if the session uses them at all."""
        if self.auth is None:
            super().rebuild_auth(prepared_request, response)
        elif self.should_strip_auth(str(response.request.url), str(prepared_request.url)):
            prepared_request.headers.pop("Authorization", None)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        try:
            return target and redirect_address(resp.url, target)
        except RegistryRefused:
            resp.close()
            raise


def _is_certain(error: Exception) -> bool:
    """Return whether a failure would be the same again: what answers is a wrong certificate or speaks no TLS."""
    certain = ("CERTIFICATE_VERIFY_FAILED", *NO_TLS)
    return isinstance(error, requests.exceptions.SSLError) and any(name in str(error) for name in certain)


def _retry_after(answer: requests.Response) -> float:
    """Return how many seconds the server asks to wait, at most MOST_WAIT; 0 where it says nothing that is a number."""
    text = answer.headers.get("Retry-After", "").strip()
    return float(min(int(text), MOST_WAIT)) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def redirect_address(base: str, target: str) -> str:
    """Return the address that an answer points to. Raises RegistryRefused if it is none, or not https."""
    try:
        address = urljoin(base, target)
    except ValueError:
        address = ""
    if not is_secure(address):
        raise RegistryRefused(
            f"{base} points to {printable(target, MOST_REASON)!r}, which is not an https address",
            hint="nothing was sent there; tell whoever runs the registry",
        )
    return address


def trusted(ca: Path) -> str:
    """Return the CA certificates in a file. Raises UsageError if it has none."""
    try:
        pem = ca.read_text("ascii", errors="ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (OSError, ValueError) as error:
        raise UsageError(f"{ca} has no certificate in PEM: {cause(error)}", hint="--ca-cert FILE") from error
    return pem


def parallel(read: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of `read` for each item, in their order, from several requests at once."""
    outcomes: list[Future[Result]] = []
    for item in items:
        if len(outcomes) >= WORKERS:
            outcomes[-WORKERS].result()
        outcomes.append(_started(partial(read, item)))
    return [outcome.result() for outcome in outcomes]


# --- answers ----------------------------------------------------------------------------------------------------------


@contextmanager
def reaching(server: str) -> Iterator[None]:
    """Turn a failure to get an answer from `server` into RegistryRefused."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        if any(name in str(error) for name in NO_TLS):
            raise RegistryRefused(
                f"{server} does not speak TLS: {cause(error)}",
                hint="put a TLS proxy in front of it: plain HTTP is only used for loopback addresses",
            ) from error
        timely = any(phrase in cause(error) for phrase in ("expired", "not yet valid"))
        clock = f"; this machine's clock says {datetime.now(UTC):%Y-%m-%d}" if timely else ""
        raise RegistryRefused(
            f"this machine does not trust the certificate of {server}: {cause(error)}{clock}",
            hint="--ca-cert FILE or SSL_CERT_FILE, with the CA that signed it",
        ) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
        proxy = "the proxy on the way to " if isinstance(error, requests.exceptions.ProxyError) else ""
        raise RegistryRefused(
            f"{proxy}{server} does not answer: {cause(error)}",
            hint="check the address and any proxy (HTTPS_PROXY, NO_PROXY), or try again later",
        ) from error


def body_of(answer: requests.Response) -> bytes:
    """Return the whole body, as `chunks` reads it."""
    return b"".join(chunks(answer))


def chunks(answer: requests.Response, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Yield the parts of a body. Raises Malformed if it is longer than `most` bytes.

    Raises RegistryRefused if the connection breaks, or is slower than LEAST_RATE after SECONDS.
    """
    size, began = 0, time.monotonic()
    try:
        while chunk := answer.raw.read1(1 << 16, decode_content=True):
            size += len(chunk)
            if size > most:
                answer.close()
                raise Malformed(f"{answer.url} sends more than {most} bytes", hint="check the address")
            if (seconds := time.monotonic() - began) > SECONDS + size / LEAST_RATE:
                answer.close()
                raise RegistryRefused(f"{answer.url} sent only {size} bytes in {seconds:.0f} s", hint="try again later")
            yield chunk
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise RegistryRefused(f"the download of {answer.url} broke off: {cause(error)}", hint="try again") from error


# --- one repository, with the credentials of the engine's client ------------------------------------------------------


class Connection:
    """Send requests to one repository, with the credentials of the engine's client. `ca`: see HttpSession."""

    def __init__(self, repository: Repository, *, ca: Path | None = None) -> None:
        self.repository = repository
        self._session = HttpSession(ca)
        # Otherwise requests replaces the engine's credentials by those in ~/.netrc.
        self._session.auth = lambda request: request
        self._authorization = ""

    def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        data: bytes | None = None,
        accept: Container[int] = (),
        follow: bool = True,
    ) -> requests.Response:
        """Return the registry's answer if it is a success or its status is in `accept`. Raises RegistryRefused.

        Without `follow`, a redirection is such an answer.
        """
        url = urljoin(self.repository.url, path)
        answer = self._send(method, url, headers, data, follow=follow)
        # Where a redirection leads, nobody may ask for the registry's password.
        asked = answer.status_code == 401 and self._is_own(answer.url)
        if asked and (challenge := answer.headers.get("WWW-Authenticate", "")):
            answer.close()
            self._authorization = self._authorize(challenge)
            answer = self._send(method, url, headers, data, follow=follow)
        if answer.status_code < 400 or answer.status_code in accept:
            if method != "GET" or answer.status_code >= 400:
                # A connection can be used again once its answer is read to the end.
                body_of(answer)
            return answer
        raise self._refusal(answer)

    def _is_own(self, url: str) -> bool:
        # Behind nginx, Artifactory names itself with its port: https://HOST:443.
        return not self._session.should_strip_auth(self.repository.url, url)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None, *, follow: bool
    ) -> requests.Response:
        with reaching(self.repository.host):
            own = self._authorization and self._is_own(url)
            return self._session.request(
                method,
                url,
                headers={**headers, **({"Authorization": self._authorization} if own else {})},
                data=data,
                timeout=SECONDS,
                stream=True,
                allow_redirects=follow,
            )

    def _authorize(self, challenge: str) -> str:
        """Return the header that a challenge demands: the credentials themselves, or a token obtained with them.

        "" if the token server refuses them: the registry's own 401 is then reported. Raises RegistryRefused if the
        token server fails.
        """
        with reaching(f"the program with the credentials for {self.repository.host}"):
            known = within(HELPER_SECONDS, partial(credentials.stored, self.repository.host))
        if (offer := BEARER.search(challenge)) is None:
            return known.basic
        fields = dict(CHALLENGE.findall(offer[1]))
        realm = fields.get("realm", "")
        if not is_secure(realm):
            raise RegistryRefused(
                f"the token server of {self.repository.host} is {printable(realm, MOST_REASON)!r}, which is not https",
                hint="no credentials were sent there; check the --registry address",
            )
        server = f"{urlsplit(realm).hostname}, the token server of {self.repository.host},"
        query = {name: fields[name] for name in ("service", "scope") if name in fields}
        with reaching(server):
            answer = self._get_token(realm, query, known)
        if answer.status_code in (400, 401, 403, 404):
            answer.close()
            return ""
        if answer.status_code != 200:
            raise self._refusal(answer, server)
        token = parse_object(body_of(answer), "token")
        bearer = str(token.get("token") or token.get("access_token") or "")
        conceal(known.name, bearer)
        if not TOKEN.fullmatch(bearer):
            raise RegistryRefused(f"{server} sent a malformed token", hint="try again later")
        return f"Bearer {bearer}"

    def _get_token(self, realm: str, query: dict[str, str], known: Credentials) -> requests.Response:
        """Request a token as the engine does: an identity token is sent as OAuth2's refresh token.

        Source: distribution.github.io/distribution/spec/auth/token and .../oauth.
        """
        if known.identity:
            form = {"grant_type": "refresh_token", "client_id": "tfbuild", "refresh_token": known.identity}
            return self._session.post(realm, data={**form, **query}, timeout=SECONDS, stream=True)
        headers = {"Authorization": known.basic} if known.basic else {}
        return self._session.get(realm, params=query, headers=headers, timeout=SECONDS, stream=True)

    def _refusal(self, answer: requests.Response, server: str = "") -> RegistryRefused:
        status = without_secrets(str(answer.reason), foreign=True)
        summary = f"{server or self.repository} answers {answer.status_code} {status}"
        reason = _reason(answer)
        hint = hint_for(answer.status_code, reason, self.repository.host)
        return RegistryRefused(f"{summary}: {reason or 'no reason given'}", hint=hint)


def _reason(answer: requests.Response) -> str:
    """Return the registry's own explanation, made safe for a terminal; "" if it gives none."""
    try:
        rows = descriptors(parse_object(body_of(answer), "error"), "errors")
        parts = [rows[0].get("message"), rows[0].get("detail")] if rows else []
        text = ": ".join(part for part in parts if isinstance(part, str) and part)
    except TfbuildError:
        text = ""
    return printable(without_secrets(text, foreign=True), MOST_REASON).strip()


# --- what to do where a registry refuses; a container engine passes these on too --------------------------------------

FULL = "the registry's quota or size limit is reached: make room there"
# How registries name a limit on space, most of them in a 403 (github.com/goharbor/harbor, src/pkg/quota/errors.go).
SPACE = ("quota", "upper limit", "storage limit", "no space left", "insufficient storage")
TOO_MANY = "too many requests: docker login raises the limit, or try again later"
# Both ECR (github.com/moby/buildkit/issues/3776) and Harbor (goharbor/harbor, src/server/middleware/immutable) use
# that word.
IMMUTABLE = (
    "tags are immutable there: exempt the moving ones, such as latest-mkl, 2.20-mkl and 2.20.0-mkl, and sha256-*; "
    "--force also moves a fixed tag"
)
# ECR and Google's Artifact Registry.
UNKNOWN_NAME = "check that the repository exists, and its name: some registries do not create one on the first push"
HINTS = {
    401: "docker login {host}; the stored login may have expired, or there may be no such repository",
    403: "these credentials do not allow that: docker login {host} as a user with the permission",
    404: UNKNOWN_NAME,
    413: FULL,
}
SERVER_ERROR = "the registry has an internal error: try again later"
UNSUPPORTED = "the registry does not support this request, as it says above: check the --registry address"


def hint_for(status: int, reason: str, host: str) -> str:
    """Return the hint for an answer with this status and the registry's own `reason`."""
    text = reason.lower()
    if status == 429:
        # Some registries call a limit on requests a quota.
        return TOO_MANY
    if "immutable" in text:
        return IMMUTABLE
    if any(phrase in text for phrase in SPACE):
        return FULL
    return HINTS.get(status, SERVER_ERROR if status >= 500 else UNSUPPORTED).format(host=host)
