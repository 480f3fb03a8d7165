"""Releases that need Python 3.7: their images are what they claim, and verification can tell.

Debian has no Python 3.7: a registry has the base, or TFBUILD_TEST_BASE_37 names one on the engine; without either these
tests are skipped. TFBUILD_TEST_NETWORK is the network of the builds where the default has no way out.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tfbuild import plan
from tfbuild.cli.options import certificates
from tfbuild.cpu import detect
from tfbuild.engine import Engine
from tfbuild.errors import RegistryRefused
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Request
from tfbuild.util.progress import Progress
from tfbuild.verify.records import Report
from tfbuild.verify.session import verify
from tfbuild.verify.verification import Baseline

pytestmark = [pytest.mark.nightly, pytest.mark.sources]
BASE = os.environ.get("TFBUILD_TEST_BASE_37", "auto")
ABSENT = ("max_pool_nchw_after_nhwc: not in this build", "avg_pool_nchw_after_nhwc: not in this build")


@pytest.fixture(scope="module")
def old(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Builds an image on the base with Python 3.7, by the options of a plan."""
    folder = tmp_path_factory.mktemp("old")
    network = os.environ.get("TFBUILD_TEST_NETWORK", "")
    run = Run(base=BASE, ca=certificates(""), network=network, work=folder, reports=folder, verify=False)
    maker = Maker(run=run)

    @cache
    def made(**asked: Any) -> str:
        try:
            return maker.build(plan.select(replace(Request(python="3.7", base=BASE), **asked), detect())).image
        except RegistryRefused as error:
            pytest.skip(f"no base image with Python 3.7 can be had: {error}")

    return made


def statuses(report: Report) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


def detail(report: Report, name: str) -> str:
    return next(check.detail for check in report.checks if check.name == name)


@pytest.mark.parametrize("release", ["1.15.5", "2.0.4", "2.3.4"])
def test_an_official_wheel_is_verified_on_python_3_7(release: str, engine: Engine, old: Callable[..., str]) -> None:
    ref = old(release=release, target="cpu", wheel="official")
    baseline = Baseline(ref=ref, id=ref, env=dict(plan.runtime(release, "cpu", "").untuned))
    report = verify(engine, ref, baseline=baseline, progress=Progress())
    outcomes = statuses(report)
    assert outcomes.pop("throughput") in ("pass", "skip"), report
    assert {name for name, status in outcomes.items() if status == "skip"} == {"onednn", "cuda"}, report
    assert report.verdict == "pass", report
    assert "TensorFlow's own message agrees" in detail(report, "isa")
    assert "on Python 3.7." in detail(report, "import")
    # Without oneDNN TensorFlow pools in one layout alone.
    assert all(part in detail(report, "numerics") for part in ABSENT)


def test_the_smoke_benchmark_runs_inside_on_python_3_7(engine: Engine, old: Callable[..., str]) -> None:
    run = engine.run(old(release="2.0.4", target="cpu", wheel="official"), ["tfbuild-smoke"])
    assert run.exit_code == 0, run.stdout + run.stderr
    assert run.stdout.endswith("verdict: pass\n")


def test_a_convolution_in_mkl_dnn_is_proved(
    engine: Engine, old: Callable[..., str], wheel: Callable[..., Path]
) -> None:
    """Its name has no engine and its log no runtime; its baseline is the official wheel, which has no MKL-DNN."""
    file = wheel("intel-tensorflow==2.0.1", "--python-version", "3.7", "--only-binary", ":all:")
    ref = old(target="mkl", wheel=str(file))
    report = verify(engine, ref, progress=Progress())
    assert "on libiomp5.so" in detail(report, "onednn")
    assert "glibc: 10,241" in detail(report, "tcmalloc")
    # What oneDNN pools in the other layout is right.
    assert "12 of 13 parts" in detail(report, "numerics")
    assert {name for name, status in statuses(report).items() if status != "pass"} == {"cuda", "throughput"}, report
    assert report.verdict == "pass", report
