"""templates/index/install.sh with real wheels, a real pip and a server on loopback."""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.broken import serve
from tests.commandline import answer, executable
from tests.cpu.machines import machines
from tests.locales import without_i
from tests.publish import wheels
from tests.rows import each
from tests.servers import Handler, serving
from tfbuild import cpu
from tfbuild.cpu import isa
from tfbuild.plan.wheel import projects
from tfbuild.publish import choose, wheel_index, wheel_pages, wheel_rows
from tfbuild.publish.wheel_pages import COLUMNS
from tfbuild.publish.wheel_rows import IndexedWheel

SCRIPT = Path(__file__).parents[2] / "templates" / "index" / "install.sh"
PYTHON = "{}.{}".format(*sys.version_info)
SETS = ("x86-64-v2", "avx", "x86-64-v3", "x86-64-v4")


def row(release: str, level: str, python: str = PYTHON, project: str = "tensorflow_cpu") -> tuple[IndexedWheel, bytes]:
    """Return a row of an index, and its wheel: a package that knows its set."""
    tag = f"cp{PYTHON.replace('.', '')}"
    stem, tags = f"{project}-{release}", f"{tag}-{tag}-manylinux_2_17_x86_64"
    members = {
        "tensorflow/__init__.py": f"set = {level!r}\n",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {release}\n",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: {tags}\n",
    }
    with TemporaryDirectory() as folder:
        files = {name: text.encode() for name, text in members.items()}
        path = wheels.zipped(Path(folder) / f"{stem}-{tags}.whl", files)
        content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    described = IndexedWheel(
        file=f"pool/{digest}/{path.name}", size=len(content), sha256=digest, metadata="",
        project=project.replace("_", "-"), version=release, release=release, python=python, requires_python="",
        platform="linux/amd64", glibc="2.17", target="mkl", instruction_set=level,
        features=isa.resolve(level, arch="x86_64").features, created="",
    )  # fmt: skip
    return described, content


class Index:
    """The files of an index by path, which a test may change; `changes` are those of its first row."""

    def __init__(self, *rows: tuple[IndexedWheel, bytes], **changes: str) -> None:
        self.rows = [described for described, _ in rows]
        self.content = {f"/{described.file}": content for described, content in rows}
        lines = [dict(zip(COLUMNS, wheel_pages.columns(described), strict=True)) for described in self.rows]
        lines[0].update(changes)
        table = (COLUMNS, *(line.values() for line in lines))
        self.content["/choose.tsv"] = "".join("\t".join(line) + "\n" for line in table).encode()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a new environment that has pip."""
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    pip = importlib.metadata.distribution("pip")
    for name in ("pip", f"pip-{pip.version}.dist-info"):
        shutil.copytree(str(pip.locate_file(name)), packages / name)
    return folder / "bin" / "python"


def install(
    url: str, recorded: Path, *arguments: str, python: Path | str = sys.executable, more: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    """Run the script on a CPU that was recorded; its temporary files go beside that."""
    env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(recorded), "PYTHON": str(python)}
    return subprocess.run(
        ["dash", SCRIPT, url, *arguments], capture_output=True, text=True, check=False, timeout=60,
        env={**env, "TMPDIR": str(recorded.parent), "no_proxy": "*", "PIP_NO_INDEX": "1", **more},
    )  # fmt: skip


def installed(python: Path) -> str:
    """Return the set of the installed package; "" if there is none."""
    command = [str(python), "-c", "import tensorflow; print(tensorflow.set)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def state(python: Path) -> dict[str, int]:
    packages = python.parents[1] / "lib"
    return {str(path): path.stat().st_mtime_ns for path in packages.rglob("*") if "__pycache__" not in path.parts}


def test_every_recorded_machine_gets_the_wheel_that_the_rules_of_pull_choose(tmp_path: Path) -> None:
    """The newest release comes first, though an older one has a larger set."""
    usual = [row("2.14.1", level) for level in SETS] + [row("2.20.0", level) for level in SETS[:3]]
    index = Index(*usual, row("2.21.0", "avx", "3.9"), row("2.21.0rc1", "avx"))
    published = [described.published for described, _ in usual]
    recorded = tmp_path / "cpuinfo"
    seen = set()
    with serve(index.content) as server:
        for machine in machines():
            recorded.write_text(machine.cpuinfo())
            features = frozenset(isa.of_cpu(cpu.parse(machine.cpuinfo()), exact=True).features)
            best = choose.choose(published, platform="linux/amd64", features=features).best
            chosen = next((one for one in index.rows if one.published == best), None)
            done = install(server.url, recorded, more={"DRY_RUN": "1"})
            assert done.stdout == (f"{server.url}/{chosen.file}\n" if chosen else ""), machine.name
            assert done.returncode == (0 if chosen else 27), done.stderr
            seen.add(best.instruction_set if best else "")
    assert seen == {"", "avx", "x86-64-v3"}


@each("release", ["2.20.0", "2.21.0"])
def test_a_wheel_for_a_newer_glibc_is_passed_over(release: str, tmp_path: Path) -> None:
    index = Index(row(release, "x86-64-v3"), row("2.20.0", "x86-64-v2"), glibc="2.99", set="v3\x1b[2J\xe9\\033")
    with serve(index.content) as server:
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "x86-64-v3"), more={"DRY_RUN": "1"})
    assert done.stdout == f"{server.url}/{index.rows[1].file}\n"
    assert "not v3?[2J??\\033: it needs glibc 2.99 and this system has 2." in done.stderr


def test_the_locale_makes_no_difference(tmp_path: Path) -> None:
    """Every wheel is for manylinux."""
    index = Index(row("2.20.0", "avx"))
    with serve(index.content) as server:
        more = {"DRY_RUN": "1", **without_i(tmp_path)}
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), more=more)
    assert (done.returncode, done.stdout) == (0, f"{server.url}/{index.rows[0].file}\n"), done.stderr


def test_a_curlrc_does_not_change_what_an_answer_is(tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text("fail\ninclude\n")
    index = Index(row("2.20.0", "avx"))
    with serve(index.content) as server:
        more = {"DRY_RUN": "1", "HOME": str(tmp_path)}
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), more=more)
        assert (done.returncode, done.stdout) == (0, f"{server.url}/{index.rows[0].file}\n"), done.stderr
        del index.content["/choose.tsv"]
        assert "the server answers 404" in install(server.url, tmp_path / "cpuinfo", more=more).stderr


def test_a_server_in_trouble_is_asked_again(tmp_path: Path) -> None:
    """As `install` and pull.sh do: a fleet meets S3's 503 and the 429 of GitHub Pages."""
    index, troubles = Index(row("2.20.0", "avx")), [503, 429]

    class Busy(Handler):
        def do_GET(self) -> None:
            status = troubles.pop() if troubles else 200
            self.say(status, index.content[self.path] if status == 200 else b"later")

    with serving(Busy) as host:
        recorded = wheels.cpuinfo(tmp_path / "cpuinfo", "avx")
        done = install(f"http://{host}", recorded, more={"DRY_RUN": "1"})
    assert (done.returncode, done.stdout) == (0, f"http://{host}/{index.rows[0].file}\n"), done.stderr


