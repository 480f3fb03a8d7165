"""Compile on this machine itself, without a container: the builder's scripts, below a folder in place of a root.

That folder, build/host/RELEASE, has what a builder has: /mnt with what a step mounts, /opt, /src, and what is kept:
/mnt/cache, and Bazel's files in /var/tmp. Its path is in the keys of Bazel's caches, so that all builds of a release
share it.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.context import dockerfile
from tfbuild.engine import faults
from tfbuild.engine.build import PROXIES, BuildSettings, failure
from tfbuild.errors import UsageError
from tfbuild.pipeline import machine as machines
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.compiling import Builder, run_builder
from tfbuild.pipeline.machine import HostSystem
from tfbuild.pipeline.maker import OUTPUT_HINT, Maker, needed_disk
from tfbuild.pipeline.run import Run
from tfbuild.pipeline.wheel import Exported
from tfbuild.plan import BUILD_PYTHON, OVERRIDES, Build, source
from tfbuild.util import files, process
from tfbuild.util.progress import Progress, Step

# The system's programs. What else a compile needs of PATH is linked to, so that another PATH changes no cache's key.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MORE_SPACE = "free some space, or run in a folder on another disk; --need-disk changes the limit"
LAST_LINES = 20


def wheel(build: Build, machine: HostSystem, run: Run, output: Path, progress: Progress) -> Exported:
    """Compile the wheel here, and write it with its sidecar to `output`.

    Raises Unsupported if this machine lacks a program or package, and what a compile in a container raises.
    """
    machines.require(build, machine)
    wheels.check_output(output, build)
    maker = Maker(run=run, progress=progress)
    root = (run.work / "host" / build.release).resolve()
    with maker.locked(build, root):
        context = maker.render(build)
        host = LocalBuilder(build=build, machine=machine, root=root)
        faults.require_free(root, needed_disk(build, image=False) if run.disk is None else run.disk, MORE_SPACE)
        scratch = run.work / build.id / "wheel"
        with files.writing(scratch.parent):
            files.remove(scratch)
        log = run.work / build.id / "build.log"
        process.discard(log)
        here = Builder(
            make=host.make,
            cpus=len(os.sched_getaffinity(0)),
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            data_root=root,
            where="this machine",
            reach="",
            free_disk="free some space",
            empty_caches=f"rm -r {root}/cache",
        )
        settings = BuildSettings(log=log, progress=progress, stage="export", output=scratch, no_cache=run.no_cache)
        run_builder(here, build, run, context.folder, settings)
        with files.writing(output, OUTPUT_HINT):
            return wheels.collect(build, scratch, output, progress, context=context.digest, host=host.described())


# --- the steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LocalBuilder:
    """Builds the context of `build` on this machine, as an engine would; `root`: in place of a builder's /."""

    build: Build
    machine: HostSystem
    root: Path

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w./+@-]+", str(self.root), re.ASCII):
            raise UsageError(f"Bazel cannot run in the path {self.root}", hint="use letters, digits and /._+@-")

    def described(self) -> dict[str, str]:
        """Return what a container would have pinned, for the sidecar."""
        return {
            "system": self.machine.system,
            "glibc": self.machine.glibc,
            "python": self.machine.pythons[self.build.python].version,
            "python_path": self.machine.pythons[self.build.python].path,
            "compiler_path": self.machine.compilers[self.build.compiler],
        }

    def make(self, context: Path, settings: BuildSettings) -> None:
        """Do the builder's steps and move the wheel to the output, or copy Bazel's own files of the last run there."""
        assert settings.output is not None
        if settings.stage == "kept":
            shutil.copytree(self.root / "cache/runs" / source.digest(self.root / "mnt/bazelrc"), settings.output)
            return
        end = None if settings.seconds is None else time.monotonic() + settings.seconds
        self.end_bazel()
        with files.writing(self.root):
            self._lay_out(context, settings)
        try:
            for name, words in self._steps():
                left = None if end is None else end - time.monotonic()
                with settings.progress.step(f"build: {name}") as shown:
                    self._run(words, replace(settings, seconds=left), shown)
        finally:
            self.end_bazel()
            for file in (self.root / "mnt/all.bazelrc", *(self.root / "var/tmp/bazel").glob("*/*.log*")):
                files.remove(file)
        shutil.move(self.root / "wheel", settings.output)

    def _steps(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the builder's steps, as its Dockerfile has them: their names, and a script with its arguments."""
        build, toolchain = self.build, self.build.toolchain
        assert toolchain is not None
        assert build.source is not None
        python = self.machine.pythons[build.python].path
        yield "toolchain", ["toolchain.sh", "bazel", python, build.bazel, *toolchain.bazelisk]
        git = ["git", build.source.tag, build.source.commit] if build.source.kind == "git" else ["archive"]
        yield "source", ["source.sh", *git]
        collect = shlex.split(dockerfile.collect(build.bazel_target, f"{self.root}/wheel"))
        yield "build", ["compile.sh", build.usual_id, build.bazel_target, *collect]

    def _lay_out(self, context: Path, settings: BuildSettings) -> None:
        """Write what a builder's steps mount, and the folders that they expect; of earlier runs, Bazel's files stay."""
        mnt = self.root / "mnt"
        for name in ("mnt", "etc", "home", "bin", "usr", "opt", "src", "tmp", "wheel"):
            self._discard(name)
        if settings.no_cache:
            self._discard("var")
        for name in ("mnt", "etc", "home", "bin", "usr/local/bin", "opt/tfbuild", "var/tmp", "tmp", "cache"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        # Bazel's flags get a remote's credentials there, and its logs list them, and the passwords of proxies.
        self.root.chmod(0o700)
        (mnt / "cache").symlink_to("../cache")
        for script in (context / dockerfile.SCRIPTS).iterdir():
            (mnt / script.name).symlink_to(script.resolve())
        for name in ("requirements.txt", "constraints.txt", "fixes", "patches", "overrides", "bazel", "source"):
            if (context / name).exists():
                (mnt / name).symlink_to((context / name).resolve())
        (mnt / "bazelrc").write_text(self._placed((context / "bazelrc").read_text(encoding="utf-8")))
        for name, path in settings.secrets.items():
            (mnt / name).symlink_to(path.resolve())
        if "remote" in settings.secrets:
            text = settings.secrets["remote"].read_text(encoding="utf-8")
            settings.secrets["remote"].write_text(self._placed(text))
        (self.root / "home/.gitconfig").symlink_to("../etc/gitconfig")
        # Bazel's server would write into /tmp, and its sandbox let no compiler write its temporary files.
        (self.root / "home/.bazelrc").write_text(
            "startup --host_jvm_args=-XX:-UsePerfData\n"
            f"startup --host_jvm_args=-Djava.io.tmpdir={self.root}/tmp\n"
            f"build --sandbox_writable_path={self.root}/tmp\n"
        )
        self._link_programs()

    def _link_programs(self) -> None:
        assert self.build.toolchain is not None
        for program in map(machines.program_of, self.build.toolchain.packages):
            if program and not shutil.which(Path(program).name, path=PATH):
                (self.root / "bin" / Path(program).name).symlink_to(program)

    def _placed(self, text: str) -> str:
        """Return a text of the build with this machine's paths in place of a builder's."""
        own = {f"/usr/bin/{self.build.compiler}": self.machine.compilers[self.build.compiler]}
        places = {name: f"{self.root}{name}" for name in (BUILD_PYTHON, f"{OVERRIDES}/", "/mnt/remote-")} | own
        # At once: the root itself may contain one of them.
        return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)

    @property
    def _environment(self) -> dict[str, str]:
        """The environment of all steps: nothing of the user's but the proxies, as in a container."""
        return {
            **{name: value for name, value in os.environ.items() if name in PROXIES},
            "PATH": f"{self.root}/usr/local/bin:{self.root}/bin:{PATH}",
            "HOME": f"{self.root}/home",
            "TMPDIR": f"{self.root}/tmp",
            "LANG": "C.UTF-8",
            "USER": "tfbuild",
            "GIT_CEILING_DIRECTORIES": str(self.root),
            "GIT_CONFIG_SYSTEM": f"{self.root}/etc/gitconfig",
            "TFBUILD_ROOT": str(self.root),
            "TFBUILD_PROGRAMS": _programs(self.machine, self.build.compiler),
            **{name: self._placed(value) for name, value in dockerfile.configure(self.build)},
        }

    def _discard(self, name: str) -> None:
        """Remove a folder of `root`, even if Bazel made folders in it read-only."""
        path = self.root / name
        if path.is_dir():
            writable = ["-type", "d", "!", "-perm", "-200", "-exec", "chmod", "u+w", "{}", "+"]
            subprocess.run(["find", path, *writable], check=False)
        files.remove(path)

    def _run(self, words: Sequence[str], settings: BuildSettings, step: Step) -> None:
        script, *arguments = words
        last: deque[str] = deque(maxlen=LAST_LINES)

        def read(line: str) -> None:
            line = line.rstrip("\n")
            last.append(line)
            settings.watch(step, line)

        command = ["sh", f"{self.root}/mnt/{script}", *arguments]
        env = {**self._environment, **settings.build_args}
        code = process.logged(command, env, settings.log, read, settings.seconds)
        if code:
            lines = [line for line in last if line.strip()]
            raise failure(lines, settings.log, what="the wheel could not be compiled", free="free some space")

    def end_bazel(self) -> None:
        """End Bazel's server, which outlives the script that started it, however that ended."""
        for file in (self.root / "var/tmp/bazel").glob("*/server/server.pid.txt"):
            with suppress(OSError, ValueError):
                pid = int(file.read_text())
                # Ids are reused; a process that has ended has no command line.
                while str(self.root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(0.05)


def _programs(machine: HostSystem, compiler: str) -> str:
    """Return the versions of what compiles but is not in Debian's packages: "" where all of it is."""
    own = machine.compilers[compiler]
    if machine.apt and own.startswith("/usr/bin/"):
        return ""
    # Clang takes C++'s own headers from GCC.
    programs = [own, *filter(None, map(shutil.which, ("gcc", "ld", "ld.lld")))]
    versions = [process.printed([program, "--version"]).partition("\n")[0] for program in programs]
    return ", ".join([*versions, f"glibc {machine.glibc}"])
