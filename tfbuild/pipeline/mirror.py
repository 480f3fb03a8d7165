"""Serve a bundle on loopback while a build runs: https://HOST/PATH is at URL/HOST/PATH.

A recording mirror fetches what the bundle lacks from its host, passes it on as it arrives, and keeps it. So the bundle
holds exactly what the build requested.
"""

import errno
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tfbuild.errors import BadMirror, BuildFailed, DiskFull, TfbuildError, without_secrets
from tfbuild.pipeline.bundle import Bundle, File, PartialFile, is_repository, keep_clone
from tfbuild.util.terminal import cause

CHUNK = 262_144
# How long a host, and a client of this server, may send nothing. pip gives up after 100 s: by then a host that does not
# answer was asked twice.
CONNECT_SECONDS, READ_SECONDS, CLIENT_SECONDS = 20.0, 40.0, 120.0
BUSY = (429, 502, 503, 504)
MOST_PATIENCE = 20
INDEX = "index.html"
# The links of an index page are stored as relative ones, so that any web server can serve the folder.
LINK = re.compile(rb"""(?P<before>href=["']?)https?://(?P<rest>[^"'>\s]+)""", re.IGNORECASE)
# apt checks signatures itself, so its hosts may be reached without TLS, as in most source lists.
APT = "Debian APT"
# What pip, apt, curl, git, Bazelisk, Bazel and the build's own scripts print of a failed download, in phrases that no
# compiler prints. Warnings do not count: all of these tools retry, or try elsewhere.
BROKEN = re.compile(
    r"(?!.*WARNING).*(?:IncompleteRead|Connection broken|No matching distribution|DO NOT MATCH THE HASHES"
    r"|Unable to locate package|no installation candidate|Failed to fetch|Hash Sum mismatch|curl: \(\d+\)"
    r"|does not have a Release file|is expired \(invalid since|fatal: repository '.*' not found"
    r"|could not download Bazel|Error downloading|cannot be had|(?:Client|Server) Error|HTTP error \d)"
)


@dataclass
class Upstream:
    """Where a recording mirror fetches from: the hosts themselves, or another mirror at the URL `base`."""

    base: str = ""
    ca: Path | None = None
    plain: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.session = requests.Session()
        # Request no compression, so that the bytes are kept as they are.
        self.session.headers.update({"Accept-Encoding": "identity", "User-Agent": "tfbuild"})
        retry = Retry(
            total=3,
            connect=1,
            read=1,
            backoff_factor=0.5,
            status_forcelist=BUSY,
            retry_after_max=MOST_PATIENCE,
            raise_on_status=False,
        )
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, HTTPAdapter(max_retries=retry))

    def get(self, path: str, *, signed: bool) -> requests.Response:
        """Request HOST/PATH; `signed`: the client checks signatures, so plain http is allowed."""
        if self.base:
            return self._get(self.url(path))
        host = path.partition("/")[0]
        if host not in self.plain:
            try:
                return self._get(self.url(path))
            except requests.ConnectionError:
                if not signed:
                    raise
                self.plain.add(host)
        return self._get(f"http{'' if signed else 's'}://{path}")

    def url(self, path: str) -> str:
        """Return the URL of HOST/PATH."""
        return f"{self.base}/{path}" if self.base else f"https://{path}"

    def _get(self, url: str) -> requests.Response:
        accept = {"Accept": "text/html"} if url.endswith("/") else {}
        # Set for each request: the environment overrides a session's setting.
        verify = str(self.ca) if self.ca else True
        seconds = (CONNECT_SECONDS, READ_SECONDS)
        return self.session.get(url, stream=True, timeout=seconds, headers=accept, verify=verify)


