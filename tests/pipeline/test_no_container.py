"""A compile on this machine itself: what the plan takes of it, what it lacks, and the builder's steps in a folder.

Short scripts take the builder's places; tests/with_engine/test_no_container.py runs the real ones.
"""

import dataclasses
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.commandline import executable
from tests.pipeline import test_wheel_audit as audited
from tests.pipeline.test_compiling import CACHE, GONE
from tests.rows import each
from tests.users import nobody, open_folder
from tfbuild import __version__, plan
from tfbuild.cli import VERBS
from tfbuild.context import dockerfile
from tfbuild.engine import daemon, faults
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import BuildFailed, DiskFull, TfbuildError, Unsupported, UsageError
from tfbuild.pipeline import host as hosts
from tfbuild.pipeline import machine as machines
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.build_context import Context
from tfbuild.pipeline.host import MORE_SPACE, LocalBuilder
from tfbuild.pipeline.host import wheel as compile_here
from tfbuild.pipeline.machine import HostSystem, Interpreter
from tfbuild.pipeline.maker import Maker, needed_disk
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request
from tfbuild.util.progress import Progress

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
BOOKWORM = HostSystem(
    system="Debian GNU/Linux 12 (bookworm)",
    distribution="bookworm",
    glibc="2.36",
    compilers={"gcc-12": "/opt/gcc/bin/gcc-12"},
    pythons={"3.11": Interpreter(version="3.11.2", path="/usr/bin/python3.11")},
)


