"""A verified image <-> a registry: indexes, SBOM, provenance, signature, choice, check."""

from tfbuild.publish.pulling import nothing_fits, pull, select
from tfbuild.publish.pushing import Pushed, finish, push, rehearse

__all__ = ["Pushed", "finish", "nothing_fits", "pull", "push", "rehearse", "select"]
