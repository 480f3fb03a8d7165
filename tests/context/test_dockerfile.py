"""The build context: what is in its files, that linters accept them, and that the guard does what it says."""

import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined, UndefinedError

from tests.commandline import ROOT, executable, tool
from tests.cpu.machines import Machine, machine, machines
from tfbuild import cpu, facts, plan
from tfbuild.context import dockerfile
from tfbuild.cpu import isa
from tfbuild.errors import UsageError
from tfbuild.pipeline import build_context
from tfbuild.pipeline.build_context import Base, build_args, image_digest
from tfbuild.plan import Build, Request, configuration
from tfbuild.plan.build import Wheel
from tfbuild.plan.source import Source

WHEEL = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_17_x86_64.whl"


def completed(build: Build) -> Build:
    return replace(build, toolchain=configuration.toolchain(build) if build.wheel.kind == "source" else None)


def official(**changes: object) -> Build:
    build = Build(
        release="2.21.0", python="3.11", target="mkl", platform="linux/amd64",
        instruction_set=isa.resolve("avx", arch="x86_64"),
        wheel=Wheel(kind="official", requirement="tensorflow-cpu==2.21.0", constraints=("numpy<3",)),
        base_image="python:3.11-slim-bookworm", base_distribution="bookworm", with_headers=False, compiler="clang-18",
        copts=("--copt=-mavx",), threading="threadpool",
    )  # fmt: skip
    return completed(replace(build, **changes))  # type: ignore[arg-type]


def from_file(path: Path, sha256: str = "0" * 64) -> Build:
    wheel = Wheel(kind="file", requirement=WHEEL, constraints=("numpy<2",), path=path, sha256=sha256)
    return official(release="2.14.0", wheel=wheel)


def from_source(**changes: object) -> Build:
    build = official(
        wheel=Wheel(kind="source", requirement="", constraints=()),
        source=Source(kind="git", tag="v2.21.0", commit="a481b10260d"),
        instruction_set=isa.resolve("x86-64-v3", arch="x86_64"),
        copts=("--copt=-march=x86-64-v3",),
        configs=("mkl_threadpool",),
        bazel="7.4.1",
        bazel_target="//tensorflow/tools/pip_package:wheel",
        configure_env=(("CC_OPT_FLAGS", "-Wno sign"), ("TF_NEED_CUDA", "0")),
    )
    return completed(replace(build, **changes))  # type: ignore[arg-type]


def kinds(tmp_path: Path) -> dict[str, Build]:
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"a wheel")
    wheel.chmod(0o644)  # whatever the umask: a linked wheel keeps its mode
    return {
        "official": official(),
        "headers": official(with_headers=True),
        "cpu": official(target="cpu"),
        "file": from_file(wheel),
        "source": from_source(),
        "bolt": from_source(request=Request(bolt=True)),
        "old source": from_source(release="2.14.0", bazel_target="//tensorflow/tools/pip_package:build_pip_package"),
        "arm": official(platform="linux/arm64", instruction_set=isa.resolve("armv8.2-a", arch="aarch64")),
    }


KINDS = ("official", "headers", "cpu", "file", "source", "bolt", "old source", "arm")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_holds_all_that_docker_build_needs(tmp_path: Path, kind: str) -> None:
    context = build_context.write_context(kinds(tmp_path)[kind], tmp_path / "context")
    names = set(contents(context.folder))
    copied = re.findall(r"^COPY (?:--chmod=\d+ )?(\S+) ", (context.folder / "Dockerfile").read_text(), re.MULTILINE)
    mounted = re.findall(r"type=bind,source=([^,]+),", (context.folder / "Dockerfile").read_text())
    for needed in (*copied, *mounted):
        if not needed.startswith("--from"):
            assert needed in names or any(name.startswith(f"{needed}/") for name in names), needed
    assert not any("__pycache__" in name for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_have_the_mode_that_git_gives_those_in_dockerfiles(tmp_path: Path, kind: str) -> None:
    """BuildKit's cache goes by modes, too: plain `docker build` there finds the layers that `invoke build` made."""
    build = kinds(tmp_path)[kind]
    before = os.umask(0o077)
    try:
        folder = build_context.write_context(build, tmp_path / "context").folder
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o644}


