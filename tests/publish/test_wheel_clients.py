"""pip and uv, the oldest and the newest that the manual names, install from indexes of wheels on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import broken
from tests.broken import Broken
from tests.commandline import ROOT, answer
from tests.publish.wheels import WHEEL, cpuinfo, described, files, wheel, zipped
from tests.rows import each
from tfbuild.cpu import detect, isa
from tfbuild.publish import wheel_index
from tfbuild.util.files import remove

pytestmark = pytest.mark.slow

PIPS = ("23.2", "26.3")
UV = "0.13.9"
CLIENTS = (*(f"pip {version}" for version in PIPS), f"uv {UV}")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SETS = ("avx", "x86-64-v4")
LEVELS = ("x86-64-v3", "x86-64-v4")


@dataclass(frozen=True, kw_only=True)
class Environments:
    """Empty virtual environments with each pip, and uv."""

    folder: Path

    def install(self, client: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """What the client answers to `install`."""
        python = self.python(client)
        kind = client.partition(" ")[0]
        command = {
            "pip": [str(python), "-m", "pip", "install", "--no-cache-dir"],
            "uv": [str(self.folder / "uv" / "bin" / "uv"), "pip", "install", "--python", str(python), "--no-cache"],
        }[kind]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))}
        env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_PROXY": "*", "no_proxy": "*"}
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=env, timeout=120)

    def empty(self, client: str) -> None:
        """Remove what the last test installed."""
        for path in (path for name in ("tensorflow*", "dependency*") for path in self.site(client).glob(name)):
            remove(path)

    def python(self, client: str) -> Path:
        return self.folder / client / "bin" / "python"

    def site(self, client: str) -> Path:
        return self.folder / client / "lib" / f"python{PYTHON}" / "site-packages"

    def installed(self, client: str) -> str:
        """The set of the wheel that is installed; "" without one."""
        module = self.site(client) / "tensorflow" / "__init__.py"
        return module.read_text().partition("set = ")[2].strip().strip("'") if module.exists() else ""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    folder = tmp_path_factory.mktemp("clients")
    for client in CLIENTS:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / client], check=True)
    pip = [sys.executable, "-m", "pip"]
    for version in PIPS:
        python = str(folder / f"pip {version}" / "bin" / "python")
        # What it uses of itself is compiled as it is used.
        subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-compile", f"pip=={version}"], check=True)
    subprocess.run([*pip, "install", "--quiet", "--target", str(folder / "uv"), f"uv=={UV}"], check=True)
    return Environments(folder=folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """An index, one with variants, and PyPI's place."""
    folder = tmp_path_factory.mktemp("served")
    for name in SETS:
        wheel(folder / "built" / name, name, python=PYTHON, requires="dependency")
        wheel_index.index(folder / "plain", wheel_index.of_folder(folder / "built" / name), print)
    for name in ("avx", *LEVELS):
        add_variant(folder / "variants", wheel(folder / "built" / f"v {name}", name, python=PYTHON, guard="avx"), name)
    wheel_index.index(folder / "variants", [], print, variants=True)
    pypi(folder / "pypi" / "simple")
    pypi(folder / "hostile" / "simple", "99.0.0")
    with broken.serve(files(folder)) as server:
        yield server


def add_variant(folder: Path, made: Path, compiled: str) -> None:
    """Add a wheel that claims a set which its guard would not confirm: there is no recorded guard of x86-64-v3."""
    described(made, "avx")
    known = folder / "choose.json"
    before = []
    if known.exists():
        document = json.loads(known.read_text())
        before = document["wheels"]
        known.write_text(json.dumps(document | {"wheels": []}))
    wheel_index.index(folder, [made], print)
    document = json.loads(known.read_text())
    features = isa.resolve(compiled, arch="x86_64").features
    document["wheels"][0] |= {"instruction_set": compiled, "features": features}
    document["wheels"] += before
    known.write_text(json.dumps(document))