def planned(machine: HostSystem = BOOKWORM, **more: Any) -> Build:
    request = Request(target="cpu", release="2.13.1", cpu="x86-64-v3", platform="linux/amd64", compiler="gcc-12")
    return plan.select(dataclasses.replace(request, **more), None, (machine.distribution, machine.glibc))


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_compiler_or_a_python_of_the_machine_changes_no_plan() -> None:
    """It has the identifier and the flags that it has in a container; what the machine lacks is asked for."""
    inside = plan.select(planned(compiler="").request, None)
    for compilers, pythons in (({}, {}), ({"clang-18": "/usr/bin/clang-18"}, BOOKWORM.pythons)):
        build = planned(dataclasses.replace(BOOKWORM, compilers=compilers, pythons=pythons), compiler="")
        names = (row.name for row in dataclasses.fields(Build))
        different = {name for name in names if getattr(build, name) != getattr(inside, name)}
        assert (build.id, build.base_image) == (inside.id, "")
        assert different <= {"base_image", "base_distribution", "notes", "request"}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_engine_in_a_file_of_options_is_for_images(
    empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tfbuild.toml").write_text('engine = "a-context"\nbase = "python:3.11-slim-bookworm"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unsupported, match="this machine lacks what the compile needs") as error:
        VERBS["wheel"].run({"no_container": True})
    assert "python3.11" not in error.value.reason, "the base's Python is none of this machine's"
    with pytest.raises(UsageError, match="--base cannot be combined with --no-container"):
        VERBS["plan"].run({"no_container": True, "base": "debian:12"})


def test_another_kernel_than_linux_and_another_libc_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("musl", "1.2"))
    with pytest.raises(Unsupported, match="needs glibc"):
        machines.read_machine()
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname="Darwin", machine="x86_64"))
    with pytest.raises(Unsupported, match="compiles on Linux, and this is Darwin"):
        machines.read_machine()


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with a dpkg-query that knows git alone."""
    folder = tmp_path / "path"
    folder.mkdir()
    program(folder, "dpkg-query", "echo git installed; echo curl deinstalled")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, script: str = "") -> None:
    executable(folder / name, script)


def test_all_that_is_missing_is_in_one_line_for_apt(empty_path: Path) -> None:
    for name in ("xz", "zip", "unzip", "bzip2", "rsync", "patchelf", "update-ca-certificates", "python3"):
        program(empty_path, name)
    build = planned(compiler="clang-18")
    with pytest.raises(Unsupported) as error:
        machines.require(build, dataclasses.replace(BOOKWORM, pythons={}))
    packages = "clang-18 curl lld-18 python3.11 python3.11-dev python3.11-venv"
    assert error.value.reason == f"this machine lacks what the compile needs: {packages.replace(' ', ', ')}"
    assert error.value.hint == f"sudo apt-get install {packages}; --compiler or --python takes another"


def test_bolt_and_a_library_of_the_system_are_debian_s_packages(empty_path: Path) -> None:
    build = planned(release="2.20.0", target="mkl", compiler="clang-18", python="3.13", bolt=True)
    with pytest.raises(Unsupported, match=r"\bbolt-19\b"):
        machines.require(build, BOOKWORM)
    for own, option in ((build, "--bolt"), (planned(system_lib=("curl",)), "--system-lib")):
        with pytest.raises(Unsupported, match=f"{option} needs Debian's packages"):
            machines.require(own, dataclasses.replace(BOOKWORM, apt=False))


def test_a_compiler_that_is_no_package_has_caches_of_its_own(empty_path: Path) -> None:
    program(empty_path, "gcc-12", "echo own 12.2; echo more")
    for path, version in (("/usr/bin/gcc-12", ""), (f"{empty_path}/gcc-12", f"own 12.2, glibc {BOOKWORM.glibc}")):
        assert hosts._programs(dataclasses.replace(BOOKWORM, compilers={"gcc-12": path}), "gcc-12") == version


def test_a_python_without_its_headers_lacks_a_package_and_is_asked_once(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = ["python3.11-dev", "python3.11-venv"]
    called = f"echo called >> {empty_path}/../calls"
    program(empty_path, "python3.11", f"{called}; echo 3.11.2 /usr/bin/python3.11 dev venv")
    system = {"ID": "debian", "PRETTY_NAME": "Debian 12", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(daemon, "this_system", lambda: system)
    program(empty_path, "gcc-12")
    (empty_path / "gcc").symlink_to("gone")
    program(empty_path, "ccache")
    (empty_path / "gcc-14").symlink_to("ccache")
    (empty_path / "python3.12").write_bytes(b"damaged")
    (empty_path / "python3.12").chmod(0o755)
    machine = machines.read_machine()
    assert (machine.system, machine.distribution) == ("Debian 12", "bookworm")
    assert machine.compilers == {"gcc-12": f"{empty_path}/gcc-12"}
    assert f"glibc {machine.glibc}" == os.confstr("CS_GNU_LIBC_VERSION")
    assert machines.lacking(planned(machine), machine)[-2:] == packages
    with pytest.raises(Unsupported, match=packages[-1]):
        machines.require(dataclasses.replace(planned(machine), platform=plan.MACHINES[os.uname().machine]), machine)
    assert (empty_path.parent / "calls").read_text() == "called\n"
    for script in ("echo 3.12.1 /usr/bin/python3.12", "echo 3.11.2 /usr/bin/python3.11; exit 1"):
        program(empty_path, "python3.11", script)
        assert machines.interpreter("3.11") is None
    # As a shim of pyenv's for a version that is not chosen.
    program(empty_path / "shims", f"python{PYTHON}", "exit 127")
    monkeypatch.setenv("PATH", f"{empty_path}/shims:{empty_path}")
    (link := empty_path / "a b").symlink_to(sys.executable)
    program(empty_path, f"python{PYTHON}", f'exec "{link}" "$@"')
    (empty_path / "sysconfig.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(empty_path)
    assert getattr(machines.interpreter(PYTHON), "path", "") == str(link)


@pytest.fixture
def fedora(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, of a system without dpkg; its compilers have no version in their names."""
    (empty_path / "dpkg-query").unlink()
    monkeypatch.setattr(daemon, "this_system", lambda: {"ID": "fedora", "PRETTY_NAME": "Fedora Linux 42"})
    program(empty_path, "gcc", "if [ $# = 1 ]; then echo 13.2.1; else exit 1; fi")
    program(empty_path, "clang", "if [ $# = 1 ]; then echo 17.0.6; else echo '# 1'; fi")
    program(empty_path, "python3.11", "echo 3.11.2 /usr/bin/python3.11 dev")
    for name in ("xz", "zip", "unzip", "bzip2", "rsync", "curl", "python3"):
        program(empty_path, name)
    return empty_path


