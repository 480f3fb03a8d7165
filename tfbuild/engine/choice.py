"""Which engine and builder everything in this process talks to: the user's word goes before the environment's."""

import os

from tfbuild import ssh
from tfbuild.engine import contexts

# Docker's own client heeds these for the address in DOCKER_HOST, and not for a context.
OF_ADDRESSES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


def use(engine: str, builder: str) -> None:
    """`engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.

    Empty ones leave the environment's choice alone. Raises EngineMissing for a context that there is not, and
    UsageError for what ssh cannot take.
    """
    if "://" in engine:
        if engine.startswith("ssh://"):
            ssh.destination(engine)
        os.environ["DOCKER_HOST"] = engine
        os.environ.pop("DOCKER_CONTEXT", None)
    elif engine:
        if engine != contexts.DEFAULT:
            contexts.read(engine, os.environ)
        os.environ["DOCKER_CONTEXT"] = engine
        for name in OF_ADDRESSES:
            os.environ.pop(name, None)
    if builder:
        os.environ["BUILDX_BUILDER"] = builder


def elsewhere() -> bool:
    """True where the environment names an engine that is not at a socket of this machine's; nothing is asked."""
    return not contexts.endpoint(os.environ).local
