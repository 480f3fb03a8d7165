"""Which engine and builder a run uses: what the user names takes precedence over the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.engine import docker_contexts
from tfbuild.util import ssh

# Docker's own client applies these to the address in DOCKER_HOST, not to a context.
ADDRESS_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the user names; an empty field leaves the choice to the environment.

    `engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.
    """

    engine: str = ""
    builder: str = ""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which Docker's own client makes this choice."""
        variables = dict(environ)
        if "://" in self.engine:
            variables.pop("DOCKER_CONTEXT", None)
            variables["DOCKER_HOST"] = self.engine
        elif self.engine:
            for name in ADDRESS_VARIABLES:
                variables.pop(name, None)
            variables["DOCKER_CONTEXT"] = self.engine
        return variables | ({"BUILDX_BUILDER": self.builder} if self.builder else {})

    def elsewhere(self) -> bool:
        """Return whether the engine is not at a socket of this machine, without connecting to it."""
        return not docker_contexts.endpoint(self.environment(os.environ)).local


# The environment's choice, where the user names nothing.
USUAL = EngineChoice()


def choose(engine: str, builder: str = "") -> EngineChoice:
    """Check what the user names. Raises EngineMissing for an unknown context, UsageError for a bad ssh address."""
    if engine.startswith("ssh://"):
        ssh.destination(engine)
    elif engine and "://" not in engine and engine != docker_contexts.DEFAULT:
        docker_contexts.read(engine, os.environ)
    return EngineChoice(engine=engine, builder=builder)
