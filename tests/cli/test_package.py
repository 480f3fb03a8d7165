"""The installed command: what the wheel holds, what works in an empty folder, and what only a clone has."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.ci.steps import ROOT
from tests.commandline import executable, invoke
from tests.publish import wheels
from tfbuild import __version__
from tfbuild.cli import VERBS
from tools import verbs as development

pytestmark = pytest.mark.slow
# Packages of tests alone.
OPTIONAL = {"cyclonedx", "packageurl", "hypothesis", "jsonschema"}
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*arguments: str | Path, cwd: Path, code: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        arguments, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **env}, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def build(kind: str, source: Path, folder: Path, *, repository: str = "") -> Path:
    """Build as pip does, with the backend that is installed here."""
    hook = f"from hatchling import build; print(build.build_{kind}({str(folder)!r}))"
    return folder / run(sys.executable, "-c", hook, cwd=source, TFBUILD_REPOSITORY=repository).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return build("wheel", ROOT, folder / "dist")


@pytest.fixture(scope="module")
def environment(folder: Path, wheel: Path) -> Path:
    """An environment with the wheel; of the packages around these tests it has all but OPTIONAL."""
    venv, packages = folder / "venv", folder / "packages"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    packages.mkdir()
    for path in Path(pytest.__file__).parents[1].iterdir():
        if path.name.partition(".")[0] not in OPTIONAL and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    (own,) = (venv / "lib").glob("python*/site-packages")
    (own / "packages.pth").write_text(f"{packages}\n")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return venv


@pytest.fixture
def tfbuild(environment: Path, tmp_path: Path) -> Command:
    """The installed command, in an empty folder."""
    (tmp_path / "empty").mkdir()

    def command(*words: str | Path, code: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        given = {"PYTHONPATH": "", **env}
        return run(environment / "bin" / "tfbuild", *words, cwd=tmp_path / "empty", code=code, **given)

    return command


# --- what is in it ----------------------------------------------------------------------------------------------------


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def tracked(*folders: str) -> set[str]:
    """The repository's files below these folders."""
    listed = subprocess.check_output(["git", "ls-files", *folders], cwd=ROOT, text=True).splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


def test_the_wheel_has_the_package_and_the_templates_and_nothing_else(wheel: Path) -> None:
    found = {name for name in names(wheel) if ".dist-info/" not in name}
    assert tracked("tfbuild") | {f"tfbuild/{name}" for name in tracked("templates")} <= found
    assert {name.partition("/")[0] for name in found} == {"tfbuild"}
    assert not any("test" in Path(name).name or "__pycache__" in name for name in found)


def test_the_wheel_of_a_released_sdist_is_that_of_the_clone_and_its_readme_links_to_the_tag(
    wheel: Path, folder: Path
) -> None:
    repository = "https://github.com/us/tfbuild"
    sdist = build("sdist", ROOT, folder / "release", repository=repository)
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    again = build("wheel", folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), folder / "release")
    assert names(again) == names(wheel)
    (path,) = (name for name in names(again) if name.endswith("/METADATA"))
    metadata = message_from_bytes(zipfile.ZipFile(again).read(path))
    urls = dict(value.split(", ") for value in metadata.get_all("Project-URL", []))
    assert urls["Source"] == repository
    text = str(metadata.get_payload())
    links = set(re.findall(r"\]\(([^)]+)\)", text))
    assert {link for link in links if not link.startswith("https://")} == set()
    inside = (f"{repository}/{kind}/v{__version__}/" for kind in ("blob", "raw"))
    files = {link.removeprefix(start).partition("#")[0] for start in inside for link in links if link.startswith(start)}
    assert {"docs/pictures/build.svg", "CONTRIBUTING.md"} <= files <= tracked()
    assert f"]({repository}/raw/v{__version__}/docs/pictures/compiled.svg)" in text, "a picture that is a link"


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_its_version_and_its_verbs(tfbuild: Command) -> None:
    assert tfbuild("--version").stdout == f"tfbuild {__version__}\n"
    shown = tfbuild("--help").stdout
    assert shown.startswith("Usage: tfbuild VERB [--options]\n")
    assert "invoke" not in shown.lower()
    assert set(re.findall(r"^  ([\w-]+)  +[A-Z]", shown, re.MULTILINE)) == set(VERBS)
    assert tfbuild().stdout == tfbuild("--list").stdout == shown


def test_what_needs_the_repository_is_in_a_clone_only(tfbuild: Command) -> None:
    assert set(development.VERBS) == {"generate", "test"}
    assert not set(development.VERBS) & set(VERBS)
    for verb in development.VERBS:
        assert tfbuild(verb, code=2).stderr.startswith(f"error: there is no verb {verb!r}\n")


SHARED = ("dockerfile", "--release", "2.14.0", "--platform", "linux/amd64")


