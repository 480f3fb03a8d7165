"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.plan.base_choice import debian_pythons, default_base
from tfbuild.plan.build import BUILD_PYTHON, MACHINES, PLATFORMS, Build, Comparison, Runtime, RuntimeCheck
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import asked_set, choose_platform, find_release, is_target
from tfbuild.plan.run_request import RunRequest
from tfbuild.plan.selection import (
    Usual,
    comparison,
    newest_official,
    runtime,
    runtime_check,
    select,
    unused_by_official_wheel,
    usual,
)

__all__ = [
    "BASES",
    "BUILD_PYTHON",
    "MACHINES",
    "PLATFORMS",
    "Build",
    "Comparison",
    "Request",
    "RunRequest",
    "Runtime",
    "RuntimeCheck",
    "Usual",
    "asked_set",
    "choose_platform",
    "comparison",
    "debian_pythons",
    "default_base",
    "find_release",
    "is_target",
    "newest_official",
    "runtime",
    "runtime_check",
    "select",
    "unused_by_official_wheel",
    "usual",
]
