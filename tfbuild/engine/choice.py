"""Which engine and builder everything in this process talks to: the user's word goes before the environment's."""

import os

from docker.context import ContextAPI

from tfbuild.errors import EngineMissing


def use(engine: str, builder: str) -> None:
    """`engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.

    Empty ones leave the environment's choice alone. Raises EngineMissing for a context that there is not, in place of
    which Docker's own SDK would take the engine on this machine.
    """
    if "://" in engine:
        os.environ["DOCKER_HOST"] = engine
        os.environ.pop("DOCKER_CONTEXT", None)
    elif engine:
        if ContextAPI.get_context(engine) is None:
            known = ", ".join(sorted(context.Name for context in ContextAPI.contexts()))
            raise EngineMissing(
                f"there is no Docker context {engine!r}", hint=f"one of: {known}; or ssh://HOST, tcp://HOST:PORT"
            )
        os.environ["DOCKER_CONTEXT"] = engine
        os.environ.pop("DOCKER_HOST", None)
    if builder:
        os.environ["BUILDX_BUILDER"] = builder


def elsewhere() -> bool:
    """True where the environment names an engine that is not at a socket of this machine's; nothing is asked."""
    host = os.environ.get("DOCKER_HOST", "")
    if not host and "DOCKER_CONTEXT" in os.environ:
        context = ContextAPI.get_context(os.environ["DOCKER_CONTEXT"])
        host = (context.Host or "") if context else ""
    return bool(host) and not host.startswith(("unix://", "npipe://"))
