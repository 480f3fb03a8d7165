"""Bundles and the mirror that fills and serves them, with real servers on loopback, real git and a really full disk."""

import hashlib
import http.client
import json
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import requests
from urllib3.util import Retry

from tests.commandline import invoke
from tests.context.test_remote_cache import served
from tests.plan.test_selection import chosen
from tests.rows import each
from tests.servers import Handler, running, self_signed, serving
from tfbuild.errors import BadInput, BadMirror, BuildFailed, DiskFull, UsageError
from tfbuild.pipeline import bundle, mirror
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.base_image import bundle_key
from tfbuild.pipeline.bundle import Bundle
from tfbuild.pipeline.maker import downloads
from tfbuild.pipeline.mirror import Mirror, Upstream
from tfbuild.pipeline.run import Run, run_of
from tfbuild.plan import RunRequest
from tfbuild.util.files import writing

HOST = "files.example.org"
BODY = b"0123456789abcdef" * 65536
PAGE = b"""<a href="https://files.example.org/a/x-1.whl#sha256=00">x</a> <a href='../y/'>y</a>"""


class Site(ThreadingHTTPServer):
    """The internet: one path has a file, one a page, one stops half-way, and all others are missing."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.whole = False
        super().__init__(("127.0.0.1", 0), SiteHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class SiteHandler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, format: str, *args: object) -> None:
        self.server.requested.append(self.path)

    def do_GET(self) -> None:
        files = dict.fromkeys(("file", "half", "query?x=/1"), BODY) | {"simple/x/": PAGE}
        body = files.get(self.path.removeprefix(f"/{HOST}/"))
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path.endswith("half") and not self.server.whole else body)


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    with running(server):
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bundle"


def get(server: Mirror, path: str, **headers: str) -> requests.Response:
    return requests.get(f"{server.url}/{path}", timeout=30, headers=headers)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def filled(folder: Path, site: Site) -> Bundle:
    new = bundle.fill(folder)
    with mirror.serve(new, Upstream(base=site.url)) as server:
        assert get(server, f"{HOST}/file").content == BODY
    new.write("some-build")
    return new


def test_a_requested_file_is_in_the_bundle_with_its_digest_and_fetched_once(site: Site, folder: Path) -> None:
    row = filled(folder, site).find(f"{HOST}/file")
    assert row is not None
    assert (row.sha256, row.size) == (hashlib.sha256(BODY).hexdigest(), len(BODY))
    assert (folder / HOST / "file").stat().st_mode & 0o777 == 0o644
    again = bundle.fill(folder)
    assert (again.files, again.size, again.listing.schema) == (1, len(BODY), "tfbuild.bundle/1")
    assert (folder / HOST / "file").read_bytes() == BODY
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
        assert get(server, f"{HOST}/file").content == BODY
    assert site.requested == [f"/{HOST}/file"]
    assert json.loads((folder / "bundle.json").read_text())["builds"] == ["some-build"]


def test_a_file_is_kept_by_its_query_and_for_who_asks_whether_it_is_there(site: Site, folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
        assert get(server, f"{HOST}/query?x=/1").content == BODY
        head = requests.head(f"{server.url}/{HOST}/file", timeout=30)
        assert (head.headers["Content-Length"], head.headers["Content-Type"]) == (
            str(len(BODY)),
            "application/octet-stream",
        )
        assert requests.post(f"{server.url}/{HOST}/file", timeout=30).status_code == 404
    assert files_in(folder) == {f"{HOST}/query?x%3D%2F1", f"{HOST}/file"}


def test_a_bundle_is_served_without_its_hosts_and_names_what_it_lacks(site: Site, folder: Path) -> None:
    filled(folder, site)
    with mirror.serve(bundle.open_bundle(folder)) as server:
        assert get(server, f"{HOST}/file").content == BODY
        assert requests.head(f"{server.url}/{HOST}/file", timeout=30).headers["Content-Length"] == str(len(BODY))
        assert get(server, f"{HOST}/other").status_code == 404
        error = server.explain(BuildFailed(f"E: Failed to fetch {server.url}/{HOST}/other  404  Not Found"))
        assert isinstance(error, BadMirror)
        assert f"https://{HOST}/other: not in the bundle" in error.reason
        assert f"--output {folder}" in error.hint
        get(server, f"{HOST}/another")
        error = server.explain(BuildFailed(f"E: Failed to fetch {server.url}/{HOST}/another  404  Not Found"))
        assert f"https://{HOST}/other" not in error.reason
        assert f"https://{HOST}/other" in server.explain(BuildFailed("E: Failed to fetch it  404  Not Found")).reason


def test_a_failure_for_another_reason_is_left_as_it_is(site: Site, folder: Path) -> None:
    filled(folder, site)
    failed = BuildFailed(
        f"WARNING: Download from http://127.0.0.1/{HOST}/asked failed: GET returned 404 Not Found\n"
        "kernel.cc:1:10: fatal error: 'Eigen/Core' file not found\nFAILED: Build did NOT complete successfully"
    )
    with mirror.serve(bundle.open_bundle(folder)) as server:
        assert server.explain(failed) is failed
        get(server, f"{HOST}/asked")
        assert server.explain(failed) is failed
    assert mirror.explain(failed, "http://mirror.site") is failed


@pytest.mark.parametrize(
    "line",
    [
        "E: The repository 'http://mirror.site/deb.debian.org/debian bookworm Release' does not have a Release file.",
        "E: Failed to fetch http://mirror.site/x.deb  Connection failed [IP: 127.0.0.1 80]",
        "E: Release file for http://mirror.site/dists/x/InRelease is expired (invalid since 2d 1h 5min 10s).",
        "ERROR: No matching distribution found for tensorflow-cpu==2.21.0",
        "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(1000 bytes read)",
        "curl: (18) transfer closed with 5000000 bytes remaining to read",
        "fatal: repository 'http://mirror.site/github.com/tensorflow/tensorflow/' not found",
        "Error in download_and_extract: java.io.IOException: Error downloading [http://mirror.site/x.zip] to /x: GET",
    ],
)
def test_a_failed_download_is_recognised_by_the_tool_s_message(line: str) -> None:
    output = f"the image could not be built\n  {line}\n  executor failed running [/bin/sh -c ...]"
    assert mirror.complaint(BuildFailed(output)) == line


def test_a_missing_tag_is_not_a_failure_of_the_mirror() -> None:
    output = "fatal: Remote branch v9 not found in upstream origin\ntfbuild: URL has no tag v9, or does not answer"
    assert mirror.complaint(BuildFailed(output)) == ""


def test_expired_package_lists_need_a_new_folder(folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream()) as server:
        error = server.explain(BuildFailed("E: Release file for x is expired (invalid since 2d 1h 5min 10s)."))
    assert (type(error), error.hint) == (BadMirror, "fill a new folder")


def test_a_mirror_elsewhere_is_named_where_a_download_failed() -> None:
    line = "curl: (22) The requested URL returned error: 404 http://mirror.site/github.com/x"
    error = mirror.explain(BuildFailed(f"the image could not be built\n  {line}"), "http://mirror.site")
    assert isinstance(error, BadMirror)
    assert error.reason.splitlines()[0].endswith(line)


@pytest.mark.parametrize("path", ["../outside", f"{HOST}/../../outside", f"{HOST}/%2e%2e/%2e%2e/outside", ""])
def test_nothing_outside_of_the_folder_is_served(path: str, site: Site, folder: Path) -> None:
    filled(folder, site)
    (folder.parent / "outside").write_text("secret")
    with mirror.serve(bundle.open_bundle(folder)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", f"/{path}")
        assert connection.getresponse().status == 404
        connection.close()


def test_a_client_that_disconnects_is_no_error(site: Site, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(folder, site)
    with mirror.serve(bundle.open_bundle(folder)) as server:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(f"GET /{HOST}/file HTTP/1.1\r\n\r\n".encode())
            client.recv(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: threading.active_count() <= before)
    assert capsys.readouterr().err == ""


def test_a_missing_file_leaves_nothing_behind(site: Site, folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
        assert get(server, f"{HOST}/missing").status_code == 404
        error = server.explain(BuildFailed(f"E: Failed to fetch {HOST}/missing"))
    assert f"https://{HOST}/missing: 404 Not Found" in str(error)
    assert files_in(folder) == set()


def test_a_host_that_does_not_answer_is_a_clear_failure(folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base="http://127.0.0.1:9")) as server:
        assert get(server, f"{HOST}/file").status_code == 502
        error = server.explain(BuildFailed(f"E: Failed to fetch {HOST}/file"))
    assert isinstance(error, BadMirror)
    assert "Connection refused" in error.reason


def test_a_git_server_that_goes_silent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "GIT_SECONDS", 1)
    over = threading.Event()

    def begins(listening: socket.socket) -> None:
        with listening.accept()[0] as end:
            end.recv(1 << 16)
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n001e")
            over.wait(60)

    with served(begins) as port:
        try:
            with pytest.raises(BadMirror, match="too slow"):
                bundle.keep_tag(bundle.fill(tmp_path / "bundle"), f"http://127.0.0.1:{port}/x", "x", "v1", "", None)
        finally:
            over.set()


def test_a_partial_download_is_not_kept_and_the_next_one_is_whole(site: Site, folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
        with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
            get(server, f"{HOST}/half")
        wait_for(lambda: f"{HOST}/half" in server.failures)
        assert files_in(folder) == set()
        error = server.explain(BuildFailed(f"IncompleteRead: {HOST}/half"))
        assert isinstance(error, BadMirror)
        site.whole = True
        assert get(server, f"{HOST}/half").content == BODY
        wait_for(lambda: not server.failures)
    assert files_in(folder) == {f"{HOST}/half"}


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait: the client sees the end of its answer before the server has cleaned up."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_file_that_several_clients_request_is_fetched_once(site: Site, folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: get(server, f"{HOST}/file").content, range(4)))
    assert answers == [BODY] * 4
    assert site.requested == [f"/{HOST}/file"]


def test_links_of_a_page_stay_in_the_folder_whoever_serves_it(site: Site, folder: Path) -> None:
    with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
        answer = get(server, f"{HOST}/simple/x/")
    assert answer.headers["Content-Type"] == "text/html"
    assert (folder / HOST / "simple/x/index.html").read_bytes() == answer.content
    links = re.findall(r"href=[\"']([^\"']+)", answer.text)
    page = b"<a href='http://mirror:1/files.example.org/x'>"
    assert mirror.relative(page, f"/{HOST}/simple/", "http://mirror:1") == b"<a href='../../files.example.org/x'>"
    assert links == ["../../../files.example.org/a/x-1.whl#sha256=00", "../y/"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / HOST / "file").write_bytes(BODY[:-1] + b"!"), "was changed"),
        (lambda folder: (folder / HOST / "file").write_bytes(b"short"), "was changed"),
        (lambda folder: (folder / HOST / "file").unlink(), f"lacks {HOST}/file"),
        (lambda folder: (folder / "bundle.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "bundle.json").write_text('{"schema": "tfbuild.bundle/9"}'), "not tfbuild.bundle/1"),
        (lambda folder: (folder / "bundle.json").unlink(), "is not a bundle"),
    ],
)
def test_a_bundle_that_was_changed_is_refused(
    damage: Callable[[Path], object], message: str, site: Site, folder: Path
) -> None:
    filled(folder, site)
    damage(folder)
    with pytest.raises(BadMirror, match=re.escape(message)) as caught:
        bundle.open_bundle(folder)
    assert caught.value.exit_code == 18
    assert "invoke bundle" in caught.value.hint


def test_a_list_cannot_name_files_elsewhere(site: Site, folder: Path) -> None:
    filled(folder, site)
    (folder.parent / "outside").write_bytes(BODY)
    text = (folder / "bundle.json").read_text()
    (folder / "bundle.json").write_text(text.replace(f'"path": "{HOST}/file"', '"path": "../outside"'))
    with pytest.raises(BadMirror):
        bundle.open_bundle(folder)


def test_files_put_there_by_hand_are_added_and_partial_ones_of_a_killed_run_are_not(folder: Path) -> None:
    (folder / HOST).mkdir(parents=True)
    (folder / HOST / "by-hand").write_bytes(BODY)
    (folder / HOST / f"{bundle.PART}x").write_bytes(b"half")
    (folder / f".{bundle.LIST}.0123abcd").write_bytes(b"half")
    bundle.fill(folder).write()
    assert files_in(folder) == {f"{HOST}/by-hand", "bundle.json"}
    assert bundle.open_bundle(folder).find(f"{HOST}/by-hand") is not None


def test_a_folder_of_something_else_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "Documents").mkdir()
    (tmp_path / "Documents" / "letter").write_text("Dear")
    with pytest.raises(BadMirror, match="does not begin with a host's name"):
        bundle.fill(tmp_path)
    (tmp_path / "Documents" / "letter").rename(tmp_path / "bundle.json")
    (tmp_path / "Documents").rename(tmp_path / "images")
    (tmp_path / "bundle.json").rename(tmp_path / "images" / "x.tar")
    assert bundle.fill(tmp_path).find("images/x.tar") is not None
    (tmp_path / HOST).mkdir()
    (tmp_path / HOST / "x").symlink_to("/etc/hostname")
    with pytest.raises(BadMirror, match="is a link out of the folder"):
        bundle.fill(tmp_path)
    (tmp_path / "bundle.json").mkdir()
    with pytest.raises(BadMirror, match=r"bundle\.json is not a file"):
        bundle.fill(tmp_path)


def test_a_base_is_listed_once_for_each_platform(folder: Path) -> None:
    new = bundle.fill(folder)
    rows = [
        bundle.BundledBase(
            asked="debian:12", platform=platform, path="x", image=image, reference="", name="", digest=""
        )
        for platform, image in (("linux/amd64", "1"), ("linux/arm64", "2"), ("linux/amd64", "3"))
    ]
    for row in rows:
        new.keep_base(row)
    assert new.listing.bases == rows[1:]
    assert new.base("debian:12", "linux/amd64") == rows[2]
    assert new.base("debian:11", "linux/amd64") is None


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a small file system, so that a full disk is a real one."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_and_kept_files_stay_whole(site: Site, folder: Path) -> None:
    with small_disk(folder, "1536k"):
        partial = filled(folder, site)
        site.whole = True
        with mirror.serve(partial, Upstream(base=site.url)) as server:
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                get(server, f"{HOST}/half")
            wait_for(lambda: server.disk_full)
            error = server.explain(BuildFailed("apt failed"))
        assert isinstance(error, DiskFull)
        assert files_in(folder) == {f"{HOST}/file", "bundle.json"}
        subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
        with mirror.serve(bundle.fill(folder), Upstream(base=site.url)) as server:
            assert get(server, f"{HOST}/half").content == BODY
    assert site.requested.count(f"/{HOST}/file") == 1


def test_a_full_disk_leaves_no_partial_wheel(tmp_path: Path) -> None:
    built, output = tmp_path / "built", tmp_path / "dist"
    built.mkdir()
    (built / "tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl").write_bytes(BODY)
    (built / "build.txt").write_text("builder=sha256:0\n")
    (built / "packages.txt").write_text("")
    build = chosen(release="2.14.1", python="3.11", compiler="clang-16")
    with small_disk(output, "512k"):
        with pytest.raises(DiskFull, match="no space is left"), writing(output):
            wheels.collect(build, built, output, context="", base="")
        assert files_in(output) == set()
        subprocess.run(["mount", "-o", "remount,size=4m", str(output)], check=True)
        # It is not a real wheel, which is noticed once the file is complete.
        with pytest.raises(BuildFailed, match="auditwheel cannot read"):
            wheels.collect(build, built, output, context="", base="")
        (wheel,) = output.glob("*.whl")
        assert wheel.read_bytes() == BODY


def test_a_refused_wheel_keeps_no_sidecar_of_an_earlier_one(tmp_path: Path) -> None:
    built, output = tmp_path / "built", tmp_path / "dist"
    for folder in (built, output):
        folder.mkdir()
    (built / "tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl").write_bytes(BODY)
    (built / "build.txt").write_text("builder=sha256:0\n")
    (built / "packages.txt").write_text("")
    (output / "tensorflow-2.14.1-cp311-cp311-linux_x86_64.whl.json").write_text("{}")
    build = chosen(release="2.14.1", python="3.11", compiler="clang-16")
    with pytest.raises(BuildFailed, match="auditwheel cannot read"):
        wheels.collect(build, built, output, context="", base="")
    assert [file.suffix for file in output.iterdir()] == [".whl"]


# --- where a mirror fetches from --------------------------------------------------------------------------------------


class Recorded(Handler):
    """Answers with the headers of the request, after each of the `refusals`."""

    refusals: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.say(self.refusals.pop() if self.refusals else 200, json.dumps(dict(self.headers)).encode())


def test_only_who_checks_signatures_gets_files_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retry, "get_backoff_time", lambda _: 0)
    upstream = Upstream()
    with serving(Recorded) as host:
        for _ in range(2):
            with pytest.raises(requests.exceptions.SSLError):
                upstream.get(f"{host}/x", signed=False)
            assert upstream.get(f"{host}/x", signed=True).url == f"http://{host}/x"
        assert upstream.plain == {host}


def test_a_host_s_certificate_is_checked_by_the_given_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retry, "get_backoff_time", lambda _: 0)
    with serving(Recorded, self_signed(tmp_path)) as host:
        path = f"{host}/x"
        with pytest.raises(requests.exceptions.SSLError):
            Upstream().get(path, signed=False)
        assert Upstream(ca=tmp_path / "x.pem").get(path, signed=False).url == f"https://{path}"


def test_files_are_requested_as_they_are_and_pages_as_html_and_a_busy_host_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Retry, "get_backoff_time", lambda _: 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorded) as server, running(server):
        upstream = Upstream(base=f"http://127.0.0.1:{server.server_port}")
        sent = [upstream.get(path, signed=False).json() for path in ("x", "x/")]
        assert [row["Accept-Encoding"] for row in sent] == ["identity"] * 2
        assert [row["User-Agent"] for row in sent] == ["tfbuild"] * 2
        assert [row["Accept"] for row in sent] == ["*/*", "text/html"]
        for status in (429, 502, 503, 504):
            Recorded.refusals = [status]
            assert upstream.get("x", signed=False).status_code == 200
        Recorded.refusals = [503] * 9
        assert upstream.get("x", signed=False).status_code == 503
        assert len(Recorded.refusals) == 5, "a request and three more"
        Recorded.refusals = [500]
        assert upstream.get("x", signed=False).status_code == 500


# --- options ----------------------------------------------------------------------------------------------------------


def options(mirror: str = "", network: str = "") -> Run:
    return run_of(RunRequest(mirror=mirror, network=network), None)


def test_a_mirror_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="holds a user or a password") as caught:
        options(mirror="https://us:secret@mirror.example.org/x")
    assert "secret" not in str(caught.value)


def test_a_folder_as_mirror_is_checked_before_anything_starts(site: Site, folder: Path) -> None:
    listing = filled(folder, site).listing
    assert options(mirror="http://mirror.site/").mirror == "http://mirror.site"
    assert options(mirror=str(folder), network="host").network == "host"
    run = options(mirror=str(folder))
    assert run.bundle is not None
    assert run.bundle.listing == listing
    with pytest.raises(UsageError, match="--network none"):
        options(mirror=str(folder), network="none")
    (folder / HOST / "file").unlink()
    with pytest.raises(BadMirror):
        options(mirror=str(folder))
    with pytest.raises(BadMirror, match="is not a bundle"):
        options(mirror=str(folder.parent))


def test_a_build_from_source_downloads_what_the_official_image_does_too() -> None:
    official = chosen(wheel="official", release="2.14.1", python="3.11")
    compiled = chosen(release="2.14.1", python="3.11", compiler="clang-16")
    assert downloads(official, wheel_only=False) == (official,)
    assert downloads(compiled, wheel_only=True) == (compiled,)
    builds = downloads(compiled, wheel_only=False)
    assert [build.wheel.kind for build in builds] == ["source", "official"]
    assert {(build.release, build.python, build.target) for build in builds} == {("2.14.1", "3.11", compiled.target)}


def test_without_an_official_wheel_only_the_wheel_can_be_bundled() -> None:
    compiled = replace(chosen(release="2.14.1", python="3.11", compiler="clang-16"), python="3.13")
    with pytest.raises(UsageError, match="there is none") as caught:
        downloads(compiled, wheel_only=False)
    assert "--wheel-only" in caught.value.hint


def test_a_dry_run_names_the_builds(tmp_path: Path) -> None:
    arguments = ("bundle", "--wheel", "official", "--dry-run")
    release = ("--release", "2.21.0", "--python", "3.11", "--platform", "linux/amd64")
    done = invoke(*arguments, *release, "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"folder": "bundle", "builds": ["2.21.0-mkl-py3.11-f16c"]}
    assert not list(tmp_path.iterdir())
    done = invoke(*arguments, "--network", "none", cwd=tmp_path, code=2)
    assert done.stdout == ""
    assert "--network none cannot reach this machine" in done.stderr


@each(
    "option, key",
    [("auto", "debian:12"), ("registry", "debian:12"), ("bootstrap", "debian:12"), ("mine:1", "mine:1")],
)
def test_a_bundle_lists_a_base_by_the_plan_s_image_or_the_user_s(option: str, key: str) -> None:
    assert bundle_key("debian:12", option) == key


# --- git --------------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    user = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(
        ["git", *user, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for number in range(2):
        (folder / "file").write_text(str(number))
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "--message", str(number))
    git(folder, "tag", "v1")
    return folder


def test_a_tag_is_kept_without_history_and_cloned_from_the_bundle(
    repository: Path, folder: Path, tmp_path: Path
) -> None:
    commit, target = git(repository, "rev-parse", "v1"), bundle.fill(folder)
    for _ in range(2):
        bundle.keep_tag(target, f"file://{repository}", "github.com/x/y", "v1", commit[:12], None)
    target.write()
    assert target.listing.repositories == [bundle.BundledRepository(path="github.com/x/y", tag="v1", commit=commit)]
    # As a folder that another user brought.
    for path in [folder, *folder.rglob("*")] if os.geteuid() == 0 else []:
        os.chown(path, 65534, 65534)
    with mirror.serve(bundle.open_bundle(folder)) as server:
        url = f"{server.url}/github.com/x/y"
        git(tmp_path, "clone", "--quiet", "--depth", "1", "--branch", "v1", url, "clone")
        with pytest.raises(subprocess.CalledProcessError):
            git(tmp_path, "clone", "--quiet", "--depth", "1", "--branch", "v2", url, "other")
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == commit
    assert git(tmp_path / "clone", "rev-list", "--count", "HEAD") == "1"


def test_a_clone_is_kept_whole_and_checked(repository: Path, folder: Path, tmp_path: Path) -> None:
    commit, path = git(repository, "rev-parse", "HEAD"), "github.com/x/y"
    elsewhere = tmp_path / "elsewhere"
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), str(elsewhere / path))
    target = bundle.fill(folder)
    with mirror.serve(bundle.fill(elsewhere)) as there, mirror.serve(target, Upstream(base=there.url)) as server:
        git(tmp_path, "clone", "--quiet", f"{server.url}/{path}", "clone")
    assert git(tmp_path / "clone", "rev-list", "--count", "HEAD") == "2"
    target.write()
    assert bundle.open_bundle(folder).listing.repositories == [
        bundle.BundledRepository(path=path, tag="", commit=commit)
    ]
    git(folder / path, "update-ref", "HEAD", "HEAD~1")
    with pytest.raises(BadMirror, match=f"lacks the clone at {commit}"):
        bundle.open_bundle(folder)


def test_a_repository_whose_tag_was_moved_is_refused(
    repository: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = bundle.fill(folder)
    bundle.keep_tag(target, f"file://{repository}", "github.com/x/y", "v1", "", None)
    target.write()
    assert bundle.open_bundle(folder).listing.repositories
    tree = git(folder / "github.com/x/y", "rev-parse", "v1^{tree}")
    other = git(folder / "github.com/x/y", "commit-tree", tree, "-m", "other")
    git(folder / "github.com/x/y", "tag", "--force", "v1", other)
    with pytest.raises(BadMirror, match="lacks the tag v1"):
        bundle.open_bundle(folder)
    git(folder / "github.com/x/y", "tag", "--delete", "v1")
    with pytest.raises(BadMirror, match="lacks the tag v1") as caught:
        bundle.open_bundle(folder)
    assert "invoke bundle" in caught.value.hint
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadMirror, match="git, which fetches the source, is not installed"):
        bundle.open_bundle(folder)


class Locked(Recorded):
    def do_GET(self) -> None:
        self.say(401, headers={"WWW-Authenticate": 'Basic realm="x"'})


def test_git_never_prompts_and_checks_a_certificate_by_the_given_ca(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(Locked, self_signed(tmp_path)) as host:
        for ca, message in ((tmp_path / "x.pem", "terminal prompts disabled"), (None, "certificate")):
            with pytest.raises(BadMirror, match=message):
                bundle.keep_clone(bundle.fill(folder), f"https://{host}/x", "x", ca)


def test_another_commit_and_a_missing_tag_are_refused(repository: Path, folder: Path) -> None:
    target = bundle.fill(folder)
    with pytest.raises(BadInput, match="is the commit"):
        bundle.keep_tag(target, f"file://{repository}", "github.com/x/y", "v1", "0" * 40, None)
    with pytest.raises(BadMirror, match="v9"):
        bundle.keep_tag(target, f"file://{repository}", "github.com/x/y", "v9", "", None)
