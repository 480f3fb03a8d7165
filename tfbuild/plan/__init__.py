"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.plan.base_choice import debian_pythons
from tfbuild.plan.build import BUILD_PYTHON, MACHINES, PLATFORMS, Build
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import asked_set, choose_platform, find_release
from tfbuild.plan.run_request import RunRequest
from tfbuild.plan.selection import Usual, newest_official, select, unused_by_official_wheel, usual

__all__ = [
    "BASES",
    "BUILD_PYTHON",
    "MACHINES",
    "PLATFORMS",
    "Build",
    "Request",
    "RunRequest",
    "Usual",
    "asked_set",
    "choose_platform",
    "debian_pythons",
    "find_release",
    "newest_official",
    "select",
    "unused_by_official_wheel",
    "usual",
]
