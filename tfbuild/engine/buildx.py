"""A buildx builder that the user names: what it is, whether it answers, and what it cannot see of the engine."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.engine import docker_contexts
from tfbuild.errors import EngineMissing

FIELD = re.compile(r"^(Driver|Endpoint): *(\S*)$", re.MULTILINE)
# The builder that is an engine's own BuildKit; buildx names it after the engine's context.
INSIDE = "docker"
INSPECT_SECONDS = 60.0
# A container or a pod may have to be started for it, and its image to be pulled first.
START_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Builder:
    """`driver`: docker-container, kubernetes or remote. The engine's images are not among those that it has."""

    name: str
    driver: str

    def __str__(self) -> str:
        return f"the builder {self.name} ({self.driver})"


def own(environ: Mapping[str, str]) -> str:
    """What buildx calls the engine's own builder; "default" is the one that DOCKER_HOST reaches."""
    return docker_contexts.endpoint(environ).context or docker_contexts.DEFAULT


def named(environ: Mapping[str, str]) -> str:
    """The builder that the user names; empty where that is none, or the engine's own."""
    name = environ.get("BUILDX_BUILDER", "")
    return "" if name == own(environ) else name


def find(name: str, program: str, environ: Mapping[str, str]) -> Builder:
    """The builder `name`, started where it was not. Raises EngineMissing where it is not usable beside the engine."""
    code, out, said = _buildx(program, environ, INSPECT_SECONDS, "inspect", name)
    found = dict(reversed(FIELD.findall(out)))  # of several nodes the first
    driver = found.get("Driver", "")
    if code != 0 or not driver:
        raise EngineMissing(f"the buildx builder {name!r} cannot be used: {_why(said or out)}", hint="docker buildx ls")
    if driver == INSIDE:
        raise EngineMissing(
            f"the builder {name} is another engine's own, in which the image would stay",
            hint=f"--engine {found.get('Endpoint') or name} builds and verifies there",
        )
    chosen = Builder(name=name, driver=driver)
    code, out, said = _buildx(program, environ, START_SECONDS, "inspect", "--bootstrap", name)
    if code != 0:
        raise EngineMissing(
            f"{chosen} does not answer: {_why(said or out)}", hint=f"docker buildx inspect --bootstrap {name}"
        )
    return chosen


def _buildx(program: str, environ: Mapping[str, str], seconds: float, *words: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            [program, "buildx", *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {seconds:g} s"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _why(said: str) -> str:
    """The last line, which is the reason; above it stands the progress."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("Error: ").strip() if lines else "it says nothing"