class Mirror(ThreadingHTTPServer):
    """Serves `bundle` on a port of its own; `upstream`: where to fetch what it lacks, None to fetch nothing."""

    def __init__(self, bundle: Bundle, upstream: Upstream | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bundle = bundle
        self.upstream = upstream
        self.requested: list[str] = []
        # Why a request failed, by HOST/PATH. Some requests only test whether a file exists.
        self.failures: dict[str, str] = {}
        self.disk_full = False
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def lock(self, path: str) -> threading.Lock:
        """Return the lock of a path: of two clients that request a file, the second gets what the first one fetched."""
        return self._locks[path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects, as a stopped one does."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def explain(self, error: BuildFailed) -> TfbuildError:
        """Return the error that names what the build could not download from here; else `error` itself."""
        folder = self.bundle.folder
        if self.disk_full:
            return DiskFull(
                f"no space is left for the bundle in {folder}",
                hint="free some space; then the same command continues from there",
            )
        if "is expired (invalid since" in error.reason:
            return BadMirror(f"the package lists in {folder} have expired\n{error.reason}", hint="fill a new folder")
        if not self.failures or not complaint(error):
            return error
        mentioned = {path: why for path, why in self.failures.items() if path in error.reason}
        failures = mentioned or self.failures
        lines = "".join(f"\n  https://{path}: {why}" for path, why in list(failures.items())[-5:])
        if self.upstream is not None:
            return BadMirror(
                f"cannot download what the build needs:{lines}\n{error.reason}",
                hint="the same command continues from there: what was downloaded is kept. If a package is gone, the "
                "lists in the folder are too old: fill a new one",
            )
        return BadMirror(
            f"the bundle {folder} was not made for this build, which needs more:{lines}\n{error.reason}",
            hint=f"invoke bundle with the same options and --output {folder}, on a machine with a network",
        )


@contextmanager
def serve(bundle: Bundle, upstream: Upstream | None = None) -> Iterator[Mirror]:
    """Run the mirror while the block runs."""
    server = Mirror(bundle, upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def complaint(error: BuildFailed) -> str:
    """Return the line among a failed build's last ones that reports a failed download; "" if none does."""
    return next((line.strip() for line in error.reason.splitlines() if BROKEN.match(line)), "")


def explain(error: BuildFailed, url: str) -> TfbuildError:
    """Return the error that names the mirror at `url` if a download through it failed; else `error` itself."""
    if line := complaint(error):
        return BadMirror(
            f"the mirror {url} lacks something, or broke off: {line}\n{error.reason}",
            hint="the mirror must serve all of https://HOST/PATH at its own HOST/PATH; then the same command continues",
        )
    return error


class Handler(BaseHTTPRequestHandler):
    """One connection of pip, apt, curl, git, Bazelisk or Bazel."""

    protocol_version = "HTTP/1.1"
    timeout = CLIENT_SECONDS
    server: Mirror

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
        quoted, _, query = self.path.partition("?")
        path = unquote(quoted).lstrip("/")
        if not path or ".." in path.split("/"):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self._repository("/info/refs") or self._cloned("/info/refs"):
            self._git()
        else:
            stored = (f"{path}{INDEX}" if path.endswith("/") else path) + (f"?{quote(query, safe='')}" if query else "")
            with self.server.lock(stored):
                self._answer(stored, self.path.lstrip("/"))

    def do_POST(self) -> None:
        if self._repository("/git-upload-pack"):
            self._git()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _repository(self, service: str) -> bool:
        """Return whether this requests a service of a repository in the bundle."""
        path, separator, _ = unquote(self.path).lstrip("/").partition(service)
        return bool(separator) and ".." not in path.split("/") and is_repository(self.server.bundle.folder / path)

    def _cloned(self, service: str) -> bool:
        """Clone the requested repository into the bundle if possible; return whether it is there.

        Source trees clone some repositories by commit.
        """
        path, separator, _ = unquote(self.path).lstrip("/").partition(service)
        upstream = self.server.upstream
        if not separator or upstream is None or "service=git-upload-pack" not in self.path:
            return False
        with self.server.lock(path):
            if not is_repository(self.server.bundle.folder / path):
                try:
                    keep_clone(self.server.bundle, upstream.url(path), path, upstream.ca)
                except BadMirror as error:
                    self.server.failures[path] = error.reason
                    return False
        return True

    def _answer(self, stored: str, requested: str) -> None:
        if (row := self.server.bundle.find(stored)) is not None:
            self._send(row)
        elif self.server.upstream is None:
            self._fail(requested, "not in the bundle", HTTPStatus.NOT_FOUND)
        else:
            self._record(self.server.upstream, stored, requested)

    def _send(self, row: File) -> None:
        self._head(row.size, row.path)
        if self.command == "HEAD":
            return
        with (self.server.bundle.folder / row.path).open("rb") as file:
            while chunk := file.read(CHUNK):
                self.wfile.write(chunk)

    def _head(self, size: int, path: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html" if path.endswith(INDEX) else "application/octet-stream")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _fail(self, requested: str, why: str, status: int) -> None:
        self.server.failures[requested] = why
        self.send_error(status, explain=why)

    def _record(self, upstream: Upstream, stored: str, requested: str) -> None:
        started, rest = False, b""
        try:
            with upstream.get(requested, signed=APT in self.headers.get("User-Agent", "")) as response:
                if response.status_code != HTTPStatus.OK:
                    # The build's programs print it, and may be anybody's: a server may repeat the login of ~/.netrc.
                    why = f"{response.status_code} {without_secrets(str(response.reason), foreign=True)}"
                    return self._fail(requested, why, response.status_code)
                length = response.headers.get("Content-Length", "")
                # A client waits only so long for the first bytes, so a file of known size is passed on as it arrives.
                started = (
                    self.command == "GET"
                    and length.isdigit()
                    and not stored.endswith(INDEX)
                    and "Content-Encoding" not in response.headers
                )
                if started:
                    self._head(int(length), stored)
                with self.server.bundle.new_file(stored, without_secrets(response.url)) as part:
                    rest = self._copy(response, part, upstream if stored.endswith(INDEX) else None, started=started)
        except requests.RequestException as error:
            self._broken(requested, cause(error), HTTPStatus.BAD_GATEWAY, started=started)
            return None
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            self.server.disk_full |= error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._broken(requested, error.strerror or str(error), HTTPStatus.INSUFFICIENT_STORAGE, started=started)
            return None
        self.server.failures.pop(requested, None)
        self.wfile.write(rest)
        if not started and (row := self.server.bundle.find(stored)) is not None:
            self._send(row)
        return None

    def _broken(self, requested: str, why: str, status: int, *, started: bool) -> None:
        """Report a failure; once the answer has begun, the only way is to end it early."""
        self.close_connection = True
        if started:
            self.server.failures[requested] = why
        else:
            self._fail(requested, why, status)

    def _copy(
        self, response: requests.Response, part: PartialFile, page_of: Upstream | None, *, started: bool
    ) -> bytes:
        """Write the answer into `part` and pass it on; return its end, which is for when the file is in the bundle.

        A build that has its last file may end before that, and the list would lack it.
        """
        if page_of is not None:
            part.write(relative(response.content, self.path, page_of.base))
            return b""
        rest = b""
        for chunk in response.iter_content(CHUNK):
            part.write(chunk)
            if started:
                self.wfile.write(rest)
                rest = chunk
        return rest

    def _git(self) -> None:
        """Run git's own server, as any web server does: a shallow clone needs it."""
        path, _, query = self.path.partition("?")
        env = os.environ | {
            "GIT_PROJECT_ROOT": str(self.server.bundle.folder.resolve()),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": unquote(path),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # The folder may have come from another machine, with another owner.
        command = ["git", "-c", "safe.directory=*", "http-backend"]
        completed = subprocess.run(command, env=env, input=body, capture_output=True, check=False)
        head, separator, content = completed.stdout.partition(b"\r\n\r\n")
        if not separator:
            self._fail(path.lstrip("/"), "git cannot serve it", HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def relative(page: bytes, path: str, base: str = "") -> bytes:
    """Turn a page's links to hosts into relative paths in the folder; `path`: that of the page, /HOST/PATH/.

    `base`: the URL of the mirror that the page comes from, which its links may name.
    """
    up = b"../" * (path.strip("/").count("/") + 1)
    prefix = base.partition("://")[2].encode() + b"/" if base else b""

    def link(match: re.Match[bytes]) -> bytes:
        rest = match["rest"]
        return match["before"] + up + (rest.removeprefix(prefix) if prefix else rest)

    return LINK.sub(link, page)
