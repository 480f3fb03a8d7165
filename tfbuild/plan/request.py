"""What to build, as users ask for it: an option is one field here, with all that is known of it.

Those that say how it is built are in `run_request.py`, in the same way. `tfbuild/util/options.py` explains what
stands beside a field. The command line, its help and the reference, the files
of options, the action's inputs, what is refused without a compile, a build's identifier and the command in its
Dockerfile are made of it. `tests/cli/test_options.py` goes over all fields.
"""

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tfbuild.facts import targets, toolchains
from tfbuild.util import options
from tfbuild.util.options import LOOKED_UP, TEXT, Identifier, option

COMPILER = "Compiler and flags"
SOURCE = "TensorFlow's source"
GPUS = "GPUs"
ENGINE = "Engine, base image and downloads"
# Values of --base that mean a row of facts/images.toml; everything else names an unknown image.
BASES = ("auto", "bootstrap", "registry")
BAZEL = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?(rc[0-9]{1,4})?(=.+)?")
# Only ASCII: letters that look like others would name an image or a config that nobody sees to be another one. A "-" in
# front would make the name an option of the program that gets it.
BASE = re.compile(
    r"[a-z0-9][\w.-]*(:\d+(?=/))?(/[\w.-]+)*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?", re.ASCII | re.IGNORECASE
)
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
FOLDER = r"(?:/[\w.+-]+)+"
# One folder for all, or one each.
CUDA_PATH = re.compile(rf"{FOLDER}(?:,{FOLDER},{FOLDER})?", re.ASCII)
CONFIG = re.compile(r"[\w.+,-]+", re.ASCII)


