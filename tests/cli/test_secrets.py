"""No password, token or query of an address is printed or written, wherever it comes from."""

import base64
import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from tests import servers
from tests.cli import hostile
from tests.cli.hostile import Pair, Place
from tests.cli.hostile import place as place
from tests.commandline import answer
from tests.rows import each
from tests.servers import Handler
from tfbuild import errors
from tfbuild.errors import TfbuildError, conceal, without_secrets
from tfbuild.util import terminal

CANARY = "tw33t-s3cr3t"
FORMS = (
    f"u:{CANARY}@127.0.0.1:1/us/x", f"https://u:{CANARY}@127.0.0.1:1/x", f"tcp://u:{CANARY}@127.0.0.1:1",
    f"https://{CANARY}@127.0.0.1:1/x", f"https://127.0.0.1:1/x?k={CANARY}", f"127.0.0.1:1/us/x?token={CANARY}",
    f"grpcs://u:{CANARY}/{CANARY}@127.0.0.1:1",
)  # fmt: skip
# Their values are paths: a name of a file is not a secret, and is printed as it is given.
PATHS = ("output",)
BUILT = ("bazel-flag", "configure")


@each(
    "text, shown",
    [
        ("https://u:pw@host/x", "https://***@host/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://u:p/w@ss@host/x", "https://***@host/x"),
        ("see http://u:pw@proxy:3128 and http://v:pw@other", "see http://***@proxy:3128 and http://***@other"),
        ("'u:pw@host/us/x' is not", "'***@host/us/x' is not"),
        ("https://host/x?k=pw&l=pw#y", "https://host/x?***#y"),
        ("(https://host/x?pw) failed", "(https://host/x?***) failed"),
        ("host/us/x?token=pw", "host/us/x?***"),
        ("Authorization: Basic dTpwd2Q6cHc=", "Authorization: Basic ***"),
        ("bearer eyJhbGciOi.eyJ", "bearer ***"),
        # What is not a secret stays.
        ("ssh://user@host:2222", "ssh://user@host:2222"),
        ("https://host:443/v2/x@sha256:abc", "https://host:443/v2/x@sha256:abc"),
        ("host:5000/us/x:2.21@sha256:abc", "host:5000/us/x:2.21@sha256:abc"),
        ("tfbuild:2.21.0-mkl@sha256:abc", "tfbuild:2.21.0-mkl@sha256:abc"),
        ("docker://ubuntu:22.04@sha256:abc", "docker://ubuntu:22.04@sha256:abc"),
        ("git@github.com:us/x", "git@github.com:us/x"),
        ("https://[::1]:80/x", "https://[::1]:80/x"),
        ("is it https://host/x? Yes", "is it https://host/x? Yes"),
        ("basic research", "basic research"),
        ("a note: mail us@host", "a note: mail us@host"),
        ("pkg:deb/debian/x@1?arch=amd64", "pkg:deb/debian/x@1?***"),
        ("bearer of bad news", "bearer of bad news"),
    ],
)
def test_addresses_are_shown_without_passwords_and_queries(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert TfbuildError(text).reason == shown


def test_what_was_sent_is_hidden_wherever_it_comes_back() -> None:
    conceal("s3nder-name", "s3nt-and-said", "", "abc")
    assert without_secrets("login s3nder-name with s3nt-and-said, abc") == "login s3nder-name with ***, abc"
    assert without_secrets("login s3nder-name, s3nder-names", foreign=True) == "login ***, s3nder-names"


@contextmanager
def newly(place: Place) -> Iterator[None]:
    """Run a command as a new process would: what an earlier one has sent is not hidden any more."""
    own = patch.dict(errors._sent, clear=True)
    with own, hostile.disarmed(place.root), hostile.watched(), hostile.limited(hostile.SECONDS):
        yield


@each("pair, value", zip([pair for pair in hostile.EVERY if not pair.switch] * 2, itertools.cycle(FORMS), strict=False))
def test_no_command_repeats_a_secret_of_its_options(pair: Pair, value: str, place: Place) -> None:
    with newly(place):
        done = answer(*pair.words(value), cwd=place.work, env=place.env, run=hostile.run)
    files = written(place)
    shutil.rmtree(place.work)
    place.work.mkdir()
    assert CANARY not in done.stderr
    assert pair.option in PATHS or CANARY not in done.stdout
    # What Bazel reads is in the context that it is read from.
    assert pair.option in BUILT or files == []


def written(place: Place) -> list[str]:
    """The files with a secret in them."""
    return [path.name for path in place.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


# --- variables and servers --------------------------------------------------------------------------------------------

VARIABLES = (
    "TFBUILD_REGISTRY", "TFBUILD_INDEX", "TFBUILD_IMAGE_SOURCE", "TFBUILD_SIGNED", "DOCKER_HOST", "DOCKER_CONTEXT",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
)  # fmt: skip
COMMANDS = (
    ("pull", "--dry-run"),
    ("push", "2.21.0-mkl-py3.11-f16c", "--access"),
    ("install", "--dry-run"),
    ("verify", "2.21.0-mkl-py3.11-f16c"),
    ("build", "--target", "mkl", "--wheel", "official", "--dry-run"),
)


@each("words", COMMANDS)
@each("variable, value", zip(VARIABLES, itertools.cycle(FORMS), strict=False))
def test_no_command_repeats_a_secret_of_a_variable(
    words: tuple[str, ...], variable: str, value: str, place: Place
) -> None:
    with newly(place):
        done = answer(*words, cwd=place.work, env={**place.env, variable: value}, run=hostile.run)
    assert CANARY not in done.stdout + done.stderr
    assert written(place) == []


TOKEN = f"t0ken-{CANARY}"
LOGIN = base64.b64encode(f"robot-name:{CANARY}".encode()).decode()
ADDRESS = f"http://u:{CANARY}@127.0.0.1:1/x?k={CANARY}"


class Echo(Handler):
    """A server that repeats what it is sent, or names an address with a secret, as its `kind` says."""

    kind: ClassVar[str]

    def do_GET(self) -> None:
        sent = self.headers.get("Authorization", "")
        _, port = self.request.getsockname()
        bearer = f'Bearer realm="http://127.0.0.1:{port}/token?k={CANARY}",service="x"'
        if self.kind == "a realm with a secret":
            self.answer(401, "", ("WWW-Authenticate", f'Bearer realm="{ADDRESS}",service="{CANARY}"'))
        elif self.path.startswith("/token") and self.kind != "a token server's refusal":
            self.answer(200, json.dumps({"token": TOKEN}))
        elif not sent:
            self.answer(401, "", ("WWW-Authenticate", 'Basic realm="x"' if self.kind == "a refusal" else bearer))
        elif self.kind == "a redirection":
            self.answer(307, "", ("Location", ADDRESS))
        elif self.kind == "a moved file" and "k=" in self.path:
            self.answer(200, "x")
        elif self.kind == "a moved file":
            self.answer(307, "", ("Location", f"http://u:{CANARY}@127.0.0.1:{port}/x?k={CANARY}"))
        elif self.kind == "a list":
            self.answer(200, json.dumps({"schema": f"{sent} {ADDRESS}"}))
        elif self.kind == "a page":
            self.answer(500, f"<html>{sent} {ADDRESS}</html>")
        else:
            name, _, secret = base64.b64decode(f"{sent.partition(' ')[2]}==").decode(errors="replace").partition(":")
            error = {"code": "DENIED", "message": f"no access for {name}:{secret}", "detail": [sent, name, secret]}
            self.answer(403, json.dumps({"errors": [error]}))

    def answer(self, code: int, body: str, *headers: tuple[str, str]) -> None:
        self.reason = f"No access for {self.headers.get('Authorization')}"
        self.say(code, body.encode(), dict(headers))

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET


@contextmanager
def echo(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which such a server is named, and the logins for it: Docker's, and that of ~/.netrc."""
    with patch.dict(errors._sent, clear=True), servers.serving(type("Kind", (Echo,), {"kind": kind})) as host:
        (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": LOGIN}}}))
        (folder / "netrc").write_text(f"machine 127.0.0.1 login robot-name password {CANARY}\n")
        yield {
            "DOCKER_CONFIG": str(folder),
            "NETRC": str(folder / "netrc"),
            "TFBUILD_REGISTRY": f"{host}/us/x",
            "TFBUILD_INDEX": f"http://{host}/x",
            "DOCKER_HOST": "unix:///none",
        }


ANSWERS = (
    "a refusal", "a refusal after a token", "a token server's refusal", "a realm with a secret", "a redirection",
    "a page", "a moved file", "a list",
)  # fmt: skip
ASKING = (
    ("pull", "--dry-run"),
    ("verify", "2.21.0-mkl-py3.11-f16c", "--registry", "{TFBUILD_REGISTRY}"),
    ("push", "2.21.0-mkl-py3.11-f16c", "--yank", "x"),
    ("install", "--index", "{TFBUILD_INDEX}"),
    ("plan", "--target", "mkl", "--wheel", "index:{TFBUILD_INDEX}"),
)


@each("kind, words", itertools.product(ANSWERS, ASKING))
def test_no_command_repeats_a_secret_of_an_answer(kind: str, words: tuple[str, ...], tmp_path: Path) -> None:
    with echo(kind, tmp_path) as env:
        done = answer(*(word.format(**env) for word in words), cwd=tmp_path, env=env)
    said = done.stdout + done.stderr
    assert not [secret for secret in (CANARY, LOGIN) if secret in said], said
    assert "no access for ***" in said or "answers 403" in said or kind != "a refusal", said
    assert "127.0.0.1:" in said or kind in ("a list", "a moved file"), said


@each("begins", ["machine host", "default", ""])
def test_what_netrc_and_the_variables_of_proxies_have_is_hidden(begins: str, tmp_path: Path) -> None:
    secret = f"{CANARY}-{begins.replace(' ', '-')}"
    (tmp_path / "netrc").write_text(f"{begins} login robot-name password {secret}\n" if begins else "")
    proxy = "http://[::1" if begins else f"robot-name:{secret}@host:3128"
    terminal.conceal_logins({"NETRC": str(tmp_path / "netrc"), "https_proxy": proxy})
    encoded = base64.b64encode(f"robot-name:{secret}".encode()).decode()
    shown = without_secrets(f"403 no access for robot-name:{secret} ({encoded})", foreign=True)
    assert shown == "403 no access for ***:*** (***)"
