"""A registry on loopback that serves whatever a test puts into it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import Handler, serving
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import digest_of
from tfbuild.oci.references import Repository


class FakeRegistry(Handler):
    """Serves manifests, blobs and tags from `content`, by their path below /v2/us/x/."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    content: dict[str, tuple[str, bytes]] = {}  # noqa: RUF012 - each server has a class of its own
    authorizations: list[str] = []  # noqa: RUF012
    requests: list[str] = []  # noqa: RUF012
    links: dict[str, dict[str, str]] = {}  # noqa: RUF012
    needs = ""
    realm = ""
    ways = "TOKEN"
    host = ""

    def do_GET(self) -> None:
        self.authorizations.append(self.headers.get("Authorization", ""))
        self.requests.append(f"{self.command} {self.path}")
        path = self.path.removeprefix("/v2/us/x/").partition("?")[0]
        if self.needs and self.headers.get("Authorization") != self.needs:
            token = f'Bearer realm="{self.realm}",service="x",scope="pull"'
            challenge = self.ways.replace("TOKEN", token) if self.realm else 'Basic realm="x"'
            self.answer(401, "application/json", b"{}", **{"WWW-Authenticate": challenge})
        elif path in self.content:
            kind, body = self.content[path]
            # Links are relative to the request.
            link = {"Link": '<list>; rel="next"'} if kind == "endless" else self.links.get(self.path, {})
            digest = {"Docker-Content-Digest": digest_of(body)} if path.startswith("manifests/") else {}
            self.answer(200, kind, body, **link, **digest)
        elif path == "tags/list":
            tags = [name.partition("/")[2] for name in self.content if re.fullmatch("manifests/[^:]+", name)]
            self.answer(200, "application/json", json.dumps({"tags": tags}).encode())
        else:
            self.answer(404, "application/json", b"{}")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path, _, digest = self.path.removeprefix("/v2/us/x/").partition("?digest=")
        self.content[f"blobs/{digest}" if digest else path] = (self.headers["Content-Type"], body)
        listed = self._list_as_referrer(body) if path.startswith("manifests/") else {}
        self.answer(201, "text/plain", b"", **listed)

    def do_POST(self) -> None:
        self.answer(202, "text/plain", b"", Location="/v2/us/x/blobs/uploads/1")

    def _list_as_referrer(self, body: bytes) -> dict[str, str]:
        """Add a manifest to the list of its subject's referrers, if there is one."""
        document = json.loads(body)
        subject = document.get("subject", {}).get("digest", "")
        if f"referrers/{subject}" not in self.content:
            return {}
        kind, content = self.content[f"referrers/{subject}"]
        rows = json.loads(content)["manifests"]
        rows.append({"artifactType": document["artifactType"], "digest": digest_of(body)})
        self.content[f"referrers/{subject}"] = (kind, json.dumps({"manifests": rows}).encode())
        return {"OCI-Subject": subject}

    def answer(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.say(status, body, {"Content-Type": kind, **headers})


@contextmanager
def registry() -> Iterator[type[FakeRegistry]]:
    """A registry with nothing in it."""
    handler: type[FakeRegistry] = type(
        "Here", (FakeRegistry,), {"content": {}, "authorizations": [], "requests": [], "links": {}}
    )
    with serving(handler) as handler.host:
        yield handler


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeRegistry]]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry() as handler:
        yield handler


def connect(fake: type[FakeRegistry]) -> Registry:
    return Registry(Repository.parse(f"{fake.host}/us/x"))