@pytest.mark.parametrize("words", [("--wheel", "official"), ("--cpu", "x86-64-v3")], ids=["official", "source"])
def test_a_build_context_is_that_of_the_clone_byte_by_byte(
    words: tuple[str, ...], tfbuild: Command, tmp_path: Path
) -> None:
    """Written to the current folder, and to the one that is named."""
    output = ("--output", tmp_path / "named") if "official" in words else ()
    invoke(*SHARED, *words, "--output", tmp_path / "clone")
    written = tmp_path / "empty" / tfbuild(*SHARED, *words, *output).stdout.strip()
    assert dict(files(written)) == dict(files(tmp_path / "clone"))
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ([] if output else ["build"])


def files(folder: Path) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), (path.stat().st_mode, path.read_bytes())


# --- imports ----------------------------------------------------------------------------------------------------------


IMPORT = """
import importlib, pkgutil, sys, tfbuild
for row in pkgutil.walk_packages(tfbuild.__path__, "tfbuild."):
    if row.name.startswith(("tfbuild.in_container.", "tfbuild.templates.")):
        continue
    try:
        importlib.import_module(row.name)
    except ModuleNotFoundError as error:
        print(row.name, error.name.partition(".")[0])
"""


def test_all_modules_work_without_the_packages_of_tests(environment: Path, tfbuild: Command, tmp_path: Path) -> None:
    assert run(environment / "bin" / "python", "-c", IMPORT, cwd=tmp_path, PYTHONPATH="").stdout == ""


# --- completion -------------------------------------------------------------------------------------------------------

BASH = """
eval "$(tfbuild --print-completion-script bash)"
COMP_WORDS=(tfbuild pla)
_complete_tfbuild tfbuild pla
echo "${COMPREPLY[*]}"
"""


def test_bash_completes_verbs(environment: Path, tmp_path: Path) -> None:
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    assert run("bash", "-c", BASH, cwd=tmp_path, PATH=path, PYTHONPATH="").stdout.split() == ["plan"]


# --- install.sh -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with install.sh and nothing to install."""
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copy(ROOT / "install.sh", folder)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (folder / name).write_text("# nothing\n")
    return folder


def test_the_script_says_how_to_get_a_newer_python(clone: Path, tmp_path: Path) -> None:
    old = executable(tmp_path / "python", "echo 3.9\nexit 1")
    errors = run("./install.sh", cwd=clone, code=1, PYTHON=str(old)).stderr
    assert errors.startswith(f"error: tfbuild needs Python 3.11 or newer; {old} is 3.9\nhint: ")
    errors = run("./install.sh", cwd=clone, code=1, PYTHON="python3.99").stderr
    assert errors.startswith("error: tfbuild needs Python 3.11 or newer; python3.99 is not there\nhint: ")


def test_a_source_that_apt_cannot_read_keeps_no_package_from_being_installed(clone: Path, tmp_path: Path) -> None:
    executable(tmp_path / "bin/id", "echo 0")
    executable(tmp_path / "bin/apt-get", f'echo "$@" > {tmp_path}/called; [ "$1" != update ] || exit 100')
    rest = f'*venv*) exit 7 ;; *) exec {sys.executable} "$@" ;; esac'
    python = executable(tmp_path / "bin/python", f'case "$*" in *ensurepip*) exit 1 ;; {rest}')
    run("./install.sh", cwd=clone, code=7, PYTHON=str(python), PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert (tmp_path / "called").read_text().endswith("-venv\n")


def test_what_the_users_shell_exports_leads_no_package_elsewhere(clone: Path, tmp_path: Path) -> None:
    """Gitpod exports PIP_USER, and modules of clusters PYTHONPATH, where the same version may be."""
    info = "sample-1.0.dist-info"
    members = {
        "sample.py": b"",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    made = wheels.zipped(tmp_path / "sample-1.0-py3-none-any.whl", members)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    (clone / "requirements.lock").write_text(f"sample==1.0 --hash=sha256:{digest}\n")
    elsewhere = tmp_path / "elsewhere"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(elsewhere / "module")
    (elsewhere / "clone").mkdir()  # for CDPATH
    exported = {"PIP_USER": "yes", "PYTHONPATH": str(elsewhere / "module"), "CDPATH": str(elsewhere)}
    exported |= {name: str(elsewhere / name) for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")}
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), **exported}
    subprocess.run(["sh", "clone/install.sh"], cwd=tmp_path, env=env, check=True)
    (module,) = clone.glob(".venv/lib/python*/site-packages/sample.py")
    # As a pip that was killed leaves it: for the next one the package is there.
    for path in (module, module.parent / info / "INSTALLER", clone / ".venv/requirements.lock"):
        path.unlink()
    subprocess.run(["sh", "clone/install.sh"], cwd=tmp_path, env=env, check=True)
    assert module.exists()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["clone", "module"]
