"""pull.sh against a hostile registry. It only chooses; docker is not called."""

import base64
import gzip
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.commandline import ROOT, executable
from tests.locales import without_i
from tests.publish.fake_images import pull_script
from tests.servers import Handler, serving
from tfbuild import facts
from tfbuild.oci.manifests import digest_of

PREFIX = "2.20.0-mkl-py3.13-"
PLATFORM = f"linux/{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"


class Hostile(Handler):
    """Answers with `index`, or what a row of it names; with a `realm`, only to requests with a token."""

    index = b""
    realm = ""
    tokens: list[str] = []  # noqa: RUF012 - each server has a class of its own
    defects: list[object] = []  # noqa: RUF012 - of the headers in requests
    host = ""

    def body(self) -> bytes:
        return MEMBERS.get(self.path.rpartition("/")[2], self.index)

    def do_GET(self) -> None:
        self.defects.extend(self.headers.defects)
        token = self.headers.get("Authorization", "")
        self.tokens.append(token)
        denied = bool(self.realm) and not token
        challenge = f'Bearer realm="{self.realm}",service="here",scope="pull"'
        self.say(401 if denied else 200, self.body(), {"WWW-Authenticate": challenge})


@pytest.fixture
def hostile() -> Iterator[type[Hostile]]:
    handler: type[Hostile] = type("Here", (Hostile,), {"tokens": [], "defects": []})
    with serving(handler) as handler.host:
        yield handler


class Proxy(Handler):
    """Records what curl requests of a proxy: CONNECT if it wants TLS."""

    requests: list[str] = []  # noqa: RUF012 - each server has a class of its own

    def do_GET(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        self.send_error(403)

    do_CONNECT = do_GET


@pytest.mark.parametrize(
    ("host", "first_request", "no_proxy"),
    [
        ("127.evil.invalid", "CONNECT 127.evil.invalid:443", ""),
        ("registry:5000", "CONNECT registry:5000", ""),
        ("docker.io", "CONNECT registry-1.docker.io:443", ""),
        # Those are reached without a proxy.
        ("127.0.0.1:1", None, ""),
        ("127.0.0.2:1", None, ""),
        ("localhost:1", None, ""),
        ("evil.invalid", None, "*"),
    ],
)
def test_plain_http_is_only_used_for_loopback_addresses(
    host: str, first_request: str | None, no_proxy: str, tmp_path: Path
) -> None:
    handler = type("Here", (Proxy,), {"requests": []})
    with serving(handler) as address:
        proxies = {"http_proxy": f"http://{address}", "https_proxy": f"http://{address}"}
        done = pull_script(tmp_path, f"{host}/us/x", no_proxy=no_proxy, **proxies)
    assert done.returncode == 26
    assert handler.requests[:1] == ([first_request] if first_request else [])  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["", "/us//base", "/us/./base", "/us/x/../base", "/us/", "/us/Base", "/us/x:tag"])
