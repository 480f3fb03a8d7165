"""pull.sh against a registry that means harm: it only chooses, and nothing of docker is asked."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


class Hostile(BaseHTTPRequestHandler):
    """Answers with `index`; with a `realm`, only to who has a token."""

    index = b""
    realm = ""
    tokens: list[str] = []  # noqa: RUF012 - each server has a class of its own
    defects: list[object] = []  # noqa: RUF012 - of the requests' headers

    def do_GET(self) -> None:
        self.defects.extend(self.headers.defects)
        token = self.headers.get("Authorization", "")
        self.tokens.append(token)
        denied = bool(self.realm) and not token
        self.send_response(401 if denied else 200)
        self.send_header("WWW-Authenticate", f'Bearer realm="{self.realm}",service="here",scope="pull"')
        self.send_header("Content-Length", str(len(self.index)))
        self.end_headers()
        self.wfile.write(self.index)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[type[Hostile]]:
    handler = type("Here", (Hostile,), {"tokens": [], "defects": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.port = server.server_port  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def shell(hostile: type[Hostile], tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2 avx\n")
    repository = f"127.0.0.1:{hostile.port}/us/x"  # type: ignore[attr-defined]
    env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(tmp_path / "cpuinfo"), "DRY_RUN": "1", "no_proxy": "*"}
    return subprocess.run(
        ["dash", ROOT / "pull.sh", repository], capture_output=True, text=True, check=False, env=env, timeout=60
    )


class Proxy(BaseHTTPRequestHandler):
    """What curl asks a proxy for: CONNECT where it means to speak TLS."""

    asked: list[str] = []  # noqa: RUF012 - each server has a class of its own

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_error(403)

    do_CONNECT = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("127.evil.invalid", "CONNECT 127.evil.invalid:443"),
        ("127.0.0.1.evil.invalid:5000", "CONNECT 127.0.0.1.evil.invalid:5000"),
        ("localhost.invalid", "CONNECT localhost.invalid:443"),
        ("registry:5000", "CONNECT registry:5000"),
        ("127.0.0.1:5000", "GET http://127.0.0.1:5000/v2/us/x/manifests/latest-mkl"),
        ("localhost", "GET http://localhost/v2/us/x/manifests/latest-mkl"),
    ],
)
def test_only_this_machine_is_spoken_to_in_the_open(host: str, asked: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2 avx\n")
    handler = type("Here", (Proxy,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        proxy = f"http://127.0.0.1:{server.server_port}"
        env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(tmp_path / "cpuinfo"), "DRY_RUN": "1"}
        done = subprocess.run(
            ["dash", ROOT / "pull.sh", f"{host}/us/x"],
            capture_output=True, text=True, check=False, timeout=60,
            env=env | {"http_proxy": proxy, "https_proxy": proxy},
        )  # fmt: skip
        server.shutdown()
    assert done.returncode == 26
    assert handler.asked[:1] == [asked]  # type: ignore[attr-defined]


def row(digest: str, **notes: str) -> dict[str, object]:
    return {"digest": f"sha256:{digest}", "annotations": {f"io.tfbuild.{name}": text for name, text in notes.items()}}


def test_names_are_fit_for_a_terminal(hostile: type[Hostile], tmp_path: Path) -> None:
    platform = f"linux/{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"
    rows = [
        row("1", id="one\x1b[31m", platform=platform, cpuinfo="avx"),
        row("2", id="two\x1b[31m", platform=platform, cpuinfo="avx512f"),
        row("3", id="three", cpuinfo="avx"),  # of no platform, and not of the one before
    ]
    hostile.index = json.dumps({"manifests": rows}, indent=2).replace("\\u001b", "\x1b").encode()
    done = shell(hostile, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("@sha256:1 one[31m\n")
    assert done.stderr == "pull.sh: not two[31m: this CPU lacks avx512f\n"


def test_what_is_no_index_of_tfbuilds_is_not_taken_for_one_without_a_fit(
    hostile: type[Hostile], tmp_path: Path
) -> None:
    for text in ('{"manifests": [{"digest": "sha256:1"}]}', '{"layers": []}', "{}"):
        hostile.index = text.encode()
        done = shell(hostile, tmp_path)
        assert (done.returncode, done.stdout) == (26, "")
        assert "is no index of tfbuild's" in done.stderr
    hostile.index = json.dumps({"manifests": [row("1", id="one", platform="linux/riscv64", cpuinfo="avx")]}).encode()
    assert shell(hostile, tmp_path).returncode == 26
    hostile.index = json.dumps({"manifests": [row("1", id="one", cpuinfo="avx")]}, indent=2).encode()
    assert shell(hostile, tmp_path).returncode == 27


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_what_it_has_read_is_gone_when_it_is_ended(end: signal.Signals, code: int, tmp_path: Path) -> None:
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


def test_an_ipv6_address_is_told_to_need_a_name(tmp_path: Path) -> None:
    done = subprocess.run(
        ["dash", ROOT / "pull.sh", "[::1]:5000/us/x"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "by an IPv6 address: give it a name" in done.stderr


@pytest.mark.parametrize("indent", [None, 2])
def test_a_token_that_is_told_by_both_of_its_names_is_sent_once(
    hostile: type[Hostile], indent: int | None, tmp_path: Path
) -> None:
    """By the specification both are the same one."""

    def answer(self: BaseHTTPRequestHandler) -> None:
        body = json.dumps({"token": "word", "expires_in": 300, "access_token": "word"}, indent=indent).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    quiet = {"do_GET": answer, "log_message": lambda *_: None}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Seller", (BaseHTTPRequestHandler,), quiet)) as seller:
        threading.Thread(target=seller.serve_forever, args=(0.01,), daemon=True).start()
        hostile.realm = f"http://127.0.0.1:{seller.server_port}/token"
        platform = f"linux/{'arm64' if os.uname().machine == 'aarch64' else 'amd64'}"
        rows = [row("1", id="one", platform=platform, cpuinfo="avx")]
        hostile.index = json.dumps({"manifests": rows}, indent=2).encode()
        done = shell(hostile, tmp_path)
        seller.shutdown()
    assert done.returncode == 0, done.stderr
    assert hostile.tokens == ["", "Bearer word"]
    # Two words would be two lines of the request's head.
    assert hostile.defects == []


@pytest.mark.parametrize("prefix", ["file://", "-K"])
def test_no_file_of_the_host_is_handed_to_a_registry(hostile: type[Hostile], tmp_path: Path, prefix: str) -> None:
    (tmp_path / "secret").write_text('{"token": "secret"}')
    hostile.realm = f"{prefix}{tmp_path}/secret"
    done = shell(hostile, tmp_path)
    assert not [token for token in hostile.tokens if "secret" in token]
    assert done.returncode == 26
