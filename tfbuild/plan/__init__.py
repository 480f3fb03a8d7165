"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.facts.release_table import is_version
from tfbuild.facts.toolchains import default_base
from tfbuild.plan.build import BUILD_PYTHON, MACHINES, OVERRIDES, PLATFORMS, Build
from tfbuild.plan.decision import select
from tfbuild.plan.others import alternatives, official_build, unused_by_official_wheel, usual
from tfbuild.plan.request import BASES, Request, RunRequest
from tfbuild.plan.rules import (
    choose_platform,
    requested_set,
)
from tfbuild.plan.wheel import newest_official

__all__ = [
    "BASES",
    "BUILD_PYTHON",
    "MACHINES",
    "OVERRIDES",
    "PLATFORMS",
    "Build",
    "Request",
    "RunRequest",
    "alternatives",
    "choose_platform",
    "default_base",
    "is_version",
    "newest_official",
    "official_build",
    "requested_set",
    "select",
    "unused_by_official_wheel",
    "usual",
]
