"""The options that verbs share, and the values that they become."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.cli.output import say_note
from tfbuild.cli.verbs import variable
from tfbuild.cpu import Cpu
from tfbuild.cpu import detect as detect_cpu
from tfbuild.errors import Unsupported, UsageError
from tfbuild.plan import Request, RunRequest
from tfbuild.plan.request import ENGINE, REMOTE, RESOURCES
from tfbuild.util.files import access_problem
from tfbuild.util.options import Option, Options, declared, make, of_groups

if TYPE_CHECKING:
    from tfbuild.engine import Engine
    from tfbuild.oci.client import Registry
    from tfbuild.pipeline.run import Run

PLAN = declared(Request)
RUN = declared(RunRequest)
# Options of every verb that makes images, and of those that compile.
MAKE: Options = {"base": PLAN["base"], **of_groups(RunRequest, ENGINE)}
COMPILE = of_groups(RunRequest, RESOURCES, REMOTE)
ON_ENGINE: Options = {"engine": RUN["engine"]}
JSON: Options = {"json": Option(False, "print JSON to stdout")}
REGISTRY: Options = {
    "registry": Option("", "repository, such as ghcr.io/us/tfbuild (default: TFBUILD_REGISTRY, when set)", "HOST/PATH"),
    "ca-cert": RUN["ca-cert"],
}


def host_cpu(cpuinfo: str) -> Cpu | None:
    """Return the CPU that "host" means; None where it cannot be read, which only --cpu host refuses."""
    if cpuinfo:
        return detect_cpu(Path(cpuinfo))
    try:
        return detect_cpu()
    except Unsupported:
        return None


def run_of(options: Mapping[str, Any]) -> "Run":
    """Return the run that a verb's options describe, apart from those of the build."""
    from tfbuild.pipeline import run

    return run.run_of(make(RunRequest, options), certificates(options["ca_cert"]), options["base"])


def image_on(engine: "Engine", name: str) -> str:
    """Return the engine's name for the image that a user typed, and print a note if the two differ."""
    from tfbuild.context import labels

    found = labels.find_image(engine, name)
    if found not in (name, f"{labels.REPOSITORY}:{name}"):
        say_note(f"{name} is {found} on this engine")
    return found


def certificates(ca_cert: str) -> Path | None:
    """Return the CA file: --ca-cert, else SSL_CERT_FILE if set. Raises UsageError where it has no certificate."""
    name = ca_cert or os.environ.get("SSL_CERT_FILE", "")
    path = Path(name) if name else None
    if path is not None and not os.path.isfile(path):
        why = access_problem(path) or "not a file"
        raise UsageError(f"no CA certificates at {path}: {why}", hint="--ca-cert FILE or SSL_CERT_FILE, a PEM file")
    if path is not None:
        from tfbuild.oci.transport import trusted

        trusted(path)  # a build would only fail in its first download, at the server's certificate
    return path


def registry_of(registry: str, ca_cert: str, image: str = "") -> "Registry":
    """Return the registry that --registry names, or an image's own name, or TFBUILD_REGISTRY.

    Raises UsageError where none does.
    """
    from tfbuild.context import labels
    from tfbuild.oci.client import Registry
    from tfbuild.oci.references import Repository, is_host

    named, _ = labels.parse_name(image)
    name = registry or (named if is_host(named.partition("/")[0]) else "") or variable("TFBUILD_REGISTRY")
    if not name:
        raise UsageError("no registry is named", hint="--registry HOST/PATH, or TFBUILD_REGISTRY")
    return Registry(Repository.parse(name), ca=certificates(ca_cert))