def pypi(folder: Path, release: str = "2.14.0") -> None:
    """PyPI's place: an official wheel, of the same version by default, and what it depends on."""
    (folder / "tensorflow-cpu").mkdir(parents=True)
    (folder / "dependency").mkdir()
    official = wheel(folder / "tensorflow-cpu", "avx", release=release, python=PYTHON, platform="manylinux_2_17_x86_64")
    tag = "py3-none-any"
    head = b"Metadata-Version: 2.1\nName: dependency\nVersion: 1.0\n"
    members = {
        "dependency.py": b"",
        "dependency-1.0.dist-info/METADATA": head,
        "dependency-1.0.dist-info/WHEEL": WHEEL.format(tag=tag).encode(),
    }
    for file in (official, zipped(folder / "dependency" / f"dependency-1.0-{tag}.whl", members)):
        (file.parent / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')


def simple(server: Broken, place: str, compiled: str) -> str:
    return f"{server.url}/{place}/{compiled}/simple/"


@each("client", CLIENTS)
@each("compiled", SETS)
def test_each_sets_index_gives_its_own_wheel(
    client: str, compiled: str, environments: Environments, server: Broken
) -> None:
    environments.empty(client)
    done = environments.install(client, "--no-deps", "--index-url", simple(server, "plain", compiled), "tensorflow-cpu")
    assert done.returncode == 0, done.stderr
    assert environments.installed(client) == compiled


@each("client", CLIENTS)
def test_the_manuals_commands_take_the_wheel_of_the_set_and_everything_else_from_pypi(
    client: str, environments: Environments, server: Broken
) -> None:
    own, public = simple(server, "plain", "x86-64-v4"), f"{server.url}/pypi/simple/"
    steps = [["--index", own, "--default-index", public, "tensorflow-cpu==2.14.0"]]
    if client.startswith("pip"):
        steps = [
            ["--no-deps", "--index-url", own, "tensorflow-cpu==2.14.0"],
            ["--index-url", public, "tensorflow-cpu==2.14.0"],
        ]
    environments.empty(client)
    server.requested.clear()
    for words in steps:
        done = environments.install(client, *words)
        assert done.returncode == 0, done.stderr
    assert environments.installed(client) == "x86-64-v4"
    assert (environments.site(client) / "dependency.py").exists()
    # What a wheel depends on is read apart, before the wheel is downloaded.
    assert any(path.endswith(".whl.metadata") for path in server.requested)


@each("client", CLIENTS)
def test_install_hands_over_its_wheel_whatever_other_index_the_user_has(
    client: str, environments: Environments, server: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the wheel depends on comes from the user's indexes. uv notes no digest, so it installs once more."""
    for name in (name for name in os.environ if name.startswith(("PIP_", "UV_"))):
        monkeypatch.delenv(name)
    public, hostile = f"{server.url}/pypi/simple/", f"{server.url}/hostile/simple/"
    (tmp_path / "pip.conf").write_text(
        f"[global]\nno-cache-dir = 1\nindex-url = {public}\nextra-index-url = {hostile}\n"
    )
    (tmp_path / "uv.toml").write_text(f'no-cache = true\nindex-url = "{public}"\nextra-index-url = ["{hostile}"]\n')
    path = f"{environments.folder / 'uv' / 'bin'}:{os.environ['PATH']}"
    env = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "PATH": path}
    words = ("install", "--index", f"{server.url}/plain", "--python", environments.python(client))
    environments.empty(client)
    server.requested.clear()
    again = "installed in" if client.startswith("uv") else "it is installed already in"
    for compiled, told in (("x86-64-v4", "installed in"), ("avx", "installed in"), ("avx", again)):
        done = answer(*words, "--cpuinfo", cpuinfo(tmp_path / compiled, compiled), env=env)
        assert done.returncode == 0, done.stderr
        assert environments.installed(client) == compiled
        assert done.stderr.splitlines()[-1].startswith(f"{told} ")
    assert (environments.site(client) / "dependency.py").exists()
    fetched = [path for path in server.requested if path.endswith(".whl") and "tensorflow" in path]
    assert fetched
    assert [path for path in fetched if not path.startswith("/plain/pool/")] == []


@each("client", CLIENTS)
def test_a_package_whose_requirement_is_broken_now_is_named(
    client: str, environments: Environments, tmp_path: Path
) -> None:
    """By `install` and by install.sh."""
    made = wheel(tmp_path, python=PYTHON)
    wheel_index.index(tmp_path / "public", [made], print)
    recorded, info = cpuinfo(tmp_path / "cpuinfo", "avx"), environments.site(client) / "tensorflow_other-1.dist-info"
    script, path = tmp_path / "public" / "install.sh", f"{environments.folder / 'uv' / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": str(environments.python(client)), "TFBUILD_CPUINFO": str(recorded)}
    with broken.serve(files(tmp_path / "public")) as server:
        words = ("--index", server.url, "--cpuinfo", str(recorded), "--python", env["PYTHON"])
        for command in ([sys.executable, "-m", "tfbuild", "install", *words], ["sh", str(script), server.url]):
            environments.empty(client)
            info.mkdir()
            text = "Metadata-Version: 2.1\nName: tensorflow-other\nVersion: 1\nRequires-Dist: tensorflow-cpu<2.13\n"
            for name, content in {"METADATA": text, "WHEEL": WHEEL.format(tag="py3-none-any"), "RECORD": ""}.items():
                (info / name).write_text(content)
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
            (line,) = [line for line in done.stderr.splitlines() if "tensorflow-other" in line]
            assert "requires tensorflow-cpu<2.13" in line.replace("`", "")
            assert done.stdout.endswith(f"{made.name.replace('linux_x86_64', 'manylinux_2_28_x86_64')}\n")


def newest_level() -> str:
    """The set of the variant that this CPU runs best, or of the plain wheel."""
    runs = set(isa.of_cpu(detect(), exact=True).features)
    fitting = [level for level in LEVELS if runs.issuperset(isa.resolve(level, arch="x86_64").features)]
    return fitting[-1] if fitting else "avx"


def test_uv_takes_the_variant_of_this_cpu_and_who_knows_no_variants_the_plain_wheel(
    environments: Environments, server: Broken
) -> None:
    path = "/variants/auto/simple/tensorflow-cpu/"
    index = ["--no-deps", "--index-url", f"{server.url}/variants/auto/simple/", "tensorflow-cpu"]
    uv, variants = CLIENTS[-1], ["--preview-features", "wheel-variants"]

    def installed(client: str, *words: str) -> str:
        environments.empty(client)
        done = environments.install(client, *index, *words)
        return environments.installed(client) if done.returncode == 0 else done.stderr

    assert {client: installed(client) for client in CLIENTS} == dict.fromkeys(CLIENTS, "avx")
    assert installed(uv, *variants) == newest_level()
    whole = dict(server.content)
    try:
        del server.content[f"{path}tensorflow_cpu-2.14.0-variants.json"]
        assert "tensorflow_cpu-2.14.0-variants.json" in installed(uv, *variants), "404, and nothing is installed"
        page = server.content[path].splitlines()
        server.content[path] = b"\n".join(line for line in page if b"variants.json" not in line)
        assert installed(uv, *variants) == "avx"
    finally:
        server.content.update(whole)
