"""The buildx builder that the user named: its driver, and whether it answers."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.engine import docker_contexts
from tfbuild.errors import EngineMissing

FIELD = re.compile(r"^(Driver|Endpoint): *(\S*)$", re.MULTILINE)
# The driver of an engine's own BuildKit; buildx names that builder after the engine's context.
INSIDE = "docker"
INSPECT_SECONDS = 60.0
# Starting one may mean pulling an image and starting a container or pod.
START_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Builder:
    """`driver`: docker-container, kubernetes or remote. Such a builder does not see the engine's images."""

    name: str
    driver: str

    def __str__(self) -> str:
        return f"the builder {self.name} ({self.driver})"


def own(environ: Mapping[str, str]) -> str:
    """Return buildx's name of the engine's own builder; "default" is the one behind DOCKER_HOST."""
    return docker_contexts.endpoint(environ).context or docker_contexts.DEFAULT


def named(environ: Mapping[str, str]) -> str:
    """Return the builder that the user named; "" for none, and for the engine's own."""
    name = environ.get("BUILDX_BUILDER", "")
    return "" if name == own(environ) else name


def find(name: str, program: str, environ: Mapping[str, str]) -> Builder:
    """Return the builder `name`, started if necessary. Raises EngineMissing where the engine cannot use it."""
    code, out, errors = _buildx(program, environ, INSPECT_SECONDS, "inspect", name)
    fields = dict(reversed(FIELD.findall(out)))  # the first of several nodes
    driver = fields.get("Driver", "")
    if code != 0 or not driver:
        raise EngineMissing(
            f"the buildx builder {name!r} cannot be used: {_reason(errors or out)}", hint="docker buildx ls"
        )
    if driver == INSIDE:
        raise EngineMissing(
            f"the builder {name} is another engine's own, in which the image would stay",
            hint=f"--engine {fields.get('Endpoint') or name} builds and verifies there",
        )
    builder = Builder(name=name, driver=driver)
    code, out, errors = _buildx(program, environ, START_SECONDS, "inspect", "--bootstrap", name)
    if code != 0:
        raise EngineMissing(
            f"{builder} does not answer: {_reason(errors or out)}", hint=f"docker buildx inspect --bootstrap {name}"
        )
    return builder


def _buildx(program: str, environ: Mapping[str, str], seconds: float, *arguments: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            [program, "buildx", *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {seconds:g} s"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _reason(output: str) -> str:
    """Return the last line, which is the reason; the lines above it are progress."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("Error: ").strip() if lines else "buildx printed no reason"
