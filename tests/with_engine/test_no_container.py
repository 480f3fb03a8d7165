"""`invoke wheel --no-container` with real Bazel and a real compiler: by nobody, on a Debian without an engine.

That Debian is a container whose files cannot be written to but for one folder. What it compiles is compared with what
`invoke wheel` compiles in its builder.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.with_engine import mirror
from tests.with_engine.conftest import ROOT, Site, debian
from tests.with_engine.test_compile import KERNELS, RELEASE, command, executed, fresh_trees
from tfbuild.engine import Engine
from tfbuild.engine.build import find_program
from tfbuild.errors import Interrupted, TimeUp
from tfbuild.plan import configuration

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian 12 has Python 3.11")
COMPILER = "clang-16"
NOBODY = "65534:65534"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def host(site: Site, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Debian with all that `invoke wheel --no-container` asks for."""
    ref = f"tfbuild-test:host-{uuid.uuid4().hex[:8]}"
    packages = (*configuration.packages(COMPILER), "python3.11-dev", "python3.11-venv")
    debian(engine, tmp_path_factory.mktemp("host") / "context", ref, *packages, system=site.base)
    try:
        yield ref
    finally:
        engine.untag(ref)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder that can be written to, with trees that no cache has."""
    folder = tmp_path_factory.mktemp("compiled")
    fresh_trees(folder)
    give_to_nobody(folder)
    return folder


def give_to_nobody(folder: Path) -> None:
    subprocess.run(["chown", "-R", NOBODY, folder], check=True)


@pytest.fixture(scope="module")
def run(host: str, engine: Engine, folder: Path, site: Site) -> Run:
    """Run `tfbuild wheel --no-container` as nobody, without HOME, an engine, or anything else to write to.

    `stop`: compile what has no end, and stop that by SIGTERM as soon as Bazel has finished its first action. `other`:
    on another system, with a compiler of its own choice.
    """

    def call(
        *options: str, tree: str = "tree", stop: bool = False, other: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        packages = Path(msgspec.__file__).parents[1]
        mounts = (f"{ROOT}:/tfbuild:ro", f"{packages}:/packages:ro", f"{folder}:/folder")
        words = ["wheel", "--no-container", "--target", "mkl", "--release", RELEASE, "--bazel", mirror.BAZEL]
        words += ["--cpu", "westmere", "--python", "3.11", "--source", "endless" if stop else tree]
        words += ["--mirror", site.url, *([] if other else ["--compiler", COMPILER])]
        docker, name = find_program(engine.environ)[0], f"tfbuild-test-{uuid.uuid4().hex[:8]}"
        with subprocess.Popen(
            [
                docker, "run", "--rm", "--init", "--read-only", "--user", NOBODY, "--name", name,
                "--network", "host", "--workdir", "/folder", "--env", "PYTHONPATH=/tfbuild:/packages",
                *(word for mount in mounts for word in ("--volume", mount)), "--entrypoint", "env", other or host,
                "--unset=HOME", "python3.11", "-m", "tfbuild", *words, "--need-disk", "1", "--json", *options,
            ],
            env=engine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            while stop and process.poll() is None and not compiling(folder):
                time.sleep(0.05)
            if stop:
                subprocess.run([docker, "kill", "--signal=TERM", name], env=engine.environ, check=False)
            out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    return call


# The double has no pywrap rules, which the release's wheel is compiled by.
LIBRARY = ("--libtensorflow", "--bazel-flag=--repo_env=USE_PYWRAP_RULES=")


def compiling(folder: Path) -> bool:
    return any(re.search(r"^\[[1-9]", log.read_text(), re.MULTILINE) for log in folder.glob("build/*/build.log"))


def sittings(folder: Path) -> list[str]:
    """How each run of the compile ended."""
    [file] = folder.glob("build/host/*/cache/*/sittings/*.jsonl")
    return [json.loads(line).get("why", "") for line in file.read_text().splitlines()]


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sidecar(wheel: Path) -> Any:
    return json.loads(wheel.with_name(f"{wheel.name}.json").read_text(encoding="utf-8"))


def test_a_machine_without_an_engine_compiles_the_wheel_that_a_container_compiles(
    run: Run, folder: Path, site: Site, tmp_path: Path
) -> None:
    stopped = run(stop=True)
    assert stopped.returncode == Interrupted.exit_code, stopped.stderr[-6000:]
    assert sittings(folder) == ["interrupted"]
    done = run(*LIBRARY)
    assert done.returncode == 0, done.stderr[-6000:]
    assert sittings(folder) == ["interrupted", "done"]
    answer = json.loads(done.stdout)
    own = folder / answer["wheel"]
    words = command("westmere", tmp_path, *site.options(), "--source", str(folder / "tree"), *LIBRARY)
    inside = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert inside.returncode == 0, inside.stderr[-6000:]
    other = Path(json.loads(inside.stdout)["wheel"])
    assert content(own) == content(other)
    with tarfile.open(folder / answer["libtensorflow"]) as archive:
        parts = ["./cheaders", "./clicenses", "./eager_cheaders"]
        assert archive.getnames() == [".", *parts, "./lib", "./lib/libtensorflow.so"]
        library = archive.extractfile("./lib/libtensorflow.so")
        assert library is not None
        assert library.read() == content(own)["tensorflow/libtensorflow_double.so"]
    # Nothing pinned it, and all else is the same.
    ours, theirs = sidecar(own), sidecar(other)
    different = {name for name in ours if ours[name] != theirs[name]}
    assert different <= {"sha256", "builder", "base", "host", "context", "plan", "records"}
    # A base of one's own could have a newer compiler's headers, this Debian has not.
    assert {*theirs["plan"]["fixes"]} ^ {*ours["plan"]["fixes"]} <= {"gcc15-cstdint"}
    assert {name for name in ours["plan"] if ours["plan"][name] != theirs["plan"][name]} <= {
        "base_image", "base_distribution", "notes", "source", "fixes", "bazel_flags",
    }  # fmt: skip
    assert (ours["base"], theirs["host"]) == (None, None)
    assert ours["host"]["system"].startswith("Debian GNU/Linux ")
    assert ours["host"]["glibc"].startswith("2.")
    assert ours["host"]["python"].startswith("3.11.")
    kept = {path.name for path in (folder / "build" / answer["id"]).iterdir()}
    assert kept >= {"bazel.log", "profile.json.gz", "sittings.jsonl", "plan.json"}


@pytest.mark.nightly
def test_a_linux_without_apt_compiles_with_what_is_on_its_path(
    run: Run, host: str, folder: Path, derived: Callable[..., str]
) -> None:
    lines = (
        "rm -r /var/lib/dpkg /usr/bin/dpkg* /usr/bin/apt* && ln -s ld.lld-16 /usr/bin/ld.lld",
        "rm /etc/os-release && printf 'ID=strange\\nPRETTY_NAME=Strange\\n' > /etc/os-release",
    )
    done = run(other=derived(host, *(f"RUN {line}" for line in lines)))
    assert done.returncode == 0, done.stderr[-6000:]
    assert "note: tried only on Debian and Ubuntu, and this is Strange\n" in done.stderr
    assert f"note: this machine chose {COMPILER} and Python 3.11; a container would have " in done.stderr
    own = sidecar(folder / json.loads(done.stdout)["wheel"])
    assert (own["host"]["system"], own["plan"]["compiler"]) == ("Strange", COMPILER)
    assert own["records"]["packages.txt"] == ""


@pytest.mark.nightly
def test_three_links_on_empty_disks_carry_their_cache_in_a_folder(run: Run, folder: Path, tmp_path: Path) -> None:
    """As a CI's own cache keeps it: nothing else is left of the link before."""
    said: list[str] = []
    cache = folder / "build/host" / RELEASE / "cache"
    for tree, code in (("endless", TimeUp.exit_code), ("endless", TimeUp.exit_code), ("tree", 0)):
        shutil.rmtree(folder / "build", ignore_errors=True)
        if said:
            shutil.copytree(tmp_path / "kept", cache)
            give_to_nobody(folder / "build")
        done = run(*(("--time-limit", "90s") if code else ()), tree=tree)
        assert done.returncode == code, done.stderr[-6000:]
        said.append(done.stderr)
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        shutil.copytree(cache, tmp_path / "kept")
    # Each kernel's text is new: what the last link did not run, an earlier one had compiled.
    assert executed(said[2]) < KERNELS
    # The record travels with the cache.
    assert sittings(folder) == ["time limit", "time limit", "done"]
