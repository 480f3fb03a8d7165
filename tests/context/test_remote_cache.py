"""remote.py in the builder: whether a remote cache or executor answers, and what becomes of a compile without it."""

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.plan.test_remote_options import remote
from tests.servers import self_signed
from tfbuild.context import dockerfile
from tfbuild.pipeline import bazel

SCRIPT = dockerfile.TEMPLATES / "remote.py"


def test_headers_are_hidden_in_what_bazel_prints(tmp_path: Path) -> None:
    rc, headers = tmp_path / "remote", tmp_path / "headers"
    headers.write_text("Authorization=Bearer abc.def-123==\nx-team=a b\n")
    rc.write_text(remote(cache="grpc://h", header_file=str(headers)).bazelrc("6.5.0"))
    output = "  'build' options: --remote_header=Authorization=Bearer abc.def-123== --x\nabc.def-123==\n[1 / 2] a b\n"
    done = subprocess.run(
        [sys.executable, SCRIPT, "hide", rc], input=output, capture_output=True, text=True, check=True
    )
    assert done.stdout == "  'build' options: --remote_header=Authorization=*** --x\n***\n[1 / 2] ***\n"


@contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port, with `serve` accepting connections in a thread until the block ends."""

    def accept() -> None:
        with suppress(OSError):
            serve(listening)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def answering(*answers: bytes) -> AbstractContextManager[int]:
    """A port of which each connection gets the next of these answers; without one, the kernel alone accepts."""

    def serve(listening: socket.socket) -> None:
        for answer in answers:
            with listening.accept()[0] as end:
                end.recv(1 << 16)
                end.sendall(answer)

    return served(serve)


QUICK = {"SECONDS = 15": "SECONDS = 0.3", "EVERY = 30": "EVERY = 0.2"}


def run(
    folder: Path, url: str, *words: str, kind: str = "cache", flags: tuple[str, ...] = (), patient: bool = False
) -> "subprocess.CompletedProcess[str]":
    """remote.py, with a second for what takes it minutes; if `patient`, a slow machine may take its time to answer."""
    rc, script = folder / "remote", folder / "remote.py"
    rc.write_text("".join(f"build {flag}\n" for flag in (f"--remote_{kind}={url}", *flags)))
    text = SCRIPT.read_text()
    for line, quick in QUICK.items():
        assert f"\n{line}\n" in text
        if not (patient and line.startswith("SECONDS")):
            text = text.replace(f"\n{line}\n", f"\n{quick}\n")
    script.write_text(text)
    command: list[str | Path] = [sys.executable, script, words[0], rc, *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_what_does_not_answer_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "grpc://127.0.0.1:1", "reach")
    assert done.returncode == 1
    assert done.stderr.startswith("tfbuild: the remote cache grpc://127.0.0.1:1 does not answer: ")
    watch = bazel.BazelWatch()
    watch(done.stderr)
    assert watch.no_remote
    watch(f"{bazel.ALONE}\n")
    assert watch.alone
    assert not watch.no_remote
    assert f'echo "{bazel.ALONE}"' in (dockerfile.TEMPLATES / "compile.sh").read_text()


@pytest.mark.parametrize("scheme", ["grpc", "http", "grpcs", "https"])
def test_a_server_that_is_silent_does_not_answer_and_whatever_one_answers_bazel_judges(
    scheme: str, tmp_path: Path
) -> None:
    for answers, code, told in (((), 1, "timed out"), ((b"HTTP/1.0 403 Forbidden\r\n\r\n",), 0, "")):
        with answering(*answers) as port:
            done = run(tmp_path, f"{scheme}://127.0.0.1:{port}", "reach", patient=bool(answers))
        assert (done.returncode, told in done.stderr, bool(done.stderr)) == (code, True, bool(told))


def requiring(pem: Path) -> AbstractContextManager[int]:
    """A port that hangs up on a client without a certificate, as BuildGrid does; `pem`: the one key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.load_verify_locations(pem)
    context.verify_mode = ssl.CERT_OPTIONAL

    def serve(listening: socket.socket) -> None:
        with context.wrap_socket(listening.accept()[0], server_side=True) as end:
            end.recv(1 << 16)
            if end.getpeercert():
                end.sendall(b"here")

    return served(serve)


@pytest.mark.parametrize("scheme", ["grpcs", "https"])
def test_a_server_that_requires_a_certificate_gets_the_one_that_bazel_has(scheme: str, tmp_path: Path) -> None:
    self_signed(tmp_path)
    pem = tmp_path / "client.pem"
    pem.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "x.pem").read_text())
    credentials = (f"--tls_client_certificate={pem}", f"--tls_client_key={pem}")
    for flags, said in (((), "it ended the connection"), (credentials, "")):
        with requiring(pem) as port:
            done = run(tmp_path, f"{scheme}://127.0.0.1:{port}", "reach", flags=flags, patient=True)
        assert said in done.stderr
        assert done.returncode == bool(said)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("sleep 1", 0)])
def test_a_guarded_command_ends_as_it_would_alone(script: str, code: int, tmp_path: Path) -> None:
    with answering(*[b"here"] * 99) as port:
        done = run(tmp_path, f"grpc://127.0.0.1:{port}", "guard", "sh", "-c", script, patient=True)
    assert done.returncode == code
    assert not (tmp_path / "remote.lost").exists()


def test_a_command_whose_cache_goes_silent_is_interrupted_and_one_lost_answer_is_none(tmp_path: Path) -> None:
    with answering(b"here", b"", b"here") as port:
        waits = "trap 'exit 8' INT; while :; do sleep 0.1; done"
        done = run(tmp_path, f"grpc://127.0.0.1:{port}", "guard", "sh", "-c", waits)
    assert done.returncode == 8
    assert (tmp_path / "remote.lost").read_text() == (
        f"tfbuild: the remote cache grpc://127.0.0.1:{port} does not answer: timed out\n"
    )