def test_what_is_no_repository_in_a_registry_is_refused(path: str) -> None:
    """curl would ask for another one."""
    name = f"localhost{path}"
    done = subprocess.run(["dash", ROOT / "pull.sh", name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"pull.sh: {name} is not a repository in a registry\n")


# Manifests and configurations by their digests.
MEMBERS: dict[str, bytes] = {}


def row(name: str, features: str | None = None, labels: Mapping[str, str] = {}, **said: str) -> dict[str, object]:
    """Return the row of the image PREFIX + `name`, whose label has `features`, by default those that the row says.

    The other labels, too, are what the row says, but for those in `labels`.
    """
    annotations = {"id": f"{PREFIX}{name}", "release": "2.20.0", "python": "3.13", "platform": PLATFORM, **said}
    own = {"features": said["cpuinfo"] if features is None else features, **annotations, **labels}
    texts = {f"io.tfbuild.{key}": text for key, text in own.items() if key != "cpuinfo"}
    system, _, architecture = own["platform"].partition("/")
    config = json.dumps({"os": system, "architecture": architecture, "config": {"Labels": texts}}).encode()
    # The row's `cpuinfo` stands behind all that pull.sh needs of it.
    ordered = {key: text for key, text in annotations.items() if key != "cpuinfo"} | {"cpuinfo": said["cpuinfo"]}
    return {"digest": member_of(config), "annotations": {f"io.tfbuild.{key}": text for key, text in ordered.items()}}


def member_of(config: bytes, more: Mapping[str, object] = {}) -> str:
    """Return the digest of an image with this configuration."""
    manifest = json.dumps({"config": {"size": 1, "digest": digest_of(config)}, **more}, indent=3).encode()
    MEMBERS.update({digest_of(content): content for content in (config, manifest)})
    return digest_of(manifest)


def listed(*rows: Mapping[str, object]) -> bytes:
    return json.dumps({"manifests": rows}, indent=2).encode()


def test_an_identifier_that_cannot_be_one_is_passed_over_and_not_printed(
    hostile: type[Hostile], tmp_path: Path
) -> None:
    """It would be part of a command to type."""
    names = ("one\x1b[31m", "x';touch${IFS}y;'", "-x", "x y", "\u0445", 129 * "x", "")
    rows = [row(str(number), labels={"id": name}, id=name, cpuinfo="avx") for number, name in enumerate(names)]
    rows += [row("four", cpuinfo="avx"), row("five", cpuinfo="avx512f\x9b31m\x1b[2J")]
    hostile.index = json.dumps({"manifests": rows}, indent=2, ensure_ascii=False).replace("\\u001b", "\x1b").encode()
    done = pull_script(tmp_path, f"{hostile.host}/us/x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"@{rows[len(names)]['digest']} {PREFIX}four\n")
    assert done.stderr.splitlines() == [
        "pull.sh: an image with an invalid identifier is passed over",
        f"pull.sh: not {PREFIX}five: this CPU lacks avx512f??31m[2J",
    ]


def test_the_locale_makes_no_difference(hostile: type[Hostile], tmp_path: Path) -> None:
    hostile.index = listed(row("fi", cpuinfo="avx"))
    done = pull_script(tmp_path, f"{hostile.host}/us/tfbuild", **without_i(tmp_path))
    assert done.stdout.endswith(f" {PREFIX}fi\n"), done.stderr


def test_it_knows_what_the_kernel_calls_by_another_name() -> None:
    """Features that no kernel prints (without `cpuinfo`) keep their names, and fit no host."""
    renamed = {row.name: row.cpuinfo for row in facts.features() if row.cpuinfo not in ("", row.name)}
    assert dict(re.findall(r"s/\^(\w+)\$/(\w+)/", (ROOT / "pull.sh").read_text())) == renamed


@pytest.mark.parametrize(
    "digest",
    ["sha256:" + end for end in (64 * "g", 64 * "A", 63 * "0", 65 * "0", 63 * "0" + "/")] + ["sha512:" + 64 * "0"],
)
def test_a_digest_that_cannot_be_one_is_not_requested(digest: str, hostile: type[Hostile], tmp_path: Path) -> None:
    hostile.index = listed(row("one", cpuinfo="avx") | {"digest": digest})
    done = pull_script(tmp_path, f"{hostile.host}/us/x")
    assert done.stderr.startswith(f"pull.sh: not {PREFIX}one: the index gives no digest\n")
    assert done.returncode == 27


@pytest.mark.parametrize(
    ("release", "platform", "chosen"),
    [
        ("2.9.30", PLATFORM, "2.20.0"), ("2.20.10", PLATFORM, "2.20.10"), ("10.0.0", PLATFORM, "10.0.0"),
        ("2.20.1", "linux/s390x", ""),
    ],
)  # fmt: skip
def test_the_newest_release_of_any_platform_is_taken_by_its_numbers(
    release: str, platform: str, chosen: str, hostile: type[Hostile], tmp_path: Path
) -> None:
    other = row("two", cpuinfo="avx", release=release, id=f"{release}-mkl-py3.13-two", platform=platform)
    hostile.index = listed(row("one", cpuinfo="avx"), other)
    done = pull_script(tmp_path, f"{hostile.host}/us/x")
    assert (f" {chosen}-mkl-" in done.stdout, done.returncode) == (bool(chosen), 0 if chosen else 27)


@pytest.mark.parametrize(("python", "code"), [("3.1", 27), ("3.10", 0)])
def test_pythons_are_compared_as_text(python: str, code: int, hostile: type[Hostile], tmp_path: Path) -> None:
    hostile.index = listed(row("one", cpuinfo="avx", python="3.10", id="2.20.0-mkl-py3.10-one"))
    assert pull_script(tmp_path, f"{hostile.host}/us/x", "latest", "mkl", python).returncode == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"os": "linux"', '"os": "windows"'),
        (f'"architecture": "{PLATFORM[6:]}"', '"architecture": "s390x"'),
        ('"io.tfbuild.features": "", ', ""),
        ('"io.tfbuild.features": ""', '"io.tfbuild.features": "avx"'),
        (f'"io.tfbuild.platform": "{PLATFORM}"', '"io.tfbuild.platform": "linux/s390x"'),
        ('"io.tfbuild.python": "3.13"', '"io.tfbuild.python": "3.12"'),
        ('"io.tfbuild.release": "2.20.0"', '"io.tfbuild.release": "2.20.1"'),
        (f'"io.tfbuild.id": "{PREFIX}one"', f'"io.tfbuild.id": "{PREFIX}two"'),
        ('"config": ', '"container_config": {"Labels": {"io.tfbuild.id": "x"}}, "config": '),
    ],
)
def test_an_image_that_is_not_its_row_is_passed_over(
    old: str, new: str, hostile: type[Hostile], tmp_path: Path
) -> None:
    sound = row("one", cpuinfo="")
    config = MEMBERS[json.loads(MEMBERS[str(sound["digest"])])["config"]["digest"]].decode()
    assert old in config
    hostile.index = listed(sound | {"digest": member_of(config.replace(old, new).encode())})
    assert pull_script(tmp_path, f"{hostile.host}/us/x").returncode == 24


