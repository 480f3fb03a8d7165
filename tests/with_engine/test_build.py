"""The whole way, as a user goes it: `invoke build` and its neighbours on a real engine and TensorFlow's real wheels."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild import plan
from tfbuild.context.labels import read_labels
from tfbuild.cpu import detect
from tfbuild.engine import Engine
from tfbuild.engine.build import find_program
from tfbuild.measure import records
from tfbuild.verify import report as reporting
from tfbuild.verify.checks import CHECKS

RELEASE = "2.21.0"
ID = f"{RELEASE}-mkl-py3.11-f16c"
# The engine has the base, and on a small disk the images of other tests.
BUILD = ("build", "--target", "mkl", "--wheel", "official", "--release", RELEASE, "--need-disk", "5")
Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


def status(report: Any) -> dict[str, str]:
    return {check["name"]: check["status"] for check in report["checks"]}


@pytest.fixture(scope="module")
def built() -> Any:
    """The report of `invoke build --target mkl --wheel official`, proved anew."""
    command = [sys.executable, "-m", "invoke", *BUILD, "--reverify", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads(done.stdout)


def unverified(engine: Engine) -> str:
    """The image that has the name until it is verified, or that `build --no-verify` left; none: empty."""
    name = f"tfbuild:{ID}-unverified"
    return engine.image(name).id if engine.exists(name) else ""


def test_the_main_job(built: Any, engine: Engine) -> None:
    assert built["schema"] == "tfbuild.report/1"
    assert built["verdict"] == "pass"
    outcomes = status(built)
    # Its official wheel needs F16C, which TensorFlow's guard does not know.
    assert outcomes.pop("code") == "pass"
    assert outcomes.pop("cuda") == "skip"
    # A machine that others load may be too busy for a comparison, which is then skipped and said so.
    assert outcomes.pop("throughput") in ("pass", "skip")
    others = {check.name for check in CHECKS} - {"code", "cuda", "throughput"}
    assert outcomes == dict.fromkeys(others, "pass")
    report = reporting.from_json(json.dumps(built))
    assert report.passed
    assert report.software is not None
    assert report.software.compiled_for[-1] == "AVX"
    assert reporting.from_json(records.to_json(report)) == report
    image = engine.image(f"tfbuild:{ID}")
    assert built["image"]["ref"] == f"tfbuild:{ID}"
    assert built["image"]["id"] == image.id
    assert read_labels(image.labels).get("instruction-set") == "f16c"
    assert image.labels["io.tfbuild.features"] == "avx f16c popcnt sse3 sse4_1 sse4_2 ssse3 xsave"
    assert unverified(engine) != image.id
    for kind in ("json", "md"):
        assert (ROOT / "reports" / f"{ID}.{kind}").is_file()


def test_a_second_build_starts_nothing(built: Any, invoke: Invoke) -> None:
    again = invoke(*BUILD, "--json")
    assert json.loads(again.stdout)["created"] == built["created"]
    assert "nothing changed since" in again.stderr


def test_detect_agrees_with_tensorflows_own_message(built: Any, engine: Engine) -> None:
    program = "import tensorflow as tf; tf.constant(1.0).numpy()"
    run = engine.run(f"tfbuild:{ID}", ["python", "-c", program], env={"TF_CPP_MIN_LOG_LEVEL": "0"})
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("To enable the following instructions: ")]
    named = line.removeprefix("To enable the following instructions: ").partition(",")[0].split()
    assert plan.unused_by_official_wheel(detect()) == tuple(named)
    assert built["source_would_add"] == named


@pytest.mark.nightly
@pytest.mark.parametrize(("release", "python"), [("2.14.0", "3.11"), ("2.15.1", "3.11")])
def test_older_releases_are_built_and_verified_too(release: str, python: str, invoke: Invoke) -> None:
    command = (
        "build",
        "--target",
        "mkl",
        "--wheel",
        "official",
        "--release",
        release,
        "--need-disk",
        "5",
        "--reverify",
        "--json",
    )
    report = json.loads(invoke(*command).stdout)
    assert report["id"] == f"{release}-mkl-py{python}-avx"
    outcomes = status(report)
    assert outcomes["throughput"] in ("pass", "skip")
    # A known defect of these releases (tensorflow#61482): pooling in both layouts in one process.
    assert outcomes["numerics"] == "warn"
    assert {outcomes[name] for name in ("guard", "import", "isa", "code", "onednn", "tcmalloc")} == {"pass"}
    assert any(name.startswith("numpy==1.") for name in report["software"]["packages"])


@pytest.mark.nightly
def test_a_wheel_of_an_index_is_taken_for_what_it_is_and_compared_with_the_official_one(
    invoke: Invoke, wheel: Callable[[str], Path], engine: Engine, tmp_path: Path
) -> None:
    file = wheel("intel-tensorflow-avx512==2.14.0")
    starts = "avx512f" in detect().features
    invoke("index", str(tmp_path / "index"), "--wheels", str(file.parent))
    indexed = ("--wheel", f"index:{tmp_path / 'index'}", "--cpu", "x86-64-v4")
    command = ("build", "--target", "mkl", *indexed, "--reverify", "--json")
    done = invoke(*command, code=0 if starts else 24)
    report = json.loads(done.stdout)
    # Its guard says AVX2, AVX512F and FMA; its code needs AVX-512's subsets, BMI2 and LZCNT as well.
    assert report["plan"]["instruction_set"] == "x86-64-v4"
    assert report["id"].startswith("2.14.0-mkl-py3.11-x86-64-v4-")
    assert report["throughput"] is None or report["throughput"]["baseline"] == "tfbuild:2.14.0-mkl-py3.11-avx"
    outcomes = status(report)
    assert {outcomes[name] for name in ("isa", "code")} == {"pass"}
    assert {outcomes[name] for name in ("guard", "import", "onednn", "tcmalloc")} == (
        {"pass"} if starts else {"fail", "skip"}
    )
    if not starts:
        assert "this machine lacks avx512bw avx512cd avx512dq avx512f avx512vl: the image will not start" in done.stderr
        assert "was not verified: it does not start on this host: this CPU lacks avx512bw" in done.stderr
    claimed = invoke("plan", "--wheel", str(file), "--cpu", "x86-64-v3", code=16)
    assert "it has beyond it avx512f" in claimed.stderr


def test_plain_docker_builds_the_context(built: Any, invoke: Invoke, engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "context"
    done = invoke("dockerfile", "--target", "mkl", "--wheel", "official", "--release", RELEASE, "--output", str(folder))
    assert done.stdout.strip() == str(folder)
    assert "ARG BASE_NAME=python:3.11-slim-bookworm" in (folder / "Dockerfile").read_text(encoding="utf-8")
    base = built["image"]["labels"]["org.opencontainers.image.base.name"]
    program = find_program(os.environ)
    command = [program.path, *(["buildx", "build", "--load"] if program.buildx else ["build"]), str(folder)]
    command += ["--tag", "tfbuild-test:plain", "--build-arg", f"BASE={base}"]
    if site := os.environ.get("SSL_CERT_FILE"):
        command += ["--secret", f"id=ca,src={site}"]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"DOCKER_BUILDKIT": "1"})
    try:
        assert engine.run("tfbuild-test:plain", ["python", "-c", "import tensorflow"]).exit_code == 0
    finally:
        engine.remove("tfbuild-test:plain")


@pytest.mark.alone  # it looks at all containers of the engine
def test_ctrl_c_stops_the_build_and_leaves_no_container(engine: Engine) -> None:
    command = [sys.executable, "-m", "invoke", *BUILD, "--no-cache", "--no-verify"]
    left = unverified(engine)
    before = {container.id for container in engine.client.containers.list(all=True, ignore_removed=True)}
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("build: system ..."):
            break
    # In the middle of its packages, which take several times as long.
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert {container.id for container in engine.client.containers.list(all=True, ignore_removed=True)} <= before
    assert unverified(engine) == left


def test_another_platform_than_the_engines_is_refused(invoke: Invoke, engine: Engine) -> None:
    other = "linux/arm64" if engine.platform == "linux/amd64" else "linux/amd64"
    done = invoke("build", "--wheel", "official", "--platform", other, code=20)
    assert f"--platform {engine.platform}" in done.stderr
