"""A verified image <-> a registry: indexes, SBOM, provenance, signature, choice, check."""

from tfbuild.publish.pulling import Altered, accept, nothing_fits, pull, select, select_signed
from tfbuild.publish.pushing import Pushed, Rehearsal, access, finish, push, rehearse
from tfbuild.publish.yanking import yank

__all__ = [
    "Altered",
    "Pushed",
    "Rehearsal",
    "accept",
    "access",
    "finish",
    "nothing_fits",
    "pull",
    "push",
    "rehearse",
    "select",
    "select_signed",
    "yank",
]