@pytest.mark.parametrize(("before", "code"), [(0, 0), (4 << 20, 26)])
def test_what_a_proxy_compressed_is_read_up_to_a_limit(
    before: int, code: int, hostile: type[Hostile], tmp_path: Path
) -> None:
    hostile.index = index()
    hostile.body = lambda self: gzip.compress(before * b" " + Hostile.body(self))  # type: ignore[method-assign]
    assert pull_script(tmp_path, f"{hostile.host}/us/x").returncode == code


def test_a_full_disk_is_not_blamed_on_the_registry(tmp_path: Path) -> None:
    """curl's code for what it cannot write."""
    path = executable(tmp_path / "bin" / "curl", "exit 23").parent
    done = pull_script(tmp_path, "127.0.0.1:1/us/x", PATH=f"{path}:{os.environ['PATH']}")
    assert (done.returncode, "TMPDIR=" in done.stderr, "does not answer" in done.stderr) == (21, True, False)


def test_an_answer_that_says_no_length_is_cut_off(hostile: type[Hostile], tmp_path: Path) -> None:
    def answer(self: Hostile) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write((5 << 20) * b" " + index())

    hostile.do_GET = answer  # type: ignore[method-assign]
    assert pull_script(tmp_path, f"{hostile.host}/us/x").returncode == 26


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_temporary_files_are_removed_if_a_signal_ends_it(end: signal.Signals, code: int, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2 avx\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        repository = f"127.0.0.1:{silent.getsockname()[1]}/us/x"
        env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(tmp_path / "cpuinfo"), "TMPDIR": str(scratch)}
        with subprocess.Popen(
            ["dash", ROOT / "pull.sh", repository], env={**env, "no_proxy": "*"}, start_new_session=True
        ) as process:
            silent.settimeout(60)
            with silent.accept()[0]:
                assert len(list(scratch.iterdir())) == 1
                os.killpg(process.pid, end)
                assert process.wait(60) == code
    assert list(scratch.iterdir()) == []


PASSWORD = 'a "pass\\word" & <b>\n\\n\t.'
LOGIN = base64.b64encode(f"somebody:{PASSWORD}".encode()).decode()


def index() -> bytes:
    return listed(row("one", cpuinfo="avx"))


