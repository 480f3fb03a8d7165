"""Which engine and builder a run talks to: the user's word goes before the environment's."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.engine import docker_contexts
from tfbuild.util import ssh

# Docker's own client heeds these for the address in DOCKER_HOST, and not for a context.
OF_ADDRESSES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the user names; empty fields leave the environment's choice alone.

    `engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.
    """

    engine: str = ""
    builder: str = ""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which Docker's own client makes this choice."""
        told = dict(environ)
        if "://" in self.engine:
            told.pop("DOCKER_CONTEXT", None)
            told["DOCKER_HOST"] = self.engine
        elif self.engine:
            for name in OF_ADDRESSES:
                told.pop(name, None)
            told["DOCKER_CONTEXT"] = self.engine
        return told | ({"BUILDX_BUILDER": self.builder} if self.builder else {})

    def elsewhere(self) -> bool:
        """Whether the engine is not at a socket of this machine's; nothing is asked of it."""
        return not docker_contexts.endpoint(self.environment(os.environ)).local


# What nobody named: the environment's choice.
USUAL = EngineChoice()


def choose(engine: str, builder: str = "") -> EngineChoice:
    """Check what the user names; raises EngineMissing for an unknown context, UsageError for what ssh cannot take."""
    if engine.startswith("ssh://"):
        ssh.destination(engine)
    elif engine and "://" not in engine and engine != docker_contexts.DEFAULT:
        docker_contexts.read(engine, os.environ)
    return EngineChoice(engine=engine, builder=builder)
