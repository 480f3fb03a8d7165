"""Nothing that tfbuild writes is torn by a power cut, at whatever step that comes, and the next run writes it whole."""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.bench import test_report as bench_reports
from tests.commandline import ROOT
from tests.pipeline import test_wheel_audit as audited
from tests.power import Files, mixed, torn
from tests.verify import test_report as reports
from tfbuild import plan
from tfbuild.bench import command as bench
from tfbuild.bench import page as bench_page
from tfbuild.context import dockerfile
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Request
from tfbuild.publish import provenance
from tfbuild.verify import page as verify_page
from tfbuild.verify import report as reporting
from tools import committed

AUDIT = json.loads(audited.RECORDED.read_text())
# Digests of images that no registry has; each content has another one.
DIGESTS = ("sha256:" + 64 * "0", "sha256:" + 64 * "1")


def build(number: int) -> plan.Build:
    """The same identifier, in contexts that differ."""
    request = Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64")
    return plan.select(replace(request, with_headers=True, prefer_vector_width=("128", "256")[number]), None)


def render(folder: Path, number: int) -> None:
    made = Maker(run=Run(work=folder, reports=folder)).render(build(number))
    # One folder for both.
    assert made.folder.parent.parent == folder


def write_context(folder: Path, number: int) -> None:
    dockerfile.write_context(build(0), folder / "context", base_digest=DIGESTS[number])


def page_of(report: Any) -> str:
    """In place of the page: what draws its charts does not work in a process that was forked."""
    return f"page of {report.seconds}"


def write_report(folder: Path, number: int) -> None:
    report = reports.report()
    with patch.object(verify_page, "to_html", page_of):
        reporting.write(replace(report, seconds=report.seconds + number), folder)


def write_bench_report(folder: Path, number: int) -> None:
    report = bench_reports.report()
    with patch.object(bench_page, "to_html", page_of):
        bench.write(replace(report, seconds=report.seconds + number), folder)


def export_wheel(folder: Path, number: int) -> None:
    """What the builder left, under one name, with another content each time."""
    scratch = folder / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    (scratch / "thing-1.0-cp311-cp311-linux_x86_64.whl").write_bytes(b"code" * (100 + number))
    (scratch / "build.txt").write_text(f"builder=sha256:{number}\n")
    (scratch / "packages.txt").write_text("")
    with patch.object(wheels, "audit_wheel", lambda path: wheels.read_audit(AUDIT, path)):
        wheels.collect(build(0), scratch, folder, context="", base="")


def unmatched(seen: Files, before: Files, after: Files) -> str:
    """A wheel may be without its record for a moment, and is never beside another one's."""
    for name in (name for name in seen if name.endswith(".json")):
        wheel = hashlib.sha256(seen.get(name.removesuffix(".json"), b"")).hexdigest()
        if wheel.encode() not in seen[name]:
            return f"{name} is of another wheel"
    complete = {name: data for name, data in before.items() if name not in seen and name.endswith(".json")}
    return torn({**seen, **complete}, before, after)


def write_pages(folder: Path, number: int) -> None:
    provenance.write(folder / "sbom.json", b"content %d" % number)


def pin(folder: Path, number: int) -> None:
    names = {build.base_image for build in committed.builds()}
    committed.write(folder, dict.fromkeys(names, DIGESTS[number]))


WRITERS = {
    "plan and context": (render, torn),
    "dockerfile": (write_context, mixed),
    "report": (write_report, torn),
    "benchmark": (write_bench_report, torn),
    "wheel": (export_wheel, unmatched),
    "pages": (write_pages, torn),
    "dockerfiles": (pin, torn),
}


def tried(table: str, folder: Path, most: int) -> dict[str, tuple[int, list[str]]]:
    command = [sys.executable, "-m", "tests.power", __name__, table, str(folder), str(most)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: (steps, wrong) for name, (steps, wrong) in json.loads(done.stdout).items()}


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, pytest.param(1000, marks=pytest.mark.nightly)])
def test_a_power_cut_at_any_step_leaves_everything_whole(most: int, tmp_path: Path) -> None:
    """Quick: at some steps, the last ones among them, which give files their names."""
    results = tried("WRITERS", tmp_path, most)
    assert {name.partition(",")[0] for name in results} == {*WRITERS}
    for name, (steps, wrong) in results.items():
        assert steps >= 3, name
        assert wrong == [], name
