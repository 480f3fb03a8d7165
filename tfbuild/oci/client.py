"""The OCI distribution protocol, as much of it as tags, manifests and labels need; layers go through the engine.

Source: github.com/opencontainers/distribution-spec, spec.md, v1.1.0. What a registry sends is untrusted: whatever has
a digest is checked against it, and nothing is read without a bound.
"""

import hashlib
import ipaddress
import json
import random
import re
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from tfbuild.errors import RegistryRefused, TfbuildError, UsageError
from tfbuild.oci import credentials, refusals
from tfbuild.oci.credentials import Credentials
from tfbuild.util.terminal import printable

DOCKER_HUB = "docker.io"
HUB_HOST = "registry-1.docker.io"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY_INDEX = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
# Manifests: the specification asks registries to take 4 MiB. Configurations of images here have some ten KB.
MOST_BYTES = 4 << 20
MOST_TAGS = 10_000
MOST_PAGES = 1000
MOST_REFERRERS = 1000
MOST_REASON = 200
SECONDS = 30.0
# Requests at once, where many images are looked at.
WORKERS = 8
TRIES = 5
BACKOFF = 0.5
UPLOADS = 5
# What a registry may answer to one of two that upload the same at once, since it reads a file that the other is just
# writing: measured with docker-registry 2.8.2 on a file system, "provided digest did not match uploaded content".
CLASHES = (400, 404)
MOST_PATIENCE = 60
BUSY = (429, 500, 502, 503, 504)
NAME = re.compile(r"(?P<host>[\w.-]+(?::\d+)?)/(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)")
# Of the referrers tag schema, and of cosign's signatures (with an ending).
REFERRERS_TAG = re.compile(r"sha256-[0-9a-f]{64}(\..+)?")
# Of images on their way: what a push that is not over has there, or one that came to no end (arriving_tag).
ARRIVING_TAG = re.compile(r"arriving-[0-9a-f]{64}")
# OpenSSL's words for an answer that is none of TLS, by its version.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# distribution-spec, "Pulling manifests"; digests here are SHA-256 alone.
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository such as "ghcr.io/us/tfbuild": `host` with its port, `path` below it."""

    host: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "Repository":
        """UsageError where `text` has no registry's host in front, or letters that no repository has."""
        if text.startswith("["):
            # Docker's client takes it in no name of an image ("invalid reference format" by 20.10).
            raise UsageError(
                f"{text!r} has an IPv6 address", hint="give that registry a name, in /etc/hosts for example"
            )
        found = NAME.fullmatch(text)
        if found is None or not ("." in found["host"] or ":" in found["host"] or found["host"] == "localhost"):
            raise UsageError(
                f"{text!r} is no repository in a registry", hint="--registry HOST/PATH, for example ghcr.io/us/tfbuild"
            )
        return cls(host=found["host"], path=found["path"])

    def __str__(self) -> str:
        return f"{self.host}/{self.path}"

    @property
    def url(self) -> str:
        """Loopback speaks plain HTTP, as the engine has it too; everything else TLS."""
        plain = loopback(self.host.partition(":")[0])
        return f"{'http' if plain else 'https'}://{HUB_HOST if self.host == DOCKER_HUB else self.host}/v2/{self.path}/"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a tag or digest stands for; `content` hashes to `digest`."""

    digest: str
    media_type: str
    content: bytes

    def json(self) -> dict[str, Any]:
        return _object(self.content, f"manifest {self.digest}")

    @property
    def size(self) -> int:
        """Bytes of an image's layers as they are transferred (compressed)."""
        layers = self.json().get("layers")
        sizes = [layer.get("size") for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []
        return sum(size for size in sizes if isinstance(size, int))

    @property
    def config(self) -> str:
        """The digest of an image's configuration; "" for an index."""
        found = self.json().get("config")
        return str(found.get("digest", "")) if isinstance(found, dict) else ""

    @property
    def ids(self) -> tuple[str, ...]:
        """By which an engine knows this image: its configuration's digest, or its own where containerd keeps images.

        Source: docs.docker.com/engine/release-notes/29 (containerd's store is the default of new installations) and
        github.com/docker/buildx/pull/3952. The manifest names the configuration: either is this image and no other.
        """
        return (self.config, self.digest) if self.config else ()


class Damaged(RegistryRefused):
    """What one image is made of is lost in the registry, or is not what its digest says; other images may be whole."""


class Registry:
    """One repository. `ca`: a company's CA certificates in PEM. Credentials are those of the engine's client."""

    def __init__(self, repository: Repository, *, ca: Path | None = None) -> None:
        self.repository = repository
        self.ca = ca
        self._session = requests.Session()
        # Handed over with each request: the session's own gives way to REQUESTS_CA_BUNDLE.
        self._verify: str | bool | None = str(ca) if ca is not None else None
        # Else requests puts what ~/.netrc has for this host in place of the engine's credentials.
        self._session.auth = _as_it_is
        retry = Retry(
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
            self._session.mount(scheme, HTTPAdapter(max_retries=retry, pool_maxsize=WORKERS))
        self._authorization = ""
        self._lists_referrers = True
        self._configs: dict[str, dict[str, Any]] = {}

    def tags(self) -> list[str]:
        """All tags but those of referrers, signatures and arrivals, sorted; [] where there is no repository yet.

        Never a part of them: indexes are made of all. Raises RegistryRefused.
        """
        found: list[str] = []
        url = "tags/list?n=1000"
        for _ in range(MOST_PAGES):
            answer = self._ask("GET", url, fine=(404,))
            if answer.status_code == 404:
                return []
            found += _strings(_object(_body(answer), "tags").get("tags") or [])
            url = _next(answer)
            if not url:
                return sorted(tag for tag in found if TAG.fullmatch(tag) and not _aside(tag))
            if len(found) > MOST_TAGS:
                break
        raise RegistryRefused(
            f"{self.repository} has more than {MOST_TAGS} tags, or no end of them", hint="use a repository of its own"
        )

    def manifest(self, reference: str) -> Manifest | None:
        """The manifest that a tag or a digest names; None where there is none. Raises RegistryRefused."""
        headers = {"Accept": ", ".join((*LISTS, *IMAGES))}
        answer = self._ask("GET", f"manifests/{reference}", headers=headers, fine=(404,))
        if answer.status_code == 404:
            return None
        content = _body(answer)
        digest = digest_of(content)
        said = answer.headers.get("Docker-Content-Digest", digest)
        if said != digest or (reference.startswith("sha256:") and reference != digest):
            raise RegistryRefused(
                f"{self.repository} sends another manifest for {reference} than its digest says ({digest})",
                hint="something between here and the registry changes what it sends: do not use this image",
            )
        return Manifest(digest=digest, media_type=_media_type(answer, content), content=content)

    def digest(self, tag: str) -> str:
        """The digest that a tag stands for now, by a request without a body; "" where there is no such tag.

        It is the registry's word: what is under that digest is checked when it is read.
        """
        headers = {"Accept": ", ".join((*LISTS, *IMAGES))}
        answer = self._ask("HEAD", f"manifests/{tag}", headers=headers, fine=(404,))
        if answer.status_code == 404:
            return ""
        if said := answer.headers.get("Docker-Content-Digest", ""):
            return said
        found = self.manifest(tag)
        return found.digest if found is not None else ""

    def config(self, manifest: Manifest) -> dict[str, Any]:
        """The configuration of an image, with its labels; checked against the digest in the manifest.

        Raises Damaged where it is lost, changed or none.
        """
        digest = manifest.config
        if digest not in self._configs:
            content = self.blob(digest, f"configuration of {manifest.digest}")
            try:
                self._configs[digest] = _object(content, f"configuration {digest}")
            except RegistryRefused as error:
                raise Damaged(error.reason, hint="push the image again, with --force") from error
        return self._configs[digest]

    def blob(self, digest: str, what: str) -> bytes:
        """A small blob (not a layer), checked against its digest; Damaged calls it `what`."""
        found = self._ask("GET", f"blobs/{digest}", fine=(404,)) if DIGEST.fullmatch(digest) else None
        if found is None or found.status_code == 404:
            raise Damaged(
                f"{self.repository} lost the {what} ({digest or 'without a digest'})",
                hint="remove the image's tag from the registry, and push it again",
            )
        content = _body(found)
        if digest_of(content) != digest:
            raise Damaged(
                f"{self.repository} sends another {what} than its digest says ({digest})",
                hint="something between here and the registry changes what it sends: do not use this image",
            )
        return content

    def put(self, reference: str, content: bytes, media_type: str) -> str:
        """Uploads a manifest or an index whose parts are there, and gives its digest."""
        self._put(f"manifests/{reference}", content, media_type)
        return digest_of(content)

    def put_referrer(self, content: bytes) -> bool:
        """Uploads a manifest with a subject; true where the registry lists it under its subject by itself."""
        answer = self._put(f"manifests/{digest_of(content)}", content, IMAGES[0])
        return "OCI-Subject" in answer.headers

    def _put(self, path: str, content: bytes, media_type: str) -> requests.Response:
        """Uploads; again where the registry refuses it as damaged or incomplete, as CLASHES do."""
        headers = {"Content-Type": media_type}
        for _ in range(UPLOADS - 1):
            answer = self._ask("PUT", path, headers=headers, data=content, fine=CLASHES)
            if answer.status_code not in CLASHES:
                return answer
            time.sleep(random.uniform(0, BACKOFF))
        return self._ask("PUT", path, headers=headers, data=content)

    def discard(self, tag: str) -> None:
        """Takes a tag away; where this registry, or whoever pushes, may not delete tags, it stays and holds nothing.

        distribution-spec, "Deleting tags", leaves that open: Debian's docker-registry 2.8.2 answers 400.
        """
        with suppress(RegistryRefused):
            there = self.digest(tag)
            if not there:
                return
            try:
                self._ask("DELETE", f"manifests/{tag}", fine=(404,))
            except RegistryRefused:
                # Else it would keep what it stands for from the registry's own cleaning.
                if there != digest_of(EMPTY_INDEX):
                    self.put(tag, EMPTY_INDEX, INDEX)

    def upload(self, content: bytes) -> str:
        """Uploads a small blob that the registry lacks, in one piece, and gives its digest."""
        digest = digest_of(content)
        for left in reversed(range(UPLOADS)):
            if self._ask("HEAD", f"blobs/{digest}", fine=(404,)).status_code != 404:
                return digest
            begun = self._ask("POST", "blobs/uploads/")
            where = urljoin(begun.url, begun.headers.get("Location", ""))
            headers = {"Content-Type": "application/octet-stream"}
            url = f"{where}{'&' if '?' in where else '?'}digest={digest}"
            # Where the answer to one that arrived was lost, its upload is gone when the same is sent again.
            fine = CLASHES if left else (404,)
            if self._ask("PUT", url, headers=headers, data=content, fine=fine).status_code not in fine:
                return digest
            time.sleep(random.uniform(0, BACKOFF))
        raise RegistryRefused(f"{self.repository} loses what is uploaded ({digest})", hint="push again later")

    def refuse_unless_writable(self) -> None:
        """RegistryRefused where nothing may be pushed: an upload is begun, and given up again."""
        begun = self._ask("POST", "blobs/uploads/")
        # What is never ended goes by itself, where it cannot be given up.
        self._ask("DELETE", urljoin(begun.url, begun.headers.get("Location", "")), fine=(404, 405, 501)).close()

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """The descriptors of what refers to a manifest, as the registry itself lists them; None where it lists none.

        Never a part of them. Raises RegistryRefused.
        """
        if not self._lists_referrers:
            return None
        # The specification wants 404 of a registry that lists none; some know the address and no way to ask it.
        answer = self._ask("GET", f"referrers/{digest}", headers={"Accept": INDEX}, fine=(404, 405))
        if answer.status_code >= 400 or answer.headers.get("Content-Type", "").partition(";")[0] != INDEX:
            answer.close()
            self._lists_referrers = False
            return None
        found: list[dict[str, Any]] = []
        for _ in range(MOST_PAGES):
            found += rows(_object(_body(answer), "list of referrers"))
            url = _next(answer)
            if not url:
                return found
            if len(found) > MOST_REFERRERS:
                break
            answer = self._ask("GET", url, headers={"Accept": INDEX})
        raise RegistryRefused(
            f"{self.repository} lists more than {MOST_REFERRERS} referrers of {digest}, or no end of them",
            hint="is this a registry? else somebody fills it",
        )

    # --- one request ---

    def _ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = {},
        data: bytes | None = None,
        fine: Container[int] = (),
    ) -> requests.Response:
        """The answer; `fine`: what else than success is one. Raises RegistryRefused."""
        url = urljoin(self.repository.url, path)
        answer = self._send(method, url, headers, data)
        if answer.status_code == 401 and (challenge := answer.headers.get("WWW-Authenticate", "")):
            answer.close()
            self._authorization = self._authorize(challenge)
            answer = self._send(method, url, headers, data)
        if answer.status_code < 400 or answer.status_code in fine:
            if method != "GET" or answer.status_code >= 400:
                # Read to its end, a connection serves the next request.
                _body(answer)
            return answer
        raise self._refused(answer, sent=data or b"")

    def _send(self, method: str, url: str, headers: Mapping[str, str], data: bytes | None) -> requests.Response:
        own = urlsplit(url)[:2] == urlsplit(self.repository.url)[:2]  # scheme and host
        authorization = {"Authorization": self._authorization} if self._authorization and own else {}
        with reached(self.repository.host):
            return self._session.request(
                method,
                url,
                headers={**headers, **authorization},
                data=data,
                timeout=SECONDS,
                stream=True,
                verify=self._verify,
            )

    def _authorize(self, challenge: str) -> str:
        """The header that a challenge asks for: the credentials themselves, or a token that they buy.

        "" where these are refused, so that the registry's own 401 is what is told. RegistryRefused where the server
        that sells tokens is in trouble.
        """
        known = credentials.stored(None if self.repository.host == DOCKER_HUB else self.repository.host)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return requests.auth._basic_auth_str(*known.basic) if known.basic else ""
        told = dict(CHALLENGE.findall(rest))
        realm = told.get("realm", "")
        self._refuse_open(realm)
        seller = f"{urlsplit(realm).hostname}, where {self.repository.host} has its tokens from,"
        with reached(seller):
            answer = self._buy(realm, {name: told[name] for name in ("service", "scope") if name in told}, known)
        if answer.status_code in (400, 401, 403, 404):
            answer.close()
            return ""
        if answer.status_code != 200:
            raise self._refused(answer, seller)
        token = _object(_body(answer), "token")
        return f"Bearer {token.get('token') or token.get('access_token') or ''}"

    def _buy(self, realm: str, wanted: dict[str, str], known: Credentials) -> requests.Response:
        """Asks for a token as the engine does: an identity token is handed in as OAuth2's refresh token.

        Source: distribution.github.io/distribution/spec/auth/token and .../oauth.
        """
        settings: dict[str, Any] = {"timeout": SECONDS, "stream": True, "verify": self._verify}
        if known.identity:
            form = {"grant_type": "refresh_token", "client_id": "tfbuild", "refresh_token": known.identity}
            return self._session.post(realm, data={**form, **wanted}, **settings)
        return self._session.get(realm, params=wanted, auth=known.basic, **settings)

    def _refuse_open(self, realm: str) -> None:
        """Credentials go over TLS, or to this machine; and a realm that names a file is not read."""
        where = urlsplit(realm)
        if where.scheme != "https" and not (where.scheme == "http" and loopback(where.hostname or "")):
            raise RegistryRefused(
                f"{self.repository.host} has its tokens from {printable(realm, MOST_REASON)!r}, which is not https",
                hint="is it the right --registry? credentials are not sent there",
            )

    def _refused(self, answer: requests.Response, who: str = "", *, sent: bytes = b"") -> TfbuildError:
        why = f"{who or self.repository} answers {answer.status_code} {answer.reason}"
        reason = _reason(answer)
        mixed = answer.request.headers.get("Content-Type") == INDEX and IMAGES[1].encode() in sent
        hint = refusals.of_answer(answer.status_code, reason, mixed=mixed)
        return RegistryRefused(f"{why}: {reason or 'no reason given'}", hint=hint.format(host=self.repository.host))


def loopback(host: str) -> bool:
    """True for this machine's own addresses, and not for names that begin like one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def reached(who: str) -> Iterator[None]:
    """A request's failure to get an answer from `who`, as the error that says why."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        if any(words in str(error) for words in NO_TLS):
            raise RegistryRefused(
                f"{who} does not speak TLS: {error}",
                hint="put TLS before it: only this machine's own addresses are spoken to without",
            ) from error
        raise RegistryRefused(
            f"{who} has no certificate that is trusted here: {error}",
            hint="--ca-cert FILE with the CA that signed it",
        ) from error
    except (requests.exceptions.RequestException, ValueError) as error:
        raise RegistryRefused(
            f"{who} does not answer: {error}", hint="is it the right --registry? try again later"
        ) from error


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def arriving_tag(image: str) -> str:
    """The tag under which an image arrives before its fixed tag names it: of its id, the same at each try."""
    return f"arriving-{image.removeprefix('sha256:')}"


def _aside(tag: str) -> bool:
    """True for tags that name no image that is published."""
    return bool(REFERRERS_TAG.fullmatch(tag) or ARRIVING_TAG.fullmatch(tag))


def _next(answer: requests.Response) -> str:
    """The address of a list's next page; "" where this is the last."""
    url = answer.links.get("next", {}).get("url", "")
    return urljoin(answer.url, url) if url else ""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _body(answer: requests.Response) -> bytes:
    content = b""
    try:
        for chunk in answer.iter_content(1 << 16):
            content += chunk
            if len(content) > MOST_BYTES:
                raise Damaged(f"{answer.url} sends more than {MOST_BYTES} bytes", hint="this is no registry's answer")
    except requests.exceptions.RequestException as error:
        raise RegistryRefused(f"{answer.url} stops half-way: {error}", hint="try again") from error
    return content


def _media_type(answer: requests.Response, content: bytes) -> str:
    return str(_object(content, "manifest").get("mediaType") or answer.headers.get("Content-Type", ""))


def _object(content: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryRefused(f"the {what} is no JSON", hint="is this a registry?") from error
    if not isinstance(found, dict):
        raise RegistryRefused(f"the {what} is no JSON object", hint="is this a registry?")
    return found


def rows(index: dict[str, Any]) -> list[dict[str, Any]]:
    """The descriptors in an index, which may be of any shape."""
    found = index.get("manifests")
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _strings(found: object) -> list[str]:
    return [str(item) for item in found] if isinstance(found, list) else []


def _reason(answer: requests.Response) -> str:
    try:
        errors = _object(_body(answer), "error").get("errors")
        first = errors[0] if isinstance(errors, list) and errors else {}
        told = [first.get("message"), first.get("detail")] if isinstance(first, dict) else []
        text = ": ".join(word for word in told if isinstance(word, str) and word)
    except TfbuildError:
        text = ""
    return printable(text, MOST_REASON).strip()
