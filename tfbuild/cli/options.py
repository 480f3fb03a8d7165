"""The options that verbs share, and the values that they become: requests, runs, CPUs, certificates, registries."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfbuild.cli.output import say
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import UnknownCpu, UsageError
from tfbuild.facts import base_images, targets
from tfbuild.plan import Request
from tfbuild.util import installation
from tfbuild.util.files import absence

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tfbuild.engine import Engine
    from tfbuild.oci.client import Registry
    from tfbuild.pipeline.run import Run

# The checkout, with its docs/ and dockerfiles/. An installed tfbuild has none: see needs_clone().
ROOT = Path(__file__).parents[2]
T = TypeVar("T", bound="DataclassInstance")

# Default and help of each option by its name, in the order of `invoke --help VERB`. Invoke takes an option's type from
# its default and ignores annotations.
Options = Mapping[str, tuple[Any, str]]

# Options of every verb that plans.
PLAN: Options = {
    "target": (targets.default(), f"{targets.spelled(titles=True)} (default: {targets.default()})"),
    "release": ("", "TensorFlow release, such as 2.21.0 or 2.21 (default: the newest one that fits the other options)"),
    "python": (
        "",
        "Python of the image, such as 3.11 (default: the newest of the release that has a base image; "
        f"{base_images.default().python} with --wheel official)",
    ),
    "cpu": (
        "",
        "CPU to build for: host, a level (x86-64-v3), a name (haswell), features (avx2,fma) or a recorded file; "
        "host,exact also keeps the features that make no difference to TensorFlow",
    ),
    "cpuinfo": ("", "recorded CPU to use as `host` (/proc/cpuinfo, sysctl -a, CPUID leaves or py-cpuinfo's JSON)"),
    "compiler": (
        "",
        "compiler, such as gcc-12 or clang-18 (default: the best proven one that a base image of the release has)",
    ),
    "prefer-vector-width": (
        "",
        "vector width of loops that the compiler vectorises: 128, 256 or 512 bits (default: as measured)",
    ),
    "platform": ("", "linux/amd64 or linux/arm64 (default: this machine's)"),
    "wheel": ("", "official, or a wheel file (default: build from source)"),
    "source": ("", "TensorFlow's source: a tree, or an archive (default: the release's tag on GitHub)"),
    "source-sha256": ("", "expected SHA-256 of the archive given as --source"),
    "threading": ("", "threading runtime of oneDNN in a build from source: openmp or threadpool"),
    "compute-capabilities": (
        "",
        f"compute capabilities for {targets.options('cuda')}, such as 8.0,9.0 (default: the official wheel's)",
    ),
    "cuda": ("", "CUDA to compile with, such as 12.8 (default: the release's own, or one that supports the GPUs)"),
    "cudnn": ("", "cuDNN to compile with, such as 9.8 (default: the release's own, or one that fits the CUDA version)"),
    "bazel": ("", "Bazel version, such as 7.4.1 (default: the release's own)"),
    "config": ([], "another Bazel --config (repeatable)"),
    "bazel-flag": ([], "another Bazel flag (repeatable)"),
    "patch": ([], "unified diff to apply to TensorFlow's tree (repeatable, applied in order)"),
    "override-repository": ([], "NAME=FOLDER, a folder that replaces an external repository (repeatable)"),
    "system-lib": ([], "library to take from the system: curl, or NAME=PACKAGE,PACKAGE (repeatable)"),
    "configure": ([], "NAME=VALUE, an answer for configure.py, such as TF_ENABLE_XLA=0 (repeatable)"),
    "without-fix": ([], "leave out this fix for a known failure; the plan lists them (repeatable)"),
    "with-headers": (False, "keep TensorFlow's headers, so that custom ops can be compiled"),
}
TIMED: Options = {
    "no-throughput": (False, "skip the speed comparison, which takes half a minute; the report says so"),
}
JSON: Options = {"json": (False, "print JSON to stdout")}
ENGINE: Options = {
    "engine": ("", "container engine: ssh://HOST, tcp://HOST:PORT or a Docker context (default: Docker's current one)"),
    "builder": ("", "name of a buildx builder for the build itself (default: the engine's own)"),
}
MAKE: Options = {
    **ENGINE,
    "base": (
        "auto",
        "base image: registry, bootstrap (by mmdebstrap), auto (registry, else bootstrap), or an image's name",
    ),
    "ca-cert": ("", "PEM file with a company's CA certificates (default: SSL_CERT_FILE, when set)"),
    "mirror": (
        "",
        "where to download from: a bundle's folder, or a URL that serves https://HOST/PATH at URL/HOST/PATH",
    ),
    "network": ("", "network of the build's steps: host, none or default"),
}
COMPILE: Options = {
    "jobs": ("", "number of actions that Bazel runs at once (default: derived from processors and memory)"),
    "time-limit": ("", "stop the compile after this time, such as 5h30m, keep its cache and exit with code 75"),
    "need-disk": ("", "gigabytes that must be free; 0 skips the check (default: 86 for a compile)"),
    "remote-cache": ("", "Bazel cache shared by machines: grpc://HOST:PORT, grpcs://, http:// or https://"),
    "remote-executor": ("", "run actions remotely: grpc://HOST:PORT or grpcs:// (also give --jobs)"),
    "remote-instance": ("", "instance name at the remote cache or executor, if it has one"),
    "remote-header-file": ("", "file of NAME=VALUE lines: headers with credentials"),
    "remote-client-cert": ("", "PEM file with the client certificate (with --remote-client-key)"),
    "remote-client-key": ("", "PEM file with the key of --remote-client-cert"),
    "remote-property": ([], "NAME=VALUE, by which the executor chooses workers (repeatable)"),
    "remote-readonly": (False, "read the remote cache, but write nothing to it (for untrusted jobs)"),
    "no-cache": (False, "rebuild every stage, on the base image of today (downloads and Bazel's cache are kept)"),
}
REGISTRY: Options = {
    "registry": ("", "repository: HOST/PATH, such as ghcr.io/us/tfbuild (default: TFBUILD_REGISTRY, when set)"),
    "ca-cert": MAKE["ca-cert"],
}


def needs_clone(option: str) -> None:
    """Raise UsageError where tfbuild is installed as a package: it has no repository to compare with."""
    if installation.clone() is None:
        raise UsageError(f"{option} compares with tfbuild's own repository", hint="use it in a clone of tfbuild")


def host_cpu(cpuinfo: str) -> Cpu | None:
    """Return the CPU that "host" means; None where it cannot be read, which only --cpu host refuses."""
    if cpuinfo:
        return detect_cpu(Path(cpuinfo))
    try:
        return detect_cpu()
    except UnknownCpu:
        return None


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the request that the planning options make."""
    return fill(Request, options)