def test_any_linux_is_asked_for_programs_by_dnfs_names_and_told_that_it_was_not_tried(fedora: Path) -> None:
    machine = machines.read_machine()
    assert (machine.apt, machine.compilers) == (False, {"gcc-13": f"{fedora}/gcc", "clang-17": f"{fedora}/clang"})
    missing = {"gcc-13": "git, patchelf, g++, python3.11-devel", "clang-17": "git, patchelf, ld.lld, python3.11-devel"}
    missing |= {"gcc-12": "git, patchelf, gcc, g++, python3.11-devel"}
    for compiler, names in missing.items():
        build = planned(machine, compiler=compiler, platform=plan.MACHINES[os.uname().machine])
        with pytest.raises(Unsupported) as error:
            machines.require(build, machine)
        assert error.value.reason == f"this machine lacks what the compile needs: {names}"
        packages = names.replace(",", "").replace("g++", "gcc-c++").replace("ld.lld", "lld")
        assert error.value.hint == f"sudo dnf install {packages}; --compiler or --python takes another"
    build = machines.choose(planned(machine).request, machine, lambda request: plan.select(request, None, ("", "2.41")))
    assert build.notes[0] == "tried only on Debian and Ubuntu, and this is Fedora Linux 42"
    for name in ("git", "patchelf", "ld.lld"):
        program(fedora, name)
    program(fedora, "python3.11", "echo 3.11.2 /usr/bin/python3.11")
    ready = planned(machine, compiler="clang-17", platform=plan.MACHINES[os.uname().machine])
    machines.require(ready, machines.read_machine())


def test_a_plan_for_another_platform_or_with_the_cuda_of_a_base_is_refused() -> None:
    other = "linux/arm64" if os.uname().machine == "x86_64" else "linux/amd64"
    with pytest.raises(Unsupported, match=f"the plan is for {other}, and this machine is {os.uname().machine}"):
        machines.require(dataclasses.replace(planned(), platform=other), BOOKWORM)
    build = dataclasses.replace(planned(target="cuda"), platform=plan.MACHINES[os.uname().machine])
    with pytest.raises(Unsupported, match=r"takes CUDA 11\.8, cuDNN .* from its base image"):
        machines.require(build, BOOKWORM)


# --- the steps --------------------------------------------------------------------------------------------------------

