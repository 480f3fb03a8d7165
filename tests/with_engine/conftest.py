"""Tests on a real engine. Where CI is set they fail without one; elsewhere they are skipped."""

import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.contract import newbazel
from tests.with_engine import mirror
from tfbuild import plan
from tfbuild.cli.options import certificates
from tfbuild.cpu import detect
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import EngineMissing, TfbuildError
from tfbuild.pipeline import base_image as bases
from tfbuild.pipeline import build_context
from tfbuild.plan import Request
from tfbuild.util import files
from tfbuild.util.progress import Progress

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
def debian_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Debian 12, of which most images here are made: once, though the workers of pytest-xdist begin together.

    A first build on it ends before all others begin: until then BuildKit (20.10) finds no step on it in its cache, and
    each worker would install TensorFlow anew.
    """
    try:
        engine = Engine.connect()
    except EngineMissing:
        return
    folder, shared = tmp_path_factory.mktemp("debian"), tmp_path_factory.getbasetemp().parent / "tfbuild-debian"
    # Tests that need it say why it cannot be had.
    with suppress(TfbuildError), files.locked(shared, lambda: None):
        base = bases.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "log", ca_cert=certificates(""))
        (folder / "Dockerfile").write_text(f"FROM {base.reference}\nRUN true\n", encoding="utf-8")
        engine.build(folder, BuildSettings(log=folder / "log", progress=Progress(), tag="tfbuild-test:first"))


@pytest.fixture(scope="session")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Builds an image that need not be verified, by the options of a plan, under a name that no other run has."""
    names: list[str] = []

    @cache
    def made(release: str, **options: Any) -> str:
        request = Request(release=release, **({"target": "mkl", "wheel": "official"} | options))
        build, folder, ca = plan.select(request, detect()), tmp_path_factory.mktemp("made"), certificates("")
        log, progress = folder / "log", Progress()
        base = bases.resolve(
            engine, build.base_image, build.base_distribution, "auto", progress=progress, log=log, ca_cert=ca
        )
        context = build_context.write_context(build, folder / "context")
        names.append(f"tfbuild-test:made-{uuid.uuid4().hex[:8]}")
        settings = BuildSettings(
            log=log,
            progress=progress,
            tag=names[-1],
            secrets={"ca": ca} if ca else {},
            build_args=build_context.build_args(base, context),
        )
        engine.build(context.folder, settings)
        return names[-1]

    yield made
    for name in names:
        engine.untag(name)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Downloads a wheel from PyPI, without what it requires, and gives its path."""

    @cache
    def downloaded(requirement: str, *options: str) -> Path:
        folder = tmp_path_factory.mktemp("wheels")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr)
        (files,) = folder.glob("*.whl")
        return files

    return downloaded


def debian(
    engine: Engine, folder: Path, ref: str, *packages: str, more: str = "", before: str = "", system: str = ""
) -> None:
    """Makes the image `ref`: Debian 12 (or `system`) with packages, and what the commands `more` add.

    `before`: an instruction that goes first.
    """
    folder.mkdir()
    ca = certificates("")
    base = bases.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "log", ca_cert=ca).reference
    shutil.copy(ROOT / "templates" / "network.sh", folder)
    run = (
        "RUN --mount=type=tmpfs,target=/mnt --mount=type=secret,id=ca,target=/mnt/ca "
        "--mount=type=bind,source=network.sh,target=/mnt/network.sh . /mnt/network.sh && "
    )
    install = f"apt-get update && apt-get install --yes --no-install-recommends {' '.join(packages)}"
    # An image of its own, though another run makes the same: whoever removes that one leaves this.
    last = f"LABEL test={ref}"
    steps = [f"FROM {system or base}", before, f"{run}{install}", f"{run}{more}" if more else "", last]
    (folder / "Dockerfile").write_text("\n".join(steps) + "\n", encoding="utf-8")
    settings = BuildSettings(log=folder / "log", progress=Progress(), tag=ref, secrets={"ca": ca} if ca else {})
    engine.build(folder, settings)


# Debian 12 has it; the one that plans of the double's release prefer comes from LLVM's archive.
COMPILER = "clang-16"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a build without internet is at home: a base image with Eigen, and a mirror; `asked`: what of it."""

    base: str
    url: str
    folder: Path
    asked: list[str]

    def options(self, compiler: str = COMPILER) -> tuple[str, ...]:
        base = ("--base", self.base, "--compiler", compiler)
        return (*base, "--mirror", self.url, "--network", "host", "--need-disk", "5")