def test_a_redirection_to_an_address_without_tls_is_not_followed(tmp_path: Path) -> None:
    with serve({}) as server, serve({}) as proxy:
        server.moved = {"/choose.tsv": "http://wheels.example/choose.tsv"}
        more = {"http_proxy": proxy.url, "no_proxy": "127.0.0.1"}
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), more=more)
    assert (done.returncode, done.stdout) == (26, ""), done.stderr
    assert proxy.requested == []


@each("script, address", [(SCRIPT, "https://wheels.example"), (SCRIPT.parents[2] / "pull.sh", "ghcr.io/us/x")])
def test_a_system_without_proc_cpuinfo_is_refused(script: Path, address: str, tmp_path: Path) -> None:
    """As macOS is, by pull.sh too."""
    env = {"PATH": os.environ["PATH"], "TFBUILD_CPUINFO": str(tmp_path / "cpuinfo")}
    done = subprocess.run(["dash", script, address], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, "no CPU features can be read" in done.stderr) == (12, True), done.stderr


@each("script, address", [(SCRIPT, "https://wheels.example"), (SCRIPT.parents[2] / "pull.sh", "ghcr.io/us/x")])
@each("missing", ["awk", "curl", "sha256sum"])
def test_a_program_that_is_missing_is_named_and_no_server_blamed(
    missing: str, script: Path, address: str, tmp_path: Path
) -> None:
    folder = tmp_path / script.name / missing
    for name in {"awk", "curl", "sha256sum"} - {missing}:
        executable(folder / name, "exit 1")
    dash = shutil.which("dash") or "/bin/sh"
    done = subprocess.run(
        [dash, script, address], capture_output=True, text=True, check=False, env={"PATH": str(folder)}
    )
    assert (done.returncode, done.stderr) == (2, f"{script.name}: there is no {missing} here: install it first\n")


@each("script", [SCRIPT, SCRIPT.parents[2] / "pull.sh"])
def test_a_script_that_was_cut_off_on_its_way_to_the_shell_does_nothing(script: Path) -> None:
    """As `curl | sh` hands it on, whose exit code is that of sh."""
    lines = script.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("{ ")) + 1
    for end in [first, *range(first + 1, len(lines), 9), len(lines) - 1]:
        cut = "".join(lines[:end])
        done = subprocess.run(["dash", "-s", "--", "-h"], input=cut, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, ""), end
        assert "Syntax error: " in done.stderr, end


