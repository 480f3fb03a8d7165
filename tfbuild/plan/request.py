"""What to build and how, as users ask for it: an option is one field here, with all that is known of it.

`tfbuild/util/options.py` explains what can be declared beside a field. The command line, its help and the reference,
the files of options, the action's inputs, what is refused without a compile, a build's identifier and the command in
its Dockerfile derive from it. `tests/cli/test_options.py` goes over all fields.
"""

import re
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from tfbuild.facts import targets, toolchains
from tfbuild.util.options import LOOKED_UP, TEXT, Option, Options, option

COMPILER = "Compiler and flags"
SOURCE = "TensorFlow's source"
GPUS = "GPUs"
ENGINE = "Engine, base image and downloads"
RESOURCES = "Time, disk and memory"
REMOTE = "Remote cache and execution"
IMAGE = "Verification and reuse"
# Values of --base that mean a row of facts/images.toml; everything else names an unknown image.
BASES = ("auto", "bootstrap", "registry")
BAZEL = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}(\.[0-9]{1,4})?(rc[0-9]{1,4})?(=.+)?")
# What every engine takes for an image's name (github.com/distribution/reference, regexp.go, v0.6.0): only tags and
# hosts have capitals, and a host without a port has a dot. Only ASCII: letters that look like others would name an
# image that nobody sees to be another one.
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:(?:\.{_LABEL})+(?::\d+)?|:\d+)"
IMAGE_NAME = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
CONFIG = re.compile(r"[\w.+,-]+", re.ASCII)
VERSION = re.compile(r"\d{1,2}\.\d{1,2}(\.\d{1,3}){0,2}", re.ASCII)
# Bazel accepts such names of repositories (https://bazel.build/rules/lib/globals/workspace).
OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=.+")
ANSWER = re.compile(r"[A-Z][A-Z0-9_]*=.*")
INSTANCE = re.compile(r"[A-Za-z0-9._/-]*")
# Printable ASCII except for what is syntax inside quotes in Bazel's files.
PROPERTY = re.compile(r"[A-Za-z0-9._-]+=[!-&(-\[\]-~]+")