def store_login(tmp_path: Path, host: str, place: str) -> dict[str, str]:
    """Store a login as `docker login` does: in its file (new or old), in a helper for this host, or for all hosts."""
    settings: dict[str, object] = {"auths": {"127.0.0.1:1": {"auth": "another"}, host: {"auth": LOGIN}}}
    if place == "typed":
        settings = {"auths": {f"https://{host}/v2/": {"auth": LOGIN}, f"https://{host}.evil": {"auth": "another"}}}
    elif place != "file":
        store = (
            {"credHelpers": {"127.0.0.1:1": "another", host: "ours"}}
            if place == "own helper"
            else {"credsStore": "ours"}
        )
        settings = {"auths": {host: {}}, **store}
        answer = json.dumps({"ServerURL": host, "Username": "somebody", "Secret": PASSWORD}, indent=1)
        # As Go writes JSON.
        for letter in "&<>":
            answer = answer.replace(letter, f"\\u{ord(letter):04x}")
        script = f"[ \"$1 $(cat)\" = 'get {host}' ] || exit 1\ncat <<'END'\n{answer}\nEND"
        executable(tmp_path / "bin" / "docker-credential-ours", script)
    (tmp_path / "config.json").write_text(json.dumps(settings, indent="\t"))
    return {"DOCKER_CONFIG": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


@pytest.mark.parametrize("place", ["file", "typed", "own helper", "helper"])
@pytest.mark.parametrize("scheme", ["Basic", "BASIC", "Bearer"])
def test_a_private_registry_is_read_with_dockers_login(
    hostile: type[Hostile], scheme: str, place: str, tmp_path: Path
) -> None:
    hostile.index = index()
    host = hostile.host

    def answer(self: Hostile) -> None:
        authorization = self.headers.get("Authorization", "")
        self.tokens.append(authorization)
        body, wanted = self.body(), f"Basic {LOGIN}"
        if scheme == "Bearer":
            buys_token = self.path.lower().startswith("/token?service=here&scope=repository%3aus%2fx%3apull")
            body, wanted = (b'{"access_token": "issued"}', wanted) if buys_token else (self.body(), "Bearer issued")
        self.send_response(200 if authorization == wanted else 401)
        if scheme == "Bearer":
            realm = f'Bearer realm="http://{host}/token",service="here",scope="repository:us/x:pull"'
            self.send_header("WWW-Authenticate", realm)
        self.send_header("WWW-Authenticate", f'{scheme.replace("Bearer", "Basic")} realm="here"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    hostile.do_GET = answer  # type: ignore[method-assign]
    done = pull_script(tmp_path, f"{hostile.host}/us/x", **store_login(tmp_path, host, place))
    digest = json.loads(hostile.index)["manifests"][0]["digest"]
    assert done.stdout == f"{host}/us/x@{digest} {PREFIX}one\n", done.stderr
    tokens = 3 * ["Bearer issued"] if scheme == "Bearer" else 2 * [f"Basic {LOGIN}"]
    assert hostile.tokens == ["", f"Basic {LOGIN}", *tokens]


IDENTITY = "eyJ0.a+b/c-_="


@pytest.mark.parametrize("place", ["file", "helper"])
def test_an_identity_token_buys_a_token(hostile: type[Hostile], place: str, tmp_path: Path) -> None:
    """As Azure's registry gives one at `docker login`; beside it, the name has an empty password."""
    hostile.index, host = index(), hostile.host
    forms: list[dict[str, str]] = []
    hostile.realm = f"http://{host}/token"

    def sell(self: Hostile) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        forms.append({name: " ".join(values) for name, values in form.items()} | {"": self.path})
        self.say(200, b'{"access_token": "issued"}')

    hostile.do_POST = sell  # type: ignore[attr-defined]
    env = store_login(tmp_path, host, place)
    empty = base64.b64encode(b"00000000-0000-0000-0000-000000000000:").decode()
    if place == "file":
        auths = {"127.0.0.1:1": {"identitytoken": "another"}, host: {"auth": empty, "identitytoken": IDENTITY}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}, indent="\t"))
    else:
        said = json.dumps({"ServerURL": host, "Username": "<token>", "Secret": IDENTITY})
        executable(tmp_path / "bin" / "docker-credential-ours", f"echo '{said}'")
    done = pull_script(tmp_path, f"{host}/us/x", **env)
    assert done.returncode == 0, done.stderr
    wanted = {"grant_type": "refresh_token", "client_id": "tfbuild", "refresh_token": IDENTITY}
    assert forms == [wanted | {"service": "here", "scope": "pull", "": "/token"}]
    assert hostile.tokens == ["", *3 * ["Bearer issued"]]


def test_a_curlrc_does_not_change_what_an_answer_is(hostile: type[Hostile], tmp_path: Path) -> None:
    """Many registries, GHCR too, answer the first request with 401."""

    class TokenServer(Handler):
        def do_GET(self) -> None:
            self.say(200, b'{"token": "any"}')

    (tmp_path / ".curlrc").write_text("fail\ninclude\n")
    with serving(TokenServer) as host:
        hostile.realm, hostile.index = f"http://{host}/token", index()
        done = pull_script(tmp_path, f"{hostile.host}/us/x", HOME=str(tmp_path))
    assert done.stdout.endswith(f" {PREFIX}one\n"), done.stderr


def test_no_password_and_no_file_of_the_host_is_sent_to_a_realm(hostile: type[Hostile], tmp_path: Path) -> None:
    """Otherwise the registry could choose who receives it."""
    (tmp_path / "secret").write_text('{"token": "secret"}')
    hostile.realm = f"file://{tmp_path}/secret"
    done = pull_script(tmp_path, f"{hostile.host}/us/x")
    assert (done.returncode, "curl: (1) " in done.stderr) == (26, True)
    assert not [token for token in hostile.tokens if "secret" in token]
    hostile.tokens.clear()
    authorizations: list[str] = []

    class TokenServer(Handler):
        def do_GET(self) -> None:
            authorizations.append(self.headers.get("Authorization", ""))
            self.say(200, b'{"token": "any"}')

    with serving(TokenServer) as host:
        hostile.realm, hostile.index = f"http://{host}/token[1-3]", index()
        done = pull_script(tmp_path, f"{hostile.host}/us/x", **store_login(tmp_path, hostile.host, "file"))
    assert done.returncode == 0, done.stderr
    assert authorizations == [""]
    assert hostile.tokens == ["", *3 * ["Bearer any"]]