def run_of(options: Mapping[str, Any]) -> "Run":
    """Return the run that the other options of the verbs that make images describe."""
    from tfbuild.pipeline import run

    return run.run_of(fill(run.RunRequest, options), certificates(options["ca_cert"]))


def image_on(engine: "Engine", name: str) -> str:
    """Return the engine's own name of the image that a user names, and say so where it is another one."""
    from tfbuild.context import image_name, labels

    found = image_name.find(engine, name)
    if found not in (name, f"{labels.REPOSITORY}:{name}"):
        say(f"note: {name} is {found} on this engine")
    return found


def engine_of(name: str) -> "Engine":
    """Connect to the engine that --engine names. Raises EngineMissing where none answers."""
    from tfbuild.engine import Engine, selection

    return Engine.connect(chosen=selection.choose(name))


def fill(kind: type[T], options: Mapping[str, Any]) -> T:
    """Make a dataclass of the options that are its fields, with tuples in place of Invoke's lists."""
    values = {field.name: options[field.name] for field in fields(kind) if field.name in options}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def certificates(ca_cert: str) -> Path | None:
    """Return the CA file: --ca-cert, else SSL_CERT_FILE if set. Raises UsageError where it is not a file."""
    name = ca_cert or os.environ.get("SSL_CERT_FILE", "")
    path = Path(name) if name else None
    if path is not None and not os.path.isfile(path):
        why = absence(path) or "not a file"
        raise UsageError(
            f"no CA certificates at {path}: {why}", hint="--ca-cert FILE or SSL_CERT_FILE must name a PEM file"
        )
    return path


def registry_of(registry: str, ca_cert: str, image: str = "") -> "Registry":
    """Return the registry that --registry names, or an image's own name, or TFBUILD_REGISTRY.

    Raises UsageError where none does.
    """
    from tfbuild.context import image_name
    from tfbuild.oci.client import Registry
    from tfbuild.oci.references import Repository

    name = registry or image_name.parse(image).registry or os.environ.get("TFBUILD_REGISTRY", "")
    if not name:
        raise UsageError("no registry is named", hint="--registry HOST/PATH, or TFBUILD_REGISTRY")
    return Registry(Repository.parse(name), ca=certificates(ca_cert))