def test_writing_again_gives_the_same_bytes_and_digest(tmp_path: Path) -> None:
    build_context.write_context(from_source(), tmp_path / "context")
    first = build_context.write_context(official(), tmp_path / "context")
    before = contents(first.folder)
    assert "bazelrc" not in before, "what another build left is gone"
    second = build_context.write_context(official(), tmp_path / "context")
    assert second == first
    assert contents(second.folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["context"]


@pytest.mark.parametrize("name", ["Dockerfile", "thesis.tex"])
def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("FROM scratch\n")
    with pytest.raises(UsageError, match="not written by tfbuild"):
        build_context.write_context(official(), tmp_path)
    assert contents(tmp_path) == {name: b"FROM scratch\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_added_to_a_context_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    build, folder = kinds(tmp_path)[kind], tmp_path / "context"
    build_context.write_context(build, folder)
    build_context.write_context(build, folder)
    (folder / ".git").mkdir()
    before = contents(folder)
    with pytest.raises(UsageError, match=r"\.git was not written by tfbuild"):
        build_context.write_context(official(), folder)
    assert contents(folder) == before


def test_a_failure_leaves_the_earlier_context_and_nothing_else(tmp_path: Path) -> None:
    before = contents(build_context.write_context(official(), tmp_path / "context").folder)
    with pytest.raises(UsageError, match="No such file"):
        build_context.write_context(from_file(tmp_path / "gone.whl"), tmp_path / "context")
    assert contents(tmp_path / "context") == before
    assert [path.name for path in tmp_path.iterdir()] == ["context"]


# --- the digest -------------------------------------------------------------------------------------------------------


def test_the_base_is_part_of_the_images_digest(tmp_path: Path) -> None:
    context = build_context.Context(folder=tmp_path, digest="sha256:1")
    digests = {image_digest(context.digest, digest) for digest in ("", "sha256:a", "sha256:b")}
    assert len(digests) == 3
    arguments = build_args(base(digest="sha256:a"), context)
    assert arguments["CONTEXT_DIGEST"] in digests
    assert [arguments[name] for name in ("BASE", "BASE_NAME", "BASE_DIGEST")] == [
        "tfbuild-base:1",
        "debian",
        "sha256:a",
    ]


def base(digest: str) -> Base:
    return Base(reference="tfbuild-base:1", name="debian", digest=digest)


# --- golden files and linters -----------------------------------------------------------------------------------------


STAGES = {"SYSTEM": "system", "VENV": "venv", "INSTALLED": "wheel", "FETCHED": "source", "COMPILED": "build"}


def test_every_argument_of_the_dockerfile_is_given() -> None:
    """But for those that replace a stage, whose default is the stage itself, and the C library's."""
    declared = re.findall(r"^ARG (\w+)=?(.*)", dockerfile.files(from_source())["Dockerfile"], re.MULTILINE)
    given = build_args(base(digest=""), build_context.Context(folder=ROOT, digest=""))
    assert {name for name, _ in declared} - set(given) == {*STAGES, "LIBTENSORFLOW", "REUSED", "RUN_ID"}
    assert STAGES.items() <= dict(declared).items()


def test_hadolint_and_its_shellcheck_accept_the_dockerfiles(tmp_path: Path) -> None:
    contexts = [build_context.write_context(build, tmp_path / kind) for kind, build in kinds(tmp_path).items()]
    paths = [context.folder / "Dockerfile" for context in contexts]
    assert len(paths) == len(KINDS)
    done = tool("hadolint", "--config", ROOT / ".hadolint.yaml", *paths)
    assert (done.returncode, done.stdout) == (0, "")


def runs(text: str) -> Iterator[str]:
    """The shell command of each RUN, without its mounts."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("RUN "):
            yield re.sub(r"--mount=\S+", "", line.removeprefix("RUN ")).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_mounted_where_it_would_leave_a_file_in_the_image(tmp_path: Path, kind: str) -> None:
    text = dockerfile.files(kinds(tmp_path)[kind])["Dockerfile"]
    assert "--mount=" in text
    for line in text.replace("\\\n", " ").splitlines():
        mounts = re.findall(r"--mount=type=(\w+),(?:\S*?,)?target=(\S+)", line)
        assert len(mounts) == line.count("--mount="), line
        for mount, target in mounts:
            within = target.startswith("/mnt/") and ("tmpfs", "/mnt") in mounts
            assert within or mount == "tmpfs", (mount, target)


def test_a_name_that_nobody_gives_is_an_error_and_so_is_text_that_nobody_quotes() -> None:
    assert dockerfile.environment_of_templates().undefined is StrictUndefined
    given: dict[str, object] = {"header": "", "build": official(), "layout": dockerfile.LAYOUT, "usage": ""}
    with pytest.raises(UndefinedError, match="'options' is undefined"):
        dockerfile.render("Dockerfile.j2", **given)
    with pytest.raises(ValueError, match="a template does not quote 'a; b'"):
        dockerfile.environment_of_templates().from_string("{{ x }}").render(x="a; b")


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_a_quoted_label_is_read_back_as_it_was(value: str) -> None:
    """By the Dockerfile's rule: a backslash takes the next character as it is, a bare quote ends the word."""
    inside = dockerfile.quoted(value)[1:-1]
    assert re.fullmatch(r'(?:[^"\\]|\\.)*', inside)
    assert re.sub(r"\\(.)", r"\1", inside) == value


# --- what the files say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_that_installs_packages_into_the_image_takes_setuid_away(tmp_path: Path, kind: str) -> None:
    build = kinds(tmp_path)[kind]
    commands = [command for command in runs(dockerfile.files(build)["Dockerfile"]) if "times.sh end" in command]
    installing = [command for command in commands if "apt-get" in command or "system.sh" in command]
    assert len(installing) == (2 if build.wheel.kind == "source" else 1)
    assert [
        command for command in installing if "&& find / -xdev -type f -perm /6000 -exec chmod a-s {} + " not in command
    ] == []


def test_a_user_s_flags_are_the_last_and_the_compile_names_its_builder() -> None:
    bazelrc = dockerfile.files(from_source(bazel_flags=("--jobs=4",)))["bazelrc"]
    assert bazelrc.endswith("cache-silo-key=2.21.0-@BUILDER@\nbuild --jobs=4\n")
    assert "s/@BUILDER@/$builder/" in (dockerfile.TEMPLATES / "compile.sh").read_text()


def test_a_trust_store_holds_every_certificate_once(tmp_path: Path) -> None:
    """Read back by the format's own rules; that Java takes it was tried with keytool 17."""
    pems = (machine_made("a"), machine_made("b"))
    (tmp_path / "in.pem").write_text("# Gr\xfc\xdfe\n" + "".join(pems) + pems[0], encoding="latin-1")
    script = dockerfile.TEMPLATES / "truststore.py"
    subprocess.run([sys.executable, script, tmp_path / "in.pem", tmp_path / "out.jks"], check=True)
    written = (tmp_path / "out.jks").read_bytes()
    assert written[:12] == bytes.fromhex("feedfeed 00000002 00000002")
    assert [der for der in (b"certificate a", b"certificate b") if written.count(der) != 1] == []
    sealed = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + written[:-20]
    assert written[-20:] == hashlib.sha1(sealed).digest()


def machine_made(name: str) -> str:
    return ssl.DER_cert_to_PEM_cert(f"certificate {name}".encode())


# --- the guard --------------------------------------------------------------------------------------------------------

SHELLS = {"sh": ["sh"], "dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
SHELLS = {name: words for name, words in SHELLS.items() if shutil.which(words[0])}
X86 = [row for row in machines() if row.arch == "x86_64"]


CPUINFO = "/where/cpuinfo/is"


def entrypoint(build: Build) -> str:
    return dockerfile.files(build)["entrypoint.sh"].replace("/proc/cpuinfo", CPUINFO)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The entry point of an image, run by a shell on a recorded machine."""

    folder: Path
    build: Build
    cpuinfo: str
    shell: str = "sh"
    before: Path | None = None

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        recorded, script = self.folder / "cpuinfo", self.folder / "entrypoint"
        recorded.write_text(self.cpuinfo)
        script.write_text(entrypoint(self.build).replace(CPUINFO, str(recorded)))
        path = f"{self.before}:{os.environ['PATH']}" if self.before else os.environ["PATH"]
        if self.shell == "busybox" and not (self.folder / "awk").exists():
            (self.folder / "awk").symlink_to(str(shutil.which("busybox")))
            path = f"{self.folder}:{path}"
        return subprocess.run(
            [*SHELLS[self.shell], script, *(command or ("echo", "started"))],
            capture_output=True, text=True, check=False, timeout=30, env={"PATH": path, **environment},
        )  # fmt: skip


def image(name: str) -> Build:
    return official(release="2.14.1", instruction_set=isa.resolve(name, arch="x86_64"))


def expected_advice(build: Build, flags: set[str]) -> str:
    """By the levels' own definition (x86-64 psABI) in the kernel's words, not by the code under test."""
    v2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
    v3 = v2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    avx = {"avx", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3", "xsave"}
    known = {"x86-64-v4": v4, "x86-64-v3": v3, "avx": avx, "x86-64-v2": v2}
    fitting = [name for name, needs in known.items() if needs <= flags and name != build.instruction_set.name]
    return f"use the image tfbuild:2.14.1-mkl-py3.11-{fitting[0]}" if fitting else "invoke build --cpu host"


def read_only(shell: str, script: str, hidden: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The entry point where /tmp, and what else is `hidden`, cannot be written, even by root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a read-only file system needs root")
    mounts = "; ".join(f"mount -t tmpfs -o ro none {folder}" for folder in hidden.split())
    # The script comes by stdin, for its file is below /tmp.
    inner = f"{mounts} || exit 99; exec {' '.join(SHELLS[shell])} -s -- sh -c 'echo TMPDIR=$TMPDIR'"
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", inner],
        input=script, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], **environment},
    )  # fmt: skip


@pytest.mark.parametrize("shell", [name for name in SHELLS if name != "busybox"])
def test_a_read_only_root_gets_temporary_files_elsewhere(shell: str) -> None:
    build = official(release="2.14.1", instruction_set=isa.resolve("x86-64-v1", arch="x86_64"))
    script = dockerfile.files(build)["entrypoint.sh"]
    done = read_only(shell, script, "/tmp")
    assert (done.returncode, done.stdout, done.stderr) == (0, "TMPDIR=/dev/shm\n", "")
    assert read_only(shell, script, "/tmp", TMPDIR="/data").stdout == "TMPDIR=/data\n", "the user's choice stays"
    done = read_only(shell, script, "/tmp /dev/shm")
    assert (done.returncode, done.stdout) == (0, "TMPDIR=\n")
    assert done.stderr.count("\n") == 1
    assert "docker run --tmpfs /tmp" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["avx", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_guard_on_every_recorded_machine(tmp_path: Path, shell: str, name: str) -> None:
    build = image(name)
    needed = set(facts.cpuinfo_names(build.instruction_set.features))
    for recorded in X86:
        flags = set(recorded.flags.split())
        done = Guard(folder=tmp_path, build=build, cpuinfo=recorded.cpuinfo(), shell=shell).run()
        if needed <= flags:
            assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", ""), recorded.name
        else:
            assert (done.returncode, done.stdout) == (86, ""), recorded.name
            assert done.stderr.count("\n") == 1
            assert f"lacks {' '.join(sorted(needed - flags))}, and" in done.stderr
            assert done.stderr.endswith(f"{expected_advice(build, flags)}\n")


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_the_guard_and_detect_say_the_same_of_every_recorded_machine(row: Machine, tmp_path: Path) -> None:
    lesser = row.core(1, without=("avx2", "asimdrdm"))
    cores = (f"{lesser.rstrip()}\n{row.core(0)}", f"{row.core(0)}\n{lesser}")  # with and without an empty line
    place = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[row.arch]
    wider = {"x86_64": "avx,aes,gfni", "aarch64": "crypto,asimddp"}[row.arch]
    for text in (row.cpuinfo(), *cores):
        held = set(cpu.parse(text).features)
        for name in (*(level.name for level in facts.levels(row.arch)), wider):
            build = official(platform=place, instruction_set=isa.resolve(name, arch=row.arch))
            started = Guard(folder=tmp_path, build=build, cpuinfo=text).run().returncode == 0
            assert started == (set(build.instruction_set.features) <= held), name


NOTHING = "no CPU features can be read"
WIDER = "flags\t\t: avx2 pni popcnt sse4_1 sse4_2 ssse3 xsave xavx avx_vnni\n"


@pytest.mark.parametrize(
    ("cpuinfo", "told"),
    [("", NOTHING), ("processor\t: 0\n", NOTHING), ("vmx flags\t: avx\n", NOTHING), (WIDER, "lacks avx, and")],
)
def test_what_cannot_be_read_is_refused_and_a_feature_is_a_whole_word(cpuinfo: str, told: str, tmp_path: Path) -> None:
    refused = Guard(folder=tmp_path, build=image("avx"), cpuinfo=cpuinfo).run()
    assert (refused.returncode, refused.stdout) == (86, "")
    assert told in refused.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("more", ["rocky9-zen5", "gone", "empty", "folder", "no flags", "newline in name\n"])
def test_the_override_cannot_weaken_the_guard(tmp_path: Path, shell: str, more: str) -> None:
    (tmp_path / "rocky9-zen5").write_text(machine("rocky9-zen5").cpuinfo())
    (tmp_path / "empty").write_text("")
    (tmp_path / "no flags").write_text("flags\t\t:\n")
    (tmp_path / "folder").mkdir()
    old = machine("scientificfermi6-piledriver").cpuinfo()
    refused = Guard(folder=tmp_path, build=image("x86-64-v3"), cpuinfo=old, shell=shell).run(
        TFBUILD_CPUINFO=str(tmp_path / more)
    )
    assert (refused.returncode, refused.stdout) == (86, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_gets_its_arguments_exit_code_and_preload_untouched(tmp_path: Path, shell: str) -> None:
    guard = Guard(folder=tmp_path, build=image("avx"), cpuinfo=machine("rocky9-zen5").cpuinfo(), shell=shell)
    output = guard.run("sh", "-c", 'printf "%s|" "$@"; exit 7', "sh", "a b", "", "*", "$x")
    assert (output.returncode, output.stdout) == (7, "a b||*|$x|")
    assert guard.run("no-such-program").returncode == 127
    # The loader complains for the shell and for the command, never for the helpers. A static busybox has no loader.
    kept = guard.run("env", LD_PRELOAD="/no/such/library.so")
    assert "LD_PRELOAD=/no/such/library.so" in kept.stdout.splitlines()
    complaints = kept.stderr.count("/no/such/library.so")
    assert complaints == 2 or (shell == "busybox" and complaints == 0)
    assert "LD_PRELOAD" not in guard.run("env").stdout


GPUS = "sm_60,sm_70,compute_80"
# What nvidia-smi prints of the GPUs, and whether one of them runs kernels that were compiled for GPUS.
SEEN = {
    "6.0": True, "6.1": True, "5.2": False, "7.5": True, "6.2\n3.5": True, "8.0": True, "8.6": True, "9.0": True,
    "12.0": True, "3.5\n5.2": False, "": True, "[N/A]": True, "No devices were found": True,
    "Field \"compute_cap\" is not a valid field to query.": True, "[N/A]\n5.2": False,
}  # fmt: skip


def cuda_image(capabilities: str) -> Build:
    request = Request(target="cuda", release="2.14.1", cpu="avx", platform="linux/amd64", base="with-cuda:1")
    return plan.select(replace(request, compute_capabilities=capabilities), None)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("seen", SEEN)
def test_a_gpu_for_which_nothing_was_compiled_stops_the_image(tmp_path: Path, shell: str, seen: str) -> None:
    (tmp_path / "seen").write_text(f"{seen}\n")
    executable(tmp_path / "nvidia-smi", f"cat {tmp_path}/seen")
    guard = Guard(
        folder=tmp_path, build=cuda_image(GPUS), cpuinfo=machine("rocky9-zen5").cpuinfo(), shell=shell, before=tmp_path
    )
    done = guard.run()
    assert (done.returncode, done.stdout) == ((0, "started\n") if SEEN[seen] else (86, ""))
    if not SEEN[seen]:
        gpus = ",".join(line for line in seen.split() if line[0].isdigit())
        assert f"--compute-capabilities {gpus};" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_gets_variables_that_have_the_names_of_the_guard_s_own(tmp_path: Path, shell: str) -> None:
    executable(tmp_path / "nvidia-smi", "echo 6.0")
    build, cpuinfo = cuda_image(GPUS), machine("rocky9-zen5").cpuinfo()
    own = {name for names in re.findall(r"\b([a-z]+)=|\bfor ([a-z]+)\b", entrypoint(build)) for name in names if name}
    assert {"name", "features", "missing", "advice", "gpu"} <= own
    guard = Guard(folder=tmp_path, build=build, cpuinfo=cpuinfo, shell=shell, before=tmp_path)
    done = guard.run("env", **dict.fromkeys(own, "the user's"))
    assert done.returncode == 0, done.stderr
    assert {f"{name}=the user's" for name in own} <= set(done.stdout.splitlines())


@pytest.mark.parametrize("shell", SHELLS)
def test_what_nvidia_smi_prints_beside_an_error_is_no_gpu(tmp_path: Path, shell: str) -> None:
    """As after an update of the driver: it is not loaded before the machine starts again."""
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.129"
    executable(tmp_path / "nvidia-smi", f"echo '{said}'\nexit 18")
    build, cpuinfo = cuda_image("sm_80"), machine("rocky9-zen5").cpuinfo()
    done = Guard(folder=tmp_path, build=build, cpuinfo=cpuinfo, shell=shell, before=tmp_path).run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


def test_the_command_gets_variables_whatever_their_names(tmp_path: Path) -> None:
    """As from Kubernetes; dash drops those that no shell can set (github.com/adoptium/containers, issue 415)."""
    (tmp_path / "cpuinfo").write_text(machine("rocky9-zen5").cpuinfo())
    (tmp_path / "start").write_text("echo of the host's\n")
    script = tmp_path / "entrypoint"
    script.write_text(entrypoint(image("avx")).replace(CPUINFO, str(tmp_path / "cpuinfo")))
    script.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "app.level": "1", "a-b": "2", "BASH_ENV": str(tmp_path / "start")}
    done = subprocess.run([script, "env"], capture_output=True, text=True, check=True, env=env)
    assert {"app.level=1", "a-b=2"} <= set(done.stdout.splitlines())
    assert "of the host's" not in done.stdout, "Apptainer hands its variables on"


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    guard = Guard(folder=tmp_path, build=image("avx"), cpuinfo=machine("rocky9-zen5").cpuinfo())
    assert guard.run("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