@pytest.fixture(scope="session")
def site(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all that compile: on the same base they have the same toolchain, which is installed once.

    Its base has Debian's newer Bazel, which the mirror's starts, and Eigen, from where the double includes it.
    """
    if shutil.which("npm") is None or engine.platform != "linux/amd64":
        pytest.skip("npm must be here, which has Bazelisk's binary, and the engine's machine be x86-64")
    folder = tmp_path_factory.mktemp("site")
    mirror.fill(folder / "mirror")
    system = newbazel.image(engine, folder)
    options = " ".join(f"'common {option}'" for option in newbazel.OFFLINE)
    ref = f"tfbuild-test:site-{uuid.uuid4().hex[:8]}"
    offline = f"RUN rm /etc/apt/sources.list.d/sid.list && printf '%s\\n' {options} > /etc/bazel.bazelrc"
    debian(engine, folder / "system", ref, "libeigen3-dev", before=offline, system=system)
    try:
        with mirror.serve(folder / "mirror") as server:
            url = f"http://127.0.0.1:{server.server_port}"
            yield Site(base=ref, url=url, folder=folder / "mirror", asked=server.requested)
    finally:
        # By name: another run's image can be the same.
        engine.untag(ref)


# Debian 12's own, by which plans compile, and all others that it has (Clang 22 is among its security updates).
COMPILERS = ("gcc-12", "clang-16")
FURTHER_COMPILERS = ("gcc-11", "clang-13", "clang-14", "clang-15", "clang-19", "clang-22")


@pytest.fixture(scope="session")
def compilers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with COMPILERS, a cross compiler, QEMU and BOLT."""
    cross = ("g++-12-aarch64-linux-gnu", "gcc-12-aarch64-linux-gnu")
    bolt = ("bolt-19", "lld-16", "python3-venv", "python3-wheel")
    packages = (*COMPILERS, "g++-12", *cross, *bolt, "libeigen3-dev", "qemu-user-static")
    with with_compilers(engine, tmp_path_factory.mktemp("compilers"), *packages) as ref:
        yield ref


@pytest.fixture(scope="session")
def further_compilers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with FURTHER_COMPILERS and a cross compiler; binutils and libraries are the newer one's."""
    cross = ("gcc-11-aarch64-linux-gnu", "g++-12-aarch64-linux-gnu", "gcc-12-aarch64-linux-gnu")
    packages = (*FURTHER_COMPILERS, "g++-11", "g++-12", *cross, "libeigen3-dev")
    with with_compilers(engine, tmp_path_factory.mktemp("compilers"), *packages) as ref:
        yield ref


@contextmanager
def with_compilers(engine: Engine, folder: Path, *packages: str, more: str = "") -> Iterator[str]:
    if engine.platform != "linux/amd64":
        pytest.skip("the engine's machine must be x86-64, from where Debian's cross compilers and QEMU reach aarch64")
    ref = f"tfbuild-test:compilers-{uuid.uuid4().hex[:8]}"
    debian(engine, folder / "context", ref, *packages, more=more)
    try:
        yield ref
    finally:
        engine.remove(ref)


@pytest.fixture
def derived(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Builds an image on another one, with further instructions, and gives its name; removed at the test's end."""
    made: list[str] = []

    def build(ref: str, *instructions: str) -> str:
        # Not named after the test's folder: each worker of pytest-xdist's has folders of the same names.
        tag = f"tfbuild-test:derived-{uuid.uuid4().hex[:8]}"
        folder = tmp_path / str(len(made))
        folder.mkdir()
        (folder / "Dockerfile").write_text("\n".join((f"FROM {ref}", *instructions)) + "\n", encoding="utf-8")
        ca = certificates("")
        log = tmp_path / "derived.log"
        engine.build(folder, BuildSettings(log=log, progress=Progress(), tag=tag, secrets={"ca": ca} if ca else {}))
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
            [sys.executable, "-m", "invoke", *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
            **options,
        )  # fmt: skip
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    return run
