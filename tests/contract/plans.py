"""The builds whose contract with the tree is tested: every target, threading and compiler, on both architectures."""

import pytest

from tests.contract.archive import RELEASE
from tfbuild import plan
from tfbuild.plan import Build, Request

CPUS = {"linux/amd64": "x86-64-v3", "linux/arm64": "armv8.2-a"}
TARGETS = (("cpu", ""), ("mkl", "threadpool"), ("mkl", "openmp"), ("cuda", ""))
COMPILERS = ("gcc-12", "clang-16")


def build(target: str, threading: str = "", compiler: str = "gcc-12", platform: str = "linux/amd64") -> Build:
    request = Request(
        release=RELEASE, target=target, threading=threading, compiler=compiler, platform=platform, cpu=CPUS[platform],
        python="3.11",
    )  # fmt: skip
    return plan.select(request, None)


def every(*targets: str) -> list[object]:
    """All of them, as pytest's parameters; of some targets only, where they are named."""
    return [
        pytest.param(
            build(target, threading, compiler, platform),
            id="-".join(word for word in (target, threading, compiler, CPUS[platform]) if word),
        )
        for target, threading in TARGETS
        for compiler in COMPILERS
        for platform in CPUS
        if target in (targets or (target,))
    ]
