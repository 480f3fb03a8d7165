"""A verified image <-> a registry: indexes, SBOM, provenance, signature, choice, check."""

from tfbuild.publish.pushing import Pushed, finish, nothing_fits, pull, push, rehearse, select

__all__ = ["Pushed", "finish", "nothing_fits", "pull", "push", "rehearse", "select"]