CALLED, BASE = '>> "$TFBUILD_ROOT/../called"', "var/tmp/bazel/x"
SCRIPTS = {
    "toolchain.sh": f'echo toolchain "$@" {CALLED}; cd "$TFBUILD_ROOT"; mkdir -p {BASE}; touch {BASE}/java.log',
    # As Bazel leaves folders.
    "source.sh": f'echo source "$@" {CALLED}; mkdir -p "$TFBUILD_ROOT/src/x"; chmod 555 "$TFBUILD_ROOT/src/x"',
    "edit.py": "",
    "compile.sh": f'echo compile "$@" {CALLED}; cd "$TFBUILD_ROOT"; mkdir wheel; env >wheel/env; touch mnt/all.bazelrc',
}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBuilder:
    program(tmp_path, f"python{PYTHON}", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    build = dataclasses.replace(planned(), python=PYTHON)
    context = tmp_path / "context"
    rendered = dockerfile.own_files(build, origin="invoke", usage="docker build .")
    files = rendered | {f"scripts/{name}": text for name, text in SCRIPTS.items()}
    for name, text in files.items():
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(text)
    own = machines.interpreter(PYTHON)
    assert own is not None
    machine = dataclasses.replace(BOOKWORM, pythons={PYTHON: own})
    return LocalBuilder(build=build, machine=machine, root=tmp_path / "host")


def context_of(host: LocalBuilder) -> Path:
    return host.root.parent / "context"


def run(host: LocalBuilder, *, no_cache: bool = False, **secrets: Path) -> str:
    """Run the steps, and return the environment in which the last one ran."""
    output = host.root.parent / f"output-{time.monotonic_ns()}"
    log = host.root.parent / "log"
    settings = BuildSettings(log=log, progress=Progress(io.StringIO()), no_cache=no_cache, seconds=300, secrets=secrets)
    host.make(context_of(host), dataclasses.replace(settings, stage="export", output=output))
    return (output / "env").read_text()


def test_each_step_gets_its_words_and_of_an_earlier_run_bazel_s_own_files_stay(host: LocalBuilder) -> None:
    made = [
        "usr/local/bin/bazel", "opt/build", "opt/overrides", "src/y", "mnt/y", "etc/y", "home/y", "bin/y", "wheel/y",
        "tmp/y",
    ]  # fmt: skip
    left, kept = [host.root / name for name in made], [host.root / name for name in ("var/tmp/y", "cache/y")]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run(host)
    assert [path for path in (*left, *kept) if path.exists()] == kept
    toolchain, source = host.build.toolchain, host.build.source
    assert toolchain is not None
    assert source is not None
    bazel = ["bazel", host.machine.pythons[PYTHON].path, host.build.bazel, *toolchain.bazelisk]
    lines = [line.split() for line in (host.root.parent / "called").read_text().splitlines()]
    assert lines[:2] == [["toolchain", *bazel], ["source", "git", source.tag, source.commit]]
    assert lines[2][:3] == ["compile", host.build.usual_id, host.build.bazel_target]
    assert f"{host.root}/wheel" in " ".join(lines[2])
    archive = dataclasses.replace(host.build, source=dataclasses.replace(source, kind="archive"))
    run(dataclasses.replace(host, build=archive), no_cache=True)
    assert (host.root.parent / "called").read_text().splitlines()[4] == "source archive"
    assert [path for path in kept if path.exists()] == kept[1:]


def test_a_module_in_the_current_folder_does_not_make_the_builder_s_environment(tmp_path: Path) -> None:
    python = executable(tmp_path / "mnt/python", f'exec {sys.executable} "$@" --help')
    for name in ("mnt/network.sh", "venv.py"):
        (tmp_path / name).touch()
    command = ["sh", dockerfile.TEMPLATES / "toolchain.sh", "bazel", python, *"1234"]
    env = {**os.environ, "TFBUILD_ROOT": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage: venv ")


def test_folders_that_bazel_made_read_only_are_removed_by_anybody(host: LocalBuilder) -> None:
    with open_folder(0o777) as top:
        own = dataclasses.replace(host, root=top / "host")
        with nobody():
            (own.root / "src" / "x" / "y").mkdir(parents=True)
            (own.root / "src" / "x").chmod(0o555)
            own._discard("src")
            assert list(own.root.iterdir()) == []


def test_the_folder_has_what_a_builder_has(host: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfbuild.pipeline.host.PATH", "/usr/bin:/bin")
    program(tmp_path, "update-ca-certificates")
    remote = tmp_path / "remote"
    remote.write_text("build --tls_certificate=/mnt/remote-ca\n")
    (context_of(host) / "bazelrc").write_text("build --override_repository=x=/opt/overrides/x\n")
    run(host, remote=remote, ca=tmp_path / "ca.pem")
    root, context = host.root, context_of(host)
    # They had a remote's credentials.
    assert [path for path in (root / "mnt/all.bazelrc", root / BASE / "java.log") if path.exists()] == []
    assert root.stat().st_mode & 0o777 == 0o700
    links = {str(path.relative_to(root)): os.readlink(path) for path in root.rglob("*") if path.is_symlink()}
    assert links.items() >= {
        "mnt/cache": "../cache", "home/.gitconfig": "../etc/gitconfig", "mnt/ca": f"{tmp_path}/ca.pem",
        "mnt/compile.sh": f"{context}/scripts/compile.sh", "mnt/requirements.txt": f"{context}/requirements.txt",
    }.items()  # fmt: skip
    assert remote.read_text() == f"build --tls_certificate={root}/mnt/remote-ca\n"
    below = dataclasses.replace(host, root=Path("/mnt/remote-x"))
    placed = below._placed("/opt/overrides/x /mnt/remote-ca")
    assert placed == "/mnt/remote-x/opt/overrides/x /mnt/remote-x/mnt/remote-ca"
    bazelrc = (root / "mnt/bazelrc").read_text()
    assert bazelrc == f"build --override_repository=x={root}/opt/overrides/x\n"
    assert f"build --sandbox_writable_path={root}/tmp\n" in (root / "home/.bazelrc").read_text()
    for name in ("opt/tfbuild", "var/tmp", "tmp", "cache", "usr/local/bin", "etc"):
        assert (root / name).is_dir()
    linked = {name.removeprefix("bin/"): path for name, path in links.items() if name.startswith("bin/")}
    assert linked["update-ca-certificates"] == f"{tmp_path}/update-ca-certificates"
    assert not [name for name in linked if shutil.which(name, path="/usr/bin:/bin")]
    # Bazel's own files of the last run, by the digest of its flags.
    kept = root / "cache/runs" / hashlib.sha256(bazelrc.encode()).hexdigest()
    kept.mkdir(parents=True)
    (kept / "bazel.log").write_text("x")
    quiet = Progress(io.StringIO())
    settings = BuildSettings(log=tmp_path / "log", progress=quiet, stage="kept", output=tmp_path / "kept")
    host.make(context, settings)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["bazel.log"]


WHEEL = """
cd "$TFBUILD_ROOT"; mkdir wheel; [ "$TMPDIR" = "$TFBUILD_ROOT/tmp" ]
echo code > wheel/tensorflow_cpu-2.13.1-cp311-cp311-linux_x86_64.whl
printf 'builder=b1\nbazel=6.5.0\ncompiler=gcc 12\nsource_commit=\n' > wheel/build.txt
: > wheel/packages.txt
echo "$LIBTENSORFLOW" > wheel/libtensorflow.tar.gz
"""


def test_a_wheel_is_compiled_here_and_says_what_compiled_it(
    host: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads(audited.RECORDED.read_text())
    monkeypatch.setattr(wheels, "audit_wheel", lambda path, *_: wheels.read_audit(recorded, path))
    monkeypatch.setattr(machines, "lacking", lambda *_: [])
    context = Context(folder=context_of(host), digest="sha256:1")
    monkeypatch.setattr(Maker, "render", lambda *_: context)
    (context.folder / "scripts/compile.sh").write_text(WHEEL)
    build = dataclasses.replace(host.build, platform=plan.MACHINES[os.uname().machine])
    needed: list[int] = []
    monkeypatch.setattr(faults, "require_free", lambda _, size, hint: needed.append(size))
    stream = io.StringIO()
    left = tmp_path / "build" / build.id / "wheel"
    left.mkdir(parents=True)
    (left / "old.whl").touch()
    for size in (None, 5):
        run = Run(work=tmp_path / "build", disk=size, jobs=2, libtensorflow=True)
        exported = compile_here(build, host.machine, run, tmp_path / "new/dist", Progress(stream))
    assert needed == [needed_disk(build, image=False), 5]
    sidecar = json.loads(exported.sidecar.read_text())
    name = "tensorflow_cpu-2.13.1-cp311-cp311-linux_x86_64.whl"
    audit, library = wheels.audit_wheel(exported.wheel), f"libtensorflow-{build.id}.tar.gz"
    assert sorted(path.name for path in (tmp_path / "new/dist").iterdir()) == [library, name, f"{name}.json"]
    assert sidecar == {
        "schema": "tfbuild.wheel/1", "tfbuild": __version__, "wheel": name, "sha256": exported.sha256,
        "builder": "b1", "compiler": "gcc 12", "bazel": "6.5.0", "source_commit": None, "base": None,
        "host": {
            "system": "Debian GNU/Linux 12 (bookworm)", "glibc": "2.36", "python": host.machine.pythons[PYTHON].version,
            "python_path": host.machine.pythons[PYTHON].path, "compiler_path": "/opt/gcc/bin/gcc-12",
        },
        "context": "sha256:1", **json.loads(json.dumps({"plan": build.to_json(), "audit": audit.to_json()})),
        "libtensorflow": {"file": library, "sha256": hashlib.sha256(b"1\n").hexdigest()},
        "records": {"build.txt": "builder=b1\nbazel=6.5.0\ncompiler=gcc 12\nsource_commit=\n", "packages.txt": ""},
    }  # fmt: skip
    assert exported.sha256 == hashlib.sha256(b"code\n").hexdigest()
    assert stream.getvalue().endswith("\n".join(audit.lines(exported.wheel)) + "\n")
    assert (tmp_path / "build" / build.id / "build.log").is_file()
    (context.folder / "scripts/compile.sh").write_text(f"echo '[1 / 2] x'; echo '{GONE}'; exit 1")
    with pytest.raises(BuildFailed, match="grpc://cache:1 cannot be used") as lost:
        compile_here(build, host.machine, dataclasses.replace(run, remote=CACHE), tmp_path, Progress(stream))
    assert "--network" not in lost.value.hint
    with pytest.raises(Unsupported, match="the plan is for"):
        compile_here(dataclasses.replace(build, platform="x"), host.machine, run, tmp_path, Progress(stream))


def test_nothing_of_the_users_environment_but_the_proxies_reaches_the_compile(
    host: LocalBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LD_LIBRARY_PATH": "/x", "CFLAGS": "-O0", "https_proxy": "http://proxy:3128"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOME", raising=False)
    variables = dict(line.split("=", 1) for line in run(host).splitlines() if "=" in line)
    assert not {"LD_LIBRARY_PATH", "CFLAGS"} & variables.keys()
    root = str(host.root)
    assert variables.items() >= {
        "https_proxy": "http://proxy:3128", "HOME": f"{root}/home", "TMPDIR": f"{root}/tmp", "TFBUILD_ROOT": root,
        "GIT_CEILING_DIRECTORIES": root, "GIT_CONFIG_SYSTEM": f"{root}/etc/gitconfig", "LANG": "C.UTF-8",
        "USER": "tfbuild", "CC": "/opt/gcc/bin/gcc-12", "PYTHON_BIN_PATH": f"{root}/opt/build/bin/python3",
    }.items()  # fmt: skip
    # In the key of every object in Bazel's cache.
    assert variables["TFBUILD_PROGRAMS"].endswith(", glibc 2.36")
    folders = variables["PATH"].split(":")
    assert folders[:2] == [f"{host.root}/usr/local/bin", f"{host.root}/bin"]
    assert {folder.split("/")[1] for folder in folders[2:]} <= {"usr", "bin", "sbin"}


(LIMITED,) = re.findall(r"timeout .*(?= bazelisk)", (dockerfile.TEMPLATES / "toolchain.sh").read_text())


@each(
    "script, error, message",
    [
        ("echo clang crashed; exit 3", BuildFailed, "the wheel could not be compiled\n  clang crashed"),
        ("echo write: No space left on device; exit 1", DiskFull, "the build ran out of disk space"),
        # As the script that waits for Bazel's download.
        (f"{LIMITED} sleep 200; true", TimeoutError, ""),
    ],
)
def test_a_step_that_fails_says_why(script: str, error: type[Exception], message: str, host: LocalBuilder) -> None:
    (context_of(host) / "scripts/compile.sh").write_text(script)
    log = host.root.parent / "log"
    settings = BuildSettings(log=log, progress=Progress(io.StringIO()), seconds=2 if error is TimeoutError else 60)
    began = time.monotonic()
    with pytest.raises(error) as raised:
        host.make(context_of(host), dataclasses.replace(settings, output=host.root.parent / "output"))
    assert time.monotonic() - began < 150, "nothing of it runs on"
    if isinstance(raised.value, TfbuildError):
        assert raised.value.reason.startswith(message)
        assert raised.value.hint.endswith(f"the full log: {log}")


def test_a_path_that_bazel_does_not_take_and_a_full_disk_are_refused(host: LocalBuilder, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Bazel cannot run in the path"):
        dataclasses.replace(host, root=tmp_path / "a b")
    host.root.mkdir()
    with pytest.raises(DiskFull, match=rf"GB are needed on {host.root}, .* GB are free") as error:
        faults.require_free(host.root, 1 << 60, MORE_SPACE)
    assert "--need-disk" in error.value.hint


def server(root: str) -> "subprocess.Popen[bytes]":
    """Start a process that looks like the server of a Bazel below `root`."""
    process = subprocess.Popen(["sh", "-c", "sleep 600 & wait", f"--output_base={root}"], start_new_session=True)
    # The kernel fills it in a moment after Popen returns.
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    return process


def test_the_server_of_bazel_ends_with_the_compile_and_a_stranger_does_not(host: LocalBuilder) -> None:
    with server(str(host.root)) as own, server("/elsewhere") as stranger:
        try:
            for number, process in enumerate((own, stranger)):
                folder = host.root / f"var/tmp/bazel/{number}/server"
                folder.mkdir(parents=True)
                (folder / "server.pid.txt").write_text(str(process.pid))
            host.end_bazel()
            assert own.wait(timeout=30) == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            for process in (own, stranger):
                os.killpg(process.pid, signal.SIGKILL)
