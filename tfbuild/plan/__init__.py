"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.plan.build import BUILD_PYTHON, MACHINES, PLATFORMS, Build, Request
from tfbuild.plan.rules import BASES, asked_set, choose_platform
from tfbuild.plan.selection import select, unused_by_official_wheel

__all__ = [
    "BASES",
    "BUILD_PYTHON",
    "MACHINES",
    "PLATFORMS",
    "Build",
    "Request",
    "asked_set",
    "choose_platform",
    "select",
    "unused_by_official_wheel",
]