@each(
    "address",
    ["http://wheels.example", "wheels.example", "http://127.0.0.1.wheels.example", "https://x:word@wheels.example"],
)
def test_an_address_without_tls_or_with_a_login_is_refused(address: str, tmp_path: Path) -> None:
    with serve({}) as proxy:
        more = {"http_proxy": proxy.url, "ALL_PROXY": proxy.url, "no_proxy": "127.0.0.1"}
        done = install(address, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), more=more)
    assert (done.returncode, done.stdout, "word" in done.stderr) == (2, "", False)
    assert proxy.requested == []


def test_a_python_of_32_bits_on_a_kernel_of_64_gets_no_wheel(tmp_path: Path) -> None:
    """As on a Raspberry Pi, where uname says aarch64 for both."""
    code = "import os, sys; sys.maxsize = (1 << 31) - 1; exec(os.environ['CODE'])"
    python = executable(tmp_path / "python", f'CODE=$2 exec {sys.executable} -c "{code}"')
    with serve(Index(row("2.20.0", "avx")).content) as server:
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), python=python)
    assert (done.returncode, server.requested) == (27, [])
    assert f"{python} is not the usual 64-bit CPython" in done.stderr


@each("given, release", [("2.14", "2.14.1"), ("2.14.1", "2.14.1"), ("2.21.0rc1", "2.21.0rc1"), ("2.2", "")])
def test_a_release_is_chosen_by_its_name_or_series(given: str, release: str, tmp_path: Path) -> None:
    index = Index(*(row(name, "avx") for name in ("2.14.1", "2.20.0", "2.21.0rc1")))
    with serve(index.content) as server:
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), given, more={"DRY_RUN": "1"})
    assert (f"/tensorflow_cpu-{release}-" in done.stdout, done.returncode) == (bool(release), 0 if release else 27)


@each("target, chosen", [("", "mkl"), ("cuda", "cuda"), ("cpu", "")])
def test_a_wheel_for_an_accelerator_is_chosen_only_by_its_target(target: str, chosen: str, tmp_path: Path) -> None:
    """By install.sh as by `install`."""
    for name, project in (("cuda", "tensorflow"), ("mkl", "tensorflow_cpu")):
        made = wheels.wheel(tmp_path / name, python=PYTHON, target=name, project=project)
        wheel_index.index(tmp_path / "public", [made], print)
    recorded = wheels.cpuinfo(tmp_path / "cpuinfo", "avx")
    listed = wheel_rows.read_list((tmp_path / "public" / "choose.json").read_bytes(), "here").wheels
    expected = next((f"/{row.file}\n" for row in listed if row.target == chosen), "")
    words: list[str | Path] = ["install", "--index", tmp_path / "public", "--dry-run", "--cpuinfo", recorded]
    done = answer(*words, *(["--target", target] if target else []))
    assert done.stdout.endswith(expected)
    assert (done.returncode, bool(done.stdout)) == ((0, True) if chosen else (27, False)), done.stderr
    assert ("whl: --target cuda chooses it" in done.stderr) == (chosen == "mkl")
    with serve(wheels.files(tmp_path / "public")) as server:
        done = install(server.url, recorded, more={"DRY_RUN": "1", "TARGET": target})
    assert done.stdout.endswith(expected)
    assert (done.returncode, bool(done.stdout)) == ((0, True) if chosen else (27, False)), done.stderr


@pytest.mark.slow
def test_the_wheel_of_another_set_replaces_one_of_the_same_version(tmp_path: Path, python: Path) -> None:
    """From an index as `invoke index` makes it."""
    public = tmp_path / "public"
    for level in ("avx", "x86-64-v4"):
        made = wheels.wheel(tmp_path / level, level, python=PYTHON)
        wheel_index.index(public, [made], print)
    # As where sys.platlibdir is lib64, a link to lib: the folder has two names.
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    (python.parents[1] / "again").symlink_to("lib")
    (packages / "again.pth").write_text(str(packages).replace("/env/lib/", "/env/again/"))
    content = {f"/{path.relative_to(public)}": path.read_bytes() for path in public.rglob("*") if path.is_file()}
    assert content["/install.sh"] == SCRIPT.read_bytes()
    assert all(f'"{project}"' in SCRIPT.read_text() for project in projects())
    with serve(content) as server:
        for level in ("avx", "x86-64-v4", "avx"):
            done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", level), python=python)
            assert done.returncode == 0, done.stderr
            assert installed(python) == level
    assert "install.sh: not x86-64-v4: this CPU lacks " in done.stderr
    assert not list(tmp_path.glob("tmp.*"))