def _compiled(build: Any) -> bool:
    return bool(build.wheel.kind == "source")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build, as it was requested; empty means "choose for me". `select` makes a `Build` of it."""

    target: str = option(
        targets.default(),
        f"{targets.spelled(titles=True)} (default: {targets.default()})",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=attrgetter("target"),
        always=True,
    )
    release: str = option(
        "",
        "TensorFlow release, such as 2.21.0 or 2.21 (default: the newest one that fits the other options)",
        "VERSION",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=attrgetter("release"),
    )
    python: str = option(
        "",
        "Python of the image, such as 3.11 (default: the newest of the release that has a base image; "
        f"{toolchains.default_base().python} with --wheel official)",
        "VERSION",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=attrgetter("python"),
    )
    platform: str = option(
        "",
        "linux/amd64 or linux/arm64 (default: this machine's)",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=attrgetter("platform"),
    )
    cpu: str = option(
        "",
        "CPU to build for: host, a processor ('EPYC 7763'), a name (haswell), a level (x86-64-v3), features (avx2,fma) "
        "or a recorded file; "
        "host,exact also keeps the features that make no difference to TensorFlow",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=lambda build: build.instruction_set.option if _compiled(build) else "",
    )
    cpuinfo: str = option(
        "",
        "recorded CPU to use as `host`: /proc/cpuinfo, lscpu, sysctl -a, CPUID leaves or py-cpuinfo's JSON; - is stdin",
        "FILE",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=lambda build: "",  # --cpu has what was read from it
    )
    wheel: str = option(
        "",
        "official, or a wheel file (default: build from source)",
        pattern=LOOKED_UP,
        identifier=Identifier.WORD,
        written=lambda build: {"official": "official", "source": ""}.get(build.wheel.kind, build.wheel.requirement),
    )
    compiler: str = option(
        "",
        "compiler, such as gcc-12 or clang-18 (default: the best proven one that a base image of the release has)",
        group=COMPILER,
        pattern=LOOKED_UP,
        compiles=True,
        identifier=Identifier.WORD,
        written=lambda build: build.compiler if _compiled(build) else "",
    )
    prefer_vector_width: str = option(
        "",
        "vector width of loops that the compiler vectorises: 128, 256 or 512 bits (default: as measured)",
        "BITS",
        group=COMPILER,
        pattern=LOOKED_UP,
        compiles=True,
        identifier=Identifier.WORD,
        rare=True,
    )
    threading: str = option(
        "",
        "threading runtime of oneDNN in a build from source: openmp or threadpool",
        group=COMPILER,
        pattern=LOOKED_UP,
        compiles=True,
        identifier=Identifier.WORD,
        rare=True,
    )
    compute_capabilities: str = option(
        "",
        f"compute capabilities for {targets.options('cuda')}, such as 8.0,9.0 (default: the official wheel's)",
        "LIST",
        group=GPUS,
        pattern=LOOKED_UP,
        compiles=True,
    )
    cuda: str = option(
        "",
        "CUDA to compile with, such as 12.8 (default: the release's own, or one that supports the GPUs)",
        "VERSION",
        group=GPUS,
        pattern=LOOKED_UP,
        compiles=True,
        identifier=Identifier.WORD,
    )
    cudnn: str = option(
        "",
        "cuDNN to compile with, such as 9.8 (default: the release's own, or one that fits the CUDA version)",
        "VERSION",
        group=GPUS,
        pattern=LOOKED_UP,
        compiles=True,
        identifier=Identifier.WORD,
        rare=True,
    )
    cuda_path: str = option(
        "",
        "folder of the base image with a CUDA of your own, in place of the one that Bazel downloads (from 2.18 on); or "
        "three, with CUDA, cuDNN and NCCL",
        "FOLDER[,FOLDER,FOLDER]",
        group=GPUS,
        pattern=CUDA_PATH,
        what="one absolute path, or three",
        form="/usr/local/cuda, or /opt/cuda,/opt/cudnn,/opt/nccl",
        compiles=True,
        rare=True,
    )
    bazel: str = option(
        "",
        "Bazel version, such as 7.4.1 (default: the release's own), or VERSION=PATH: one of yours, an executable "
        "or the folder of an installation with bin/bazel",
        "VERSION[=PATH]",
        group=COMPILER,
        pattern=BAZEL,
        what="a Bazel version",
        form="7.4.1",
        compiles=True,
        written=lambda build: build.own_bazel.written if build.own_bazel else build.asked.bazel,
    )
    config: tuple[str, ...] = option(
        (),
        "another Bazel --config (repeatable)",
        "NAME",
        group=COMPILER,
        pattern=CONFIG,
        what="the name of a Bazel config",
        form="NAME; repeat it for each config",
        compiles=True,
    )
    bazel_flag: tuple[str, ...] = option(
        (), "another Bazel flag (repeatable)", group=COMPILER, pattern=TEXT, compiles=True
    )
    without_fix: tuple[str, ...] = option(
        (),
        "leave out this fix for a known failure; the plan lists them (repeatable)",
        "NAME",
        group=COMPILER,
        pattern=LOOKED_UP,
        compiles=True,
        rare=True,
    )
    source: str = option(
        "",
        "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)",
        "PATH",
        group=SOURCE,
        pattern=TEXT,
        compiles=True,
        written=lambda build: build.source.path.name if build.source and build.source.path else "",
    )
    source_sha256: str = option(
        "",
        "expected SHA-256 of the archive given as --source",
        "HEX",
        group=SOURCE,
        pattern=SHA256,
        what="a SHA-256",
        form="64 hexadecimal digits",
        compiles=True,
        identifier=Identifier.NEUTRAL,  # it only checks the source
        rare=True,
    )
    patch: tuple[str, ...] = option(
        (),
        "unified diff to apply to TensorFlow's tree (repeatable, applied in order)",
        "FILE",
        group=SOURCE,
        pattern=TEXT,
        compiles=True,
        written=lambda build: tuple(row.path.name for row in build.patches),
    )
    override_repository: tuple[str, ...] = option(
        (),
        "NAME=FOLDER, a folder that replaces an external repository (repeatable)",
        "NAME=FOLDER",
        group=SOURCE,
        pattern=TEXT,
        compiles=True,
        written=lambda build: tuple(f"{row.name}={row.path.name}" for row in build.overrides),
        rare=True,
    )
    system_lib: tuple[str, ...] = option(
        (),
        "library to take from the system: curl, or NAME=PACKAGE,PACKAGE (repeatable)",
        "NAME",
        group=SOURCE,
        pattern=LOOKED_UP,
        compiles=True,
        rare=True,
    )
    configure: tuple[str, ...] = option(
        (),
        "NAME=VALUE, an answer for configure.py, such as TF_ENABLE_XLA=0 (repeatable)",
        "NAME=VALUE",
        group=COMPILER,
        pattern=TEXT,
        compiles=True,
    )
    base: str = option(
        "auto",
        "base image: registry, bootstrap (by mmdebstrap), auto (registry, else bootstrap), or an image's name",
        "IMAGE",
        group=ENGINE,
        pattern=BASE,
        what="an image's name",
        form=f"{', '.join(BASES)} or NAME[:TAG][@DIGEST]",
        identifier=Identifier.NEUTRAL,  # labels name it, and the image's key has its digest
        written=lambda build: build.asked.base if build.asked.base not in BASES else "auto",
    )
    with_headers: bool = option(
        False,
        "keep TensorFlow's headers, so that custom ops can be compiled",
        group=SOURCE,
        identifier=Identifier.WORD,
        written=attrgetter("with_headers"),
    )


def fingerprint(request: Request, **replaced: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the word of the identifier for all options that have none of their own; () where none is given.

    `replaced`: by an option's field, what stands for its value: "" for what the release has anyway, a file's digest.
    """
    parts = []
    for name, row, value in options.given(request):
        if row.identifier is Identifier.FINGERPRINT:
            texts = options.texts(replaced.get(name.replace("-", "_"), value))
            parts += [name] if row.switch else [f"{name}={text}" for text in texts if text]
    if not parts:
        return ()
    import hashlib

    return (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8],)
