"""Request + facts + CPU -> a `Build` or a refusal. Nothing is started."""

from tfbuild.facts.release_table import is_version
from tfbuild.plan.base_choice import HostSystem, Interpreter, debian_pythons, default_base
from tfbuild.plan.build import BUILD_PYTHON, MACHINES, PLATFORMS, Build, Comparison, Runtime, RuntimeCheck
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import choose_platform, find_release, is_target, named_architecture, requested_set
from tfbuild.plan.run_request import RunRequest
from tfbuild.plan.selection import (
    Usual,
    comparison,
    runtime,
    runtime_check,
    select,
    unused_by_official_wheel,
    usual,
)
from tfbuild.plan.wheel import newest_official

__all__ = [
    "BASES",
    "BUILD_PYTHON",
    "MACHINES",
    "PLATFORMS",
    "Build",
    "Comparison",
    "HostSystem",
    "Interpreter",
    "Request",
    "RunRequest",
    "Runtime",
    "RuntimeCheck",
    "Usual",
    "choose_platform",
    "comparison",
    "debian_pythons",
    "default_base",
    "find_release",
    "is_target",
    "is_version",
    "named_architecture",
    "newest_official",
    "requested_set",
    "runtime",
    "runtime_check",
    "select",
    "unused_by_official_wheel",
    "usual",
]