def test_uv_gets_the_python_that_was_asked(tmp_path: Path) -> None:
    """By a name alone, uv takes that of a .venv in the folder, or one of its own."""
    pipless = executable(tmp_path / "bin" / "python3", f'[ "$2" != pip ] || exit 1\nexec {sys.executable} "$@"')
    executable(tmp_path / "bin" / "uv", f'echo "$@" >> {tmp_path}/asked')
    with serve(Index(row("2.20.0", "avx")).content) as server:
        more = {"PATH": f"{pipless.parent}:{os.environ['PATH']}"}
        done = install(server.url, wheels.cpuinfo(tmp_path / "cpuinfo", "avx"), python="python3", more=more)
    assert done.returncode == 0, done.stderr
    installed_, checked = (tmp_path / "asked").read_text().splitlines()
    assert installed_.startswith(f"pip install --python {pipless} ")
    assert checked == f"pip check --python {pipless}"


@pytest.mark.slow
@each("leftover, whole", [("~ensorflow_cpu-2.14.0", True), ("-ensorflow-2.14.0", True), ("tensorflow-2.14.0", False)])
def test_what_pip_left_over_of_a_package_is_not_installed(
    leftover: str, whole: bool, tmp_path: Path, python: Path
) -> None:
    """By install.sh and by `install`: pip gets to see what the wheel depends on, which it cannot have here."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / f"{leftover}.dist-info").mkdir()
    if whole:
        name = "tensorflow-cpu" if "cpu" in leftover else "tensorflow"
        (site / f"{leftover}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.14.0\n"
        )
    wheel_index.index(tmp_path / "public", [wheels.wheel(tmp_path, python=PYTHON, requires="dependency")], print)
    recorded = wheels.cpuinfo(tmp_path / "cpuinfo", "avx")
    with serve(wheels.files(tmp_path / "public")) as server:
        done = install(server.url, recorded, python=python)
        words = ("install", "--index", server.url, "--cpuinfo", recorded, "--python", python)
        own = answer(*words, env={**os.environ, "PIP_NO_INDEX": "1"})
    assert (done.returncode, own.returncode) == (1, 1), done.stderr + own.stderr
    assert "No matching distribution found for dependency" in done.stderr


@pytest.mark.slow
def test_what_cannot_be_trusted_leaves_the_environment_as_it_was(tmp_path: Path, python: Path) -> None:
    """Each is one sentence, and the installed set stays."""
    recorded = wheels.cpuinfo(tmp_path / "cpuinfo", "x86-64-v3")
    with serve(Index(row("2.14.1", "x86-64-v2")).content) as server:
        assert install(server.url, recorded, python=python).returncode == 0
    before = state(python)
    for message, code, broken in bad_indexes():
        with serve(broken.content) as server:
            server.fault, server.sound = ("stall", 1) if "download" in message else ("", 0)
            done = install(server.url, recorded, python=python, more={"TFBUILD_STALL": "1"})
        told = [line for line in done.stderr.splitlines() if "largest set" not in line and "curl: " not in line]
        assert len(told) == 1, done.stderr
        assert message in told[0]
        assert done.returncode == code
        assert state(python) == before
    assert installed(python) == "x86-64-v2"


def bad_indexes() -> Iterator[tuple[str, int, Index]]:
    """Yield the message, the exit code, and an index."""
    good = row("2.20.0", "x86-64-v3")
    wheel = f"/{good[0].file}"
    table = Index(good).content["/choose.tsv"]
    for path, content, message, code in (
        (wheel, good[1][:-100], "by its sha256", 24),
        (wheel, bytes(len(good[1])), "by its sha256", 24),
        ("/choose.tsv", b"<!DOCTYPE html>\n<p>Not here\n", "is not a table", 26),
        ("/choose.tsv", b"", "is not a table", 26),
        ("/choose.tsv", table.rpartition(b"\t")[0] + b"\n", "is not a table", 26),
    ):
        index = Index(good)
        index.content[path] = content
        yield message, code, index
    index = Index(good)
    del index.content[wheel]
    yield "the server answers 404", 26, index
    index = Index(row("2.20.0", "x86-64-v4"))
    index.content["/choose.tsv"] = index.content["/choose.tsv"][:-9]
    yield "choose.tsv is cut off", 26, index
    yield "the download of", 26, Index(good)
    yield "a row that tfbuild did not write", 26, Index(good, file="pool/../../etc/x.whl")
    yield "tensorflow-cpu is installed in the same folder", 2, Index(row("2.20.0", "x86-64-v3", project="tensorflow"))
