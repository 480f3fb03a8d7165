"""The engine package on a real engine: runs, workers, files, builds, and bases."""

import contextlib
import errno
import io
import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine import registry as registries
from tests.with_engine.second import processes
from tfbuild.engine import Engine, WorkerDied
from tfbuild.engine.build import BuildSettings
from tfbuild.engine.containers import LABEL
from tfbuild.errors import BuildFailed, UnknownImage
from tfbuild.pipeline import base_image
from tfbuild.pipeline.build_context import Base
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
DISTRIBUTION = "bookworm"


@pytest.fixture(scope="module")
def debian(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    log = tmp_path_factory.mktemp("base") / "mmdebstrap.log"
    return base_image.bootstrap(engine, DISTRIBUTION, progress=Progress(), log=log).reference


@pytest.fixture
def name(engine: Engine) -> Iterator[str]:
    """A name for an image, which is removed afterwards."""
    name = f"tfbuild-test-{uuid.uuid4().hex[:12]}:x"
    yield name
    with contextlib.suppress(UnknownImage):
        engine.remove(name)


def wait_until(holds: Callable[[], object], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def containers(engine: Engine, image: str) -> list[str]:
    """The containers of an image that carry tfbuild's label."""
    found = engine.client.containers.list(all=True, ignore_removed=True, filters={"label": LABEL, "ancestor": image})
    return [container.name for container in found]


def started_by(engine: Engine, pid: int) -> list[str]:
    """The containers that a process has made, and no other one: other tests make theirs meanwhile."""
    filters = {"label": f"{LABEL}={pid}"}
    return [one.name for one in engine.client.containers.list(all=True, ignore_removed=True, filters=filters)]


def gone(engine: Engine, image: str) -> bool:
    """Whether no container of an image is left; the engine may still be removing the last one."""
    return wait_until(lambda: not containers(engine, image))


@pytest.fixture
def own(engine: Engine, debian: str, name: str) -> str:
    """An image of this test alone, so that its containers can be told from others'."""
    folder = f"/only/{name}"
    container = engine.client.containers.create(debian, ["mkdir", "-p", folder], network_mode="none")
    try:
        container.start()
        container.wait()
        container.commit(*name.split(":"))
    finally:
        container.remove(force=True)
    return name


def test_run_gives_streams_exit_code_files_and_environment(engine: Engine, own: str) -> None:
    run = engine.run(
        own,
        ["sh", "-c", 'cat; cat /new/folder/f; echo "$X"; /tool; echo err >&2; exit 3'],
        env={"X": "x y"},
        files={"/new/folder/f": b"file\n", "/tool": b"#!/bin/sh\necho tool\n"},
        stdin=b"in\n",
    )
    assert (run.exit_code, run.stdout, run.stderr) == (3, "in\nfile\nx y\ntool\n", "err\n")
    assert not run.truncated
    assert gone(engine, own)


def test_run_has_no_rights_and_no_network(engine: Engine, debian: str) -> None:
    script = (
        "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; ls /sys/class/net; mount -t tmpfs x /mnt || echo no"
    )
    out = engine.run(debian, ["sh", "-c", script]).stdout.split()
    assert out == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "lo", "no"]


def test_run_of_a_missing_program_or_image(engine: Engine, debian: str) -> None:
    run = engine.run(debian, ["/no/such/program"])
    assert run.exit_code == 128
    assert "no such file" in run.stderr
    # Of what no engine here has, it says what was asked of it.
    assert "capabilities: [[gpu]]" in engine.lacks_gpus(debian)
    with pytest.raises(UnknownImage, match="nope"):
        engine.run("nope:nope", ["true"])


def test_run_ends_in_time_and_leaves_nothing(engine: Engine, own: str) -> None:
    with pytest.raises(TimeoutError, match="1 s"):
        engine.run(own, ["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"], timeout=1)
    assert gone(engine, own)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_container(engine: Engine, own: str, number: int) -> None:
    code = f"from tfbuild.engine import Engine; Engine.connect().run({own!r}, ['sleep', '600'], timeout=600)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert wait_until(lambda: engine.client.containers.list(ignore_removed=True, filters={"ancestor": own}))
        process.send_signal(number)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert gone(engine, own)


def state(engine: Engine, name: str) -> str:
    """What the kernel says of a container's first process (proc(5), field 3): "T" is stopped by a signal."""
    pid = engine.client.api.inspect_container(name)["State"]["Pid"]
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


def test_worker_answers_pauses_and_goes(engine: Engine, own: str) -> None:
    with engine.worker(own, ["sh", "-c", 'while read -r line; do echo "got $line"; done']) as worker:
        assert worker.name.startswith("tfbuild-")
        assert worker.ask("one", 20) == "got one"
        worker.pause()
        assert wait_until(lambda: state(engine, worker.name) == "T")
        worker.resume()
        assert wait_until(lambda: state(engine, worker.name) != "T")
        assert worker.ask("x" * 200_000, 20) == "got " + "x" * 200_000
    assert gone(engine, own)
    with pytest.raises(WorkerDied):
        worker.ask("late", 1)


def test_a_worker_on_huge_pages_may_write_to_their_file_system(engine: Engine, own: str) -> None:
    script = "read -r line; touch /dev/hugepages/own && stat -f -c %T /dev/hugepages"
    with engine.worker(own, ["sh", "-c", script], huge=True) as worker:
        assert worker.ask("", 20) == "hugetlbfs"


def test_a_dead_worker_tells_its_exit_code_and_last_words_and_cannot_be_paused(engine: Engine, own: str) -> None:
    with engine.worker(own, ["sh", "-c", "read -r line; echo last words >&2; exit 4"]) as worker:
        with pytest.raises(WorkerDied, match="exit code 4 before it answered:\nlast words"):
            worker.ask("one", 20)
        with pytest.raises(WorkerDied, match="SIGSTOP"):
            worker.pause()
    assert gone(engine, own)


def build(engine: Engine, folder: Path, dockerfile: str, name: str, **options: Any) -> None:
    context = folder / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    settings = BuildSettings(log=folder / "build.log", progress=Progress(io.StringIO()), tag=name, **options)
    engine.build(context, settings)


def test_a_file_is_read_inside_the_image_and_nowhere_else(
    engine: Engine, debian: str, name: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    build(
        engine,
        tmp_path,
        f"FROM {debian}\nRUN echo inside > /etc/tfbuild-marker && ln -s ../../../../../../etc/tfbuild-marker /up"
        f" && ln -s /up /twice && ln -s {secret} /out && ln -s /loop /loop && mkfifo /fifo && ln -s /etc /folder"
        " && ln -s /proc/self/environ /proc-link && ln -s twice /relative && ln /etc/tfbuild-marker /second-name\n",
        name,
    )
    got = tmp_path / "got"
    for path in ("/etc/tfbuild-marker", "/up", "/twice", "/relative", "/folder/tfbuild-marker"):
        got.unlink(missing_ok=True)
        assert engine.read_file(name, path, got, 7).read_text() == "inside\n"
    got.write_text("before")
    for path in ("/out", "/missing", "/loop", "/proc-link", "/etc/tfbuild-marker/x"):
        with pytest.raises(FileNotFoundError):
            engine.read_file(name, path, got, 1000)
    for path in ("/etc", "/fifo", "/folder"):
        with pytest.raises(IsADirectoryError):
            engine.read_file(name, path, got, 1000)
    with pytest.raises(OSError, match="larger than 6 bytes") as caught:
        engine.read_file(name, "/etc/tfbuild-marker", got, 6)
    assert caught.value.errno == errno.EFBIG
    names = {"/etc/tfbuild-marker", "/second-name"}
    assert engine.read_files(name, names.__contains__, 14) == dict.fromkeys(names, b"inside\n")
    with pytest.raises(OSError, match=r"left of the limit \(6 bytes\)"):
        engine.read_files(name, names.__contains__, 13)
    assert got.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.log", "context", "got", "secret"]
    assert gone(engine, name)


def test_build_with_arguments_proxies_and_a_secret(
    engine: Engine, debian: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:tw33t@proxy.invalid:3128")
    secret = tmp_path / 'a,b"c'
    secret.write_text("s3cret")
    build(
        engine,
        tmp_path,
        f'FROM {debian}\nARG X\nLABEL x="$X"\n'
        'RUN --mount=type=secret,id=ca test "${https_proxy##*:}" = 3128'
        ' && test "$(cat /run/secrets/ca)" = s3cret && echo built\n',
        name,
        build_args={"X": "a b=c"},
        secrets={"ca": secret},
        no_cache=True,
    )
    assert engine.image(name).labels["x"] == "a b=c"
    assert re.search(r"^#\d+ [\d.]+ built$", (tmp_path / "build.log").read_text(), re.MULTILINE)
    kept = json.dumps([engine.client.api.history(name), engine.client.api.inspect_image(name)])
    assert not re.search(r"proxy\.invalid|tw33t", kept)


def test_a_failed_build_says_why_and_where(engine: Engine, debian: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(BuildFailed) as caught:
        build(engine, tmp_path, f"FROM {debian}\nRUN echo the reason {name} >&2; exit 7\n", name)
    assert f"the reason {name}" in caught.value.reason
    assert "exit code: 7" in caught.value.reason
    assert str(tmp_path / "build.log") in caught.value.hint
    assert not engine.exists(name)


def test_an_interrupted_build_stops_inside_the_engine(engine: Engine, own: str, tmp_path: Path) -> None:
    if not engine.local:
        pytest.skip("the engine's processes are not on this machine")
    tag = own.replace(":x", ":built")
    seconds = str(10_000_000 + uuid.uuid4().int % 10_000_000)
    (tmp_path / "Dockerfile").write_text(f"FROM {own}\nRUN sleep {seconds}\n")
    code = (
        "from pathlib import Path; from tfbuild.engine import Engine;"
        "from tfbuild.util.progress import Progress;"
        "from tfbuild.engine.build import BuildSettings;"
        f"settings = BuildSettings(log=Path({str(tmp_path / 'log')!r}), progress=Progress(), tag={tag!r});"
        f"Engine.connect().build(Path({str(tmp_path)!r}), settings)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert wait_until(lambda: processes(seconds))
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1].decode()
    assert "KeyboardInterrupt" in errors
    assert "build: image: canceled" in errors or "build: image: interrupted" in errors
    assert wait_until(lambda: not processes(seconds), 20)
    assert not processes(str(tmp_path))
    assert not engine.exists(tag)
    assert gone(engine, own)


def test_a_base_is_small_and_knows_its_sources(engine: Engine, debian: str) -> None:
    """It has what licences ask for, where packages come from, and nothing that only its making needed."""
    assert 50e6 < engine.image(debian).size < 200e6
    script = "ls /usr/share/man /usr/share/locale /var/lib/apt/lists; ls /usr/share/doc/apt; cat /etc/apt/sources.list"
    out = engine.run(debian, ["sh", "-c", script]).stdout
    assert "copyright" in out
    assert "changelog" not in out
    assert "InRelease" not in out
    assert f"{DISTRIBUTION}-security main" in out
    assert engine.run(debian, ["find", "/etc/apt", "-name", "*tfbuild*"]).stdout == ""
    packages = engine.run(debian, ["dpkg-query", "--show", "--showformat", "${Package} "]).stdout.split()
    assert not {"usrmerge", "perl"} & {*packages}


def test_a_base_from_a_registry_is_named_by_digest(engine: Engine, own: str, tmp_path: Path) -> None:
    def resolve(mode: str) -> Base:
        return base_image.resolve(engine, image, DISTRIBUTION, mode, progress=Progress(), log=tmp_path / "log")

    with registries.serve(tmp_path) as server:
        image = f"127.0.0.1:{server.port}/python:3.11"
        engine.tag(own, image)
        engine.push(image, Progress())
        engine.untag(image)
        try:
            base = resolve("auto")
            assert base.name == image
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", base.digest)
            assert base.reference == f"127.0.0.1:{server.port}/python@{base.digest}"
            assert engine.exists(base.reference)
            server.kill()
            assert (resolve("registry").name, resolve("registry").digest) == (image, base.digest)
        finally:
            with contextlib.suppress(UnknownImage):
                engine.remove(base.reference)
