"""The options that verbs share, and what they stand for: requests, runs, CPUs, certificates, registries."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import UnknownCpu, UsageError
from tfbuild.facts import targets
from tfbuild.plan import Request

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tfbuild.engine import Engine
    from tfbuild.oci.client import Registry
    from tfbuild.pipeline.run import Run

# The checkout, with its docs/ and dockerfiles/.
ROOT = Path(__file__).parents[2]
REPORTS = Path("reports")
T = TypeVar("T", bound="DataclassInstance")

# Default and help of each option by its name, in the order of `invoke --help VERB`. Invoke takes an option's type from
# its default and ignores annotations.
Options = Mapping[str, tuple[Any, str]]

# Of every verb that plans.
PLAN: Options = {
    "target": (targets.default(), targets.spelled(titles=True)),
    "release": ("", "TensorFlow release, 2.21.0 or 2.21 (default: the newest that plans)"),
    "python": ("", "Python of the image, 3.11 (default: the newest of the release that a base image has)"),
    "cpu": ("", "the image's CPU: host, a level (x86-64-v3), a name (haswell), a list (avx2,fma) or a recorded file"),
    "cpuinfo": ("", "read `host` from this recording (/proc/cpuinfo, sysctl -a, CPUID leaves, py-cpuinfo's JSON)"),
    "compiler": ("", "gcc-12, clang-18 (default: the surest for the release that a base image has)"),
    "prefer-vector-width": ("", "128, 256 or 512 bits, for loops that the compiler vectorises (default: measured)"),
    "platform": ("", "linux/amd64 or linux/arm64 (default: this machine's)"),
    "wheel": ("", "official, or a wheel file (default: build from source)"),
    "source": ("", "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)"),
    "source-sha256": ("", "what the archive given as --source must have"),
    "threading": ("", "openmp or threadpool, for oneDNN in a build from source"),
    "compute-capabilities": (
        "",
        f"of the GPUs that {targets.options('cuda')} is for: 8.0,9.0 (default: the official wheel's)",
    ),
    "cuda": ("", "CUDA to compile with, 12.8 (default: the release's own, or one that compiles for the GPUs)"),
    "cudnn": ("", "cuDNN to compile with, 9.8 (default: the release's own, or one that goes with the CUDA)"),
    "bazel": ("", "force this Bazel version"),
    "config": ([], "one more Bazel --config (again for more)"),
    "bazel-flag": ([], "one more Bazel flag (again for more)"),
    "patch": ([], "a unified diff for TensorFlow's tree (again for more, in their order)"),
    "override-repository": ([], "NAME=FOLDER in place of an external repository (again for more)"),
    "system-lib": ([], "take this library from the system: curl, or NAME=PACKAGE,PACKAGE (again for more)"),
    "configure": ([], "NAME=VALUE, an answer for configure.py: TF_ENABLE_XLA=0 (again for more)"),
    "without-fix": ([], "leave out this fix for a known failure, which the plan names (again for more)"),
    "with-headers": (False, "keep TensorFlow's headers, so that custom ops can be compiled"),
}
TIMED: Options = {
    "no-throughput": (False, "verify without the comparison of speed, half a minute; the report says so"),
}
JSON: Options = {"json": (False, "print JSON to stdout")}
ENGINE: Options = {
    "engine": ("", "another engine: ssh://HOST, tcp://HOST:PORT or a Docker context (default: the client's own)"),
    "builder": ("", "a buildx builder by its name, for the build itself (default: the engine's own)"),
}
MAKE: Options = {
    **ENGINE,
    "base": ("auto", "auto (a registry, else bootstrap), bootstrap (mmdebstrap), registry, or an image's name"),
    "ca-cert": ("", "a company's CA certificates in PEM (default: SSL_CERT_FILE, when set)"),
    "mirror": ("", "a bundle's folder, or a URL: what is at https://HOST/PATH is asked for at URL/HOST/PATH"),
    "network": ("", "of the build's steps: host, none or default"),
}
COMPILE: Options = {
    "jobs": ("", "actions that Bazel runs at once (default: by processors and memory)"),
    "time-limit": ("", "5h30m: then the compile stops, keeps its cache and leaves with code 75"),
    "need-disk": ("", "gigabytes that must be free; 0: do not look (default: 86 for a compile)"),
    "remote-cache": ("", "grpc://HOST:PORT, grpcs://, http:// or https://: a Bazel cache that machines share"),
    "remote-executor": ("", "grpc://HOST:PORT or grpcs://: runs actions elsewhere (then give --jobs too)"),
    "remote-instance": ("", "the instance's name there, where it has one"),
    "remote-header-file": ("", "file of NAME=VALUE lines: headers that hold credentials"),
    "remote-client-cert": ("", "PEM file to be known by there (with --remote-client-key)"),
    "remote-client-key": ("", "its key"),
    "remote-property": ([], "NAME=VALUE that the executor chooses workers by (again for more)"),
    "remote-readonly": (False, "take from the remote cache, put nothing there (for untrusted jobs)"),
    "no-cache": (False, "build every stage again (downloads and Bazel's cache stay where BuildKit keeps them)"),
}
REGISTRY: Options = {
    "registry": ("", "the repository: HOST/PATH, ghcr.io/us/tfbuild (default: TFBUILD_REGISTRY, when set)"),
    "ca-cert": MAKE["ca-cert"],
}


def host_cpu(cpuinfo: str) -> Cpu | None:
    """Return the CPU that "host" means; None where this machine's cannot be read (then only --cpu host is refused)."""
    if cpuinfo:
        return detect_cpu(Path(cpuinfo))
    try:
        return detect_cpu()
    except UnknownCpu:
        return None


def request_of(options: Mapping[str, Any]) -> Request:
    """Return what the planning options ask for."""
    return fill(Request, options)


def run_of(options: Mapping[str, Any]) -> "Run":
    """Return what the other options of the verbs that make images ask for."""
    from tfbuild.pipeline import run

    return run.run_of(fill(run.RunRequest, options), certificates(options["ca_cert"]))


def engine_of(name: str) -> "Engine":
    """Connect to the engine that --engine names; raises EngineMissing where none answers."""
    from tfbuild.engine import Engine, selection

    return Engine.connect(chosen=selection.choose(name))


def fill(kind: type[T], options: Mapping[str, Any]) -> T:
    """Make a dataclass of those options that are its fields; Invoke has lists, it has tuples."""
    known = {field.name: options[field.name] for field in fields(kind) if field.name in options}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in known.items()})


def certificates(given: str) -> Path | None:
    """Return the CA file for the engine: --ca-cert, else SSL_CERT_FILE where set; raises UsageError for no file."""
    name = given or os.environ.get("SSL_CERT_FILE", "")
    path = Path(name) if name else None
    if path is not None and not path.is_file():
        raise UsageError(f"no CA certificates at {path}", hint="--ca-cert FILE or SSL_CERT_FILE must name a PEM file")
    return path


def registry_of(given: str, ca_cert: str) -> "Registry":
    """Return the registry that is named by --registry or TFBUILD_REGISTRY; raises UsageError where none is."""
    from tfbuild.oci.client import Registry, Repository

    name = given or os.environ.get("TFBUILD_REGISTRY", "")
    if not name:
        raise UsageError("no registry is named", hint="--registry HOST/PATH, or TFBUILD_REGISTRY")
    return Registry(Repository.parse(name), ca=certificates(ca_cert))