_chosen = partial(option, pattern=LOOKED_UP, identifier="word")
# Options that only a compile uses, by their group.
_compiler = partial(option, group=COMPILER, compiles=True)
_gpus = partial(option, group=GPUS, compiles=True)
_compiler_word = partial(option, group=COMPILER, compiles=True, pattern=LOOKED_UP, identifier="word")
_gpu_version = partial(option, group=GPUS, compiles=True, pattern=VERSION, identifier="word")
_source = partial(option, group=SOURCE, compiles=True)
_remote = partial(option, group=REMOTE, compiles=True, pattern=TEXT)
_engine = partial(option, group=ENGINE, pattern=TEXT)
_resource = partial(option, group=RESOURCES, pattern=LOOKED_UP)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to build, as it was requested; empty means "choose for me". `select` makes a `Build` of it."""

    target: str = _chosen(
        targets.default(),
        f"{targets.spelled()} (default: {targets.default()})",
        written=attrgetter("target"),
        always=True,
    )
    release: str = _chosen(
        "",
        "TensorFlow release, such as 2.21.0 or 2.21 (default: the newest one that fits the other options)",
        "VERSION",
        written=attrgetter("release"),
    )
    python: str = _chosen(
        "",
        "Python of the image, such as 3.11 (default: the newest of the release that has a base image; "
        f"{toolchains.default_base().python} with --wheel official)",
        "VERSION",
        written=attrgetter("python"),
    )
    platform: str = _chosen(
        "",
        "linux/amd64 or linux/arm64 (default: this machine's)",
        written=attrgetter("platform"),
    )
    cpu: str = _chosen(
        "",
        "CPU to build for: host, a processor ('EPYC 7763'), a name (haswell), a level (x86-64-v3), features (avx2,fma) "
        "or a recorded file; "
        "host,exact also keeps the features that make no difference to TensorFlow",
        written=lambda build: build.instruction_set.option if build.wheel.kind == "source" else "",
    )
    cpuinfo: str = _chosen(
        "",
        "recorded CPU to use as `host`: /proc/cpuinfo, lscpu or py-cpuinfo's JSON; - is stdin",
        "FILE",
        written=lambda build: "",  # --cpu has what was read from it
    )
    wheel: str = _chosen(
        "",
        "official, a wheel file, or index:URL for the best wheel of an index (default: build from source)",
        written=lambda build: {"official": "official", "source": ""}.get(build.wheel.kind, build.wheel.requirement),
    )
    compiler: str = _compiler_word(
        "",
        "compiler, such as gcc-12 or clang-18 (default: the best proven one that a base image of the release has)",
        written=lambda build: build.compiler if build.wheel.kind == "source" else "",
    )
    prefer_vector_width: str = _compiler_word(
        "",
        "vector width of loops that the compiler vectorises: 128, 256 or 512 bits (default: as measured)",
        "BITS",
        rare=True,
    )
    threading: str = _compiler_word(
        "",
        "threading runtime of oneDNN in a build from source: openmp or threadpool",
        rare=True,
    )
    compute_capabilities: str = _gpus(
        "",
        f"compute capabilities for {targets.choosing('cuda')}, such as 8.0,9.0 (default: the official wheel's)",
        "LIST",
        pattern=LOOKED_UP,
    )
    cuda: str = _gpu_version(
        "",
        "CUDA to compile with, such as 12.8 (default: the release's own, or one that supports the GPUs)",
        "VERSION",
        what="a CUDA version",
        form="12.8 or 13.0",
    )
    cudnn: str = _gpu_version(
        "",
        "cuDNN to compile with, such as 9.8 (default: the release's own, or one that fits the CUDA version)",
        "VERSION",
        what="a cuDNN version",
        form="9.8",
        rare=True,
    )
    bazel: str = _compiler(
        "",
        "Bazel version, such as 7.4.1 (default: the release's own), or VERSION=PATH: your own, an executable or an "
        "installation folder with bin/bazel",
        "VERSION[=PATH]",
        pattern=BAZEL,
        what="a Bazel version",
        form="7.4.1, or 7.4.1=PATH for your own",
        written=lambda build: (
            f"{build.bazel}={build.own_bazel.absolute().name}" if build.own_bazel else build.request.bazel
        ),
    )
    config: tuple[str, ...] = _compiler(
        (),
        "another Bazel --config (repeatable)",
        "NAME",
        pattern=CONFIG,
        what="the name of a Bazel config",
        form="NAME; repeat it for each config",
    )
    bazel_flag: tuple[str, ...] = _compiler((), "another Bazel flag (repeatable)", pattern=TEXT)
    bolt: bool = _compiler(
        False,
        "optimize the layout of TensorFlow's core library with LLVM's BOLT, which runs a program on the compiled code",
        identifier="word",
        rare=True,
    )
    without_fix: tuple[str, ...] = _compiler(
        (),
        "leave out this fix for a known failure; the plan lists the fixes (repeatable)",
        "NAME",
        pattern=LOOKED_UP,
        rare=True,
    )
    source: str = _source(
        "",
        "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)",
        "PATH",
        pattern=TEXT,
        written=lambda build: build.source.path.absolute().name if build.source and build.source.path else "",
    )
    source_sha256: str = _source(
        "",
        "expected SHA-256 of the archive given as --source",
        "HEX",
        pattern=re.compile(r"[0-9a-fA-F]{64}"),
        what="a SHA-256",
        form="HEX, of 64 digits",
        identifier="neutral",  # it only checks the source
        rare=True,
    )
    patch: tuple[str, ...] = _source(
        (),
        "unified diff to apply to TensorFlow's tree (repeatable, applied in order)",
        "FILE",
        pattern=TEXT,
        written=lambda build: tuple(row.path.name for row in build.patches),
    )
    override_repository: tuple[str, ...] = _source(
        (),
        "NAME=FOLDER, a folder that replaces an external repository (repeatable)",
        "NAME=FOLDER",
        pattern=OVERRIDE,
        what="NAME=FOLDER",
        form="eigen_archive=../eigen",
        written=lambda build: tuple(f"{row.name}={row.path.absolute().name}" for row in build.overrides),
        rare=True,
    )
    hermetic_python: str = _source(
        "",
        "archive of the Python that Bazel builds with, in place of the one that it downloads",
        "FILE",
        pattern=TEXT,
        written=lambda build: build.hermetic_python.path.name if build.hermetic_python else "",
        rare=True,
    )
    system_lib: tuple[str, ...] = _source(
        (),
        "library to take from the system: curl, or NAME=PACKAGE,PACKAGE (repeatable)",
        "NAME",
        pattern=LOOKED_UP,
        rare=True,
    )
    configure: tuple[str, ...] = _compiler(
        (),
        "NAME=VALUE, an answer for configure.py, such as TF_ENABLE_XLA=0 (repeatable)",
        "NAME=VALUE",
        pattern=ANSWER,
        what="NAME=VALUE",
        form="TF_ENABLE_XLA=0",
    )
    base: str = option(
        "auto",
        "base image: registry, bootstrap (by mmdebstrap), an image's name, or auto (default: registry, else bootstrap)",
        "IMAGE",
        group=ENGINE,
        pattern=IMAGE_NAME,
        what="an image's name",
        form=f"{', '.join(BASES)} or NAME[:TAG][@sha256:DIGEST], with capitals only in TAG",
        identifier="neutral",  # labels name it, and the image's key has its digest
        written=lambda build: build.request.base if build.request.base not in BASES else "auto",
    )
    with_headers: bool = option(
        False,
        "keep TensorFlow's headers, so that custom ops can be compiled",
        group=SOURCE,
        identifier="word",
        written=attrgetter("with_headers"),
    )


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """How to build it, as it was requested, in the order in which messages name the options.

    `tfbuild.pipeline.run.run_of` makes a `Run` of it. Nothing here reaches the image, or its identifier.
    """

    engine: str = _engine(
        "",
        "container engine: ssh://HOST, tcp://HOST:PORT or a Docker context (default: Docker's current one)",
        "ADDRESS",
    )
    ca_cert: str = _engine("", "PEM file with a company's CA certificates (default: SSL_CERT_FILE, when set)", "FILE")
    mirror: str = _engine(
        "",
        "where to download from: a bundle's file, or a URL that serves https://HOST/PATH at URL/HOST/PATH",
        "FILE|URL",
    )
    network: str = _engine("", "network of the build's steps: host, none or default")
    jobs: str = _resource(
        "",
        "number of actions that Bazel runs at once (default: derived from processors and memory)",
        "N",
        compiles=True,
    )
    time_limit: str = _resource(
        "",
        "stop the compile after this time, such as 5h30m, keep its cache and exit with code 75",
        "TIME",
        compiles=True,
    )
    need_disk: str = _resource(
        "", "gigabytes that must be free; 0 skips the check (default: depends on the release)", "GB"
    )
    remote_cache: str = _remote(
        "", "Bazel cache shared by machines: grpc://HOST:PORT, grpcs://, http:// or https://", "URL"
    )
    remote_executor: str = _remote(
        "",
        "run actions remotely: grpc://HOST:PORT or grpcs:// (set --jobs to as many as its workers take at once)",
        "URL",
        rare=True,
    )
    remote_instance: str = _remote(
        "",
        "instance name at the remote cache or executor, if it has one",
        "NAME",
        pattern=INSTANCE,
        what="an instance name",
        form="main",
        rare=True,
    )
    remote_header_file: str = _remote("", "file of NAME=VALUE lines: headers with credentials", "FILE")
    remote_client_cert: str = _remote(
        "", "PEM file with the client certificate (with remote-client-key)", "FILE", rare=True
    )
    remote_client_key: str = _remote("", "PEM file with the key of remote-client-cert", "FILE", rare=True)
    remote_property: tuple[str, ...] = _remote(
        (),
        "NAME=VALUE, by which the executor chooses workers (repeatable)",
        "NAME=VALUE",
        pattern=PROPERTY,
        what="NAME=VALUE for an executor",
        form="container-image=docker://...",
        rare=True,
    )
    remote_fallback: str = _remote(
        "yes",
        "no: actions that the executor cannot run are errors, and are not run locally (default: yes)",
        "yes|no",
        pattern=re.compile("yes|no"),
        what="yes or no",
        form="no",
        rare=True,
    )
    remote_readonly: bool = _remote(
        False, "read the remote cache, but write nothing to it (for untrusted jobs)", rare=True
    )
    no_cache: bool = option(
        False,
        "rebuild every stage, on today's base image (newer BuildKits also start with an empty Bazel cache)",
        group=RESOURCES,
    )
    reverify: bool = option(False, "verify again, even though nothing changed since the stored report", group=IMAGE)
    no_verify: bool = option(False, "only build; the image is named IDENTIFIER-unverified", group=IMAGE)
    no_throughput: bool = option(
        False, "skip the speed comparison, which takes half a minute; the report says so", group=IMAGE
    )
    reuse: str = option(
        "",
        "take TensorFlow from this image, built earlier from the same context, or from this wheel, compiled earlier by "
        "the same plan (`invoke wheel`): nothing is compiled",
        "IMAGE",
        group=IMAGE,
        pattern=TEXT,
    )


# How to compile only a wheel: what `wheel` and `plan` have in addition to the options of `RunRequest`.
WHEEL_OPTIONS: Options = {
    "no-container": Option(False, "compile on this machine itself (Linux), without a container engine and without root")
}
