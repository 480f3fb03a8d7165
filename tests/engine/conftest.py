"""Tests on a real engine. Where CI is set they fail without one; elsewhere they are skipped."""

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tfbuild import cli, plan
from tfbuild.compiling import Options
from tfbuild.cpu import detect
from tfbuild.engine import Engine
from tfbuild.engine import base as bases
from tfbuild.engine.progress import Progress
from tfbuild.pipeline import Maker
from tfbuild.plan import Request

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def maker(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    folder = tmp_path_factory.mktemp("maker")
    return Maker(
        base="auto",
        options=Options(ca=cli.certificates("")),
        work=folder / "build",
        reports=folder / "reports",
        verify_images=False,
    )


@pytest.fixture(scope="session")
def image(maker: Maker) -> Iterator[Callable[..., str]]:
    """Builds an image that need not be verified, by the options of a plan, and gives a name of its own to it."""
    names: list[str] = []

    @cache
    def made(release: str, **options: Any) -> str:
        request = Request(release=release, **({"target": "mkl", "wheel": "official"} | options))
        names.append(f"tfbuild-test:made-{uuid.uuid4().hex[:8]}")
        maker.engine.tag(maker.build(plan.select(request, detect())).image, names[-1])
        return names[-1]

    yield made
    for name in names:
        maker.engine.untag(name)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Downloads a wheel from PyPI, without what it requires, and gives its path."""

    @cache
    def downloaded(requirement: str, *options: str) -> Path:
        folder = tmp_path_factory.mktemp("wheels")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr)
        (found,) = folder.glob("*.whl")
        return found

    return downloaded


def debian(
    engine: Engine, folder: Path, ref: str, *packages: str, more: str = "", before: str = "", system: str = ""
) -> None:
    """Makes the image `ref`: Debian 12 (or `system`) with packages, and what the commands `more` add.

    `before`: an instruction that goes first.
    """
    folder.mkdir()
    ca = cli.certificates("")
    base = bases.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "log", ca_cert=ca).reference
    shutil.copy(ROOT / "templates" / "network.sh", folder)
    run = (
        "RUN --mount=type=tmpfs,target=/mnt --mount=type=secret,id=ca,target=/mnt/ca "
        "--mount=type=bind,source=network.sh,target=/mnt/network.sh . /mnt/network.sh && "
    )
    install = f"apt-get update && apt-get install --yes --no-install-recommends {' '.join(packages)}"
    # An image of its own, though another run makes the same: whoever removes that one leaves this.
    last = f"LABEL io.tfbuild.test={ref}"
    steps = [f"FROM {system or base}", before, f"{run}{install}", f"{run}{more}" if more else "", last]
    (folder / "Dockerfile").write_text("\n".join(steps) + "\n", encoding="utf-8")
    engine.build(folder, tag=ref, secrets={"ca": ca} if ca else {}, log=folder / "log", progress=Progress())


COMPILERS = ("gcc-11", "gcc-12", "clang-13", "clang-14", "clang-15", "clang-16", "clang-19", "clang-22")
# Debian's shell and awk, which run the entry point, compiled for the other architecture.
ARM_SHELL = (
    "dpkg --add-architecture arm64 && apt-get update && cd /tmp && apt-get download dash:arm64 mawk:arm64 && "
    "for package in *.deb; do dpkg-deb --extract $package /opt/arm64; done"
)


@pytest.fixture(scope="session")
def compilers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with Debian 12's compilers (Clang 22 is among its security updates), two cross compilers and QEMU."""
    if engine.platform != "linux/amd64":
        pytest.skip("the engine's machine must be x86-64, from where Debian's cross compilers and QEMU reach aarch64")
    ref = f"tfbuild-test:compilers-{uuid.uuid4().hex[:8]}"
    cross = ("gcc-11-aarch64-linux-gnu", "g++-12-aarch64-linux-gnu", "gcc-12-aarch64-linux-gnu")
    packages = (*COMPILERS, "g++-11", "g++-12", *cross, "libeigen3-dev", "qemu-user-static")
    debian(engine, tmp_path_factory.mktemp("compilers") / "context", ref, *packages, more=ARM_SHELL)
    yield ref
    engine.remove(ref)


@pytest.fixture
def derived(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Builds an image on another one, with further instructions, and gives its name; removed at the test's end."""
    made: list[str] = []

    def build(ref: str, *instructions: str) -> str:
        tag = f"tfbuild-test:{tmp_path.name.lower().strip('_')}-{len(made)}"
        folder = tmp_path / str(len(made))
        folder.mkdir()
        (folder / "Dockerfile").write_text("\n".join((f"FROM {ref}", *instructions)) + "\n", encoding="utf-8")
        ca = cli.certificates("")
        engine.build(
            folder, tag=tag, secrets={"ca": ca} if ca else {}, log=tmp_path / "derived.log", progress=Progress()
        )
        made.append(tag)
        return tag

    yield build
    for tag in made:
        engine.remove(tag)


@pytest.fixture
def invoke(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `invoke ...` in a process of its own, in the repository, as a user would."""

    def run(*arguments: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            **options,
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    return run
