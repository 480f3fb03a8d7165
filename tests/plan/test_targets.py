"""Targets are rows: facts/targets.toml against the rest of the project, and a new target that needs no code."""

import json
import re
from collections.abc import Iterator

import pytest

from tests import checkout
from tests.checkout import Copy
from tests.facts import newest
from tfbuild.errors import Unsupported
from tfbuild.facts import release_table, targets
from tfbuild.verify.checks import CHECKS

# A target for AMD's GPUs, as far as a plan and a context go. It does not claim that such a build works.
ROCM = """
[[target]]
name = "rocm"
title = "ROCm"
accelerator = "rocm"
configs = ["rocm"]
answers = { TF_NEED_ROCM = "1" }

[[exclusion]]
targets = ["rocm", "cuda"]
reason = "configure.py: CUDA and ROCm are mutually exclusive"
"""
ROCM_CONFIG = '    { name = "rocm", from = "1.15" },\n'


@pytest.fixture(scope="module")
def with_rocm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A copy of the project with these rows."""
    copy = checkout.copy(tmp_path_factory.mktemp("rocm") / "copy", "tfbuild/", "templates/", "tasks.py", "tools/")
    with (copy / "tfbuild" / "facts" / "targets.toml").open("a", encoding="utf-8") as rows:
        rows.write(ROCM)
    releases = copy / "tfbuild" / "facts" / "releases.toml"
    text = releases.read_text(encoding="utf-8")
    assert text.count("config = [\n") == 1
    releases.write_text(text.replace("config = [\n", f"config = [\n{ROCM_CONFIG}"), encoding="utf-8")
    with checkout.serving(copy) as served:
        yield served


def test_a_target_is_a_row(with_rocm: Copy) -> None:
    arguments = ("--target", "rocm", "--release", "2.20.0", "--cpu", "x86-64-v3", "--platform", "linux/amd64")
    (build,) = json.loads(with_rocm.invoke("plan", "--json", *arguments).stdout)
    assert build["id"] == "2.20.0-rocm-py3.13-x86-64-v3"
    assert build["configs"] == ["rocm"]
    answers = build["configure_env"]
    assert (answers["TF_NEED_ROCM"], answers["TF_NEED_CUDA"], answers["TF_NEED_CLANG"]) == ("1", "0", "1")
    assert (build["cuda"], build["compute_capabilities"]) == ("", [])

    with_rocm.invoke("dockerfile", *arguments, "--output", "context")
    dockerfile = (with_rocm.folder / "context" / "Dockerfile").read_text()
    assert "TF_NEED_ROCM=1" in dockerfile
    assert 'org.opencontainers.image.title="TensorFlow 2.20.0 rocm"' in dockerfile
    assert "--config=rocm" in (with_rocm.folder / "context" / "bazelrc").read_text() + dockerfile
    assert json.loads((with_rocm.folder / "context" / "plan.json").read_text())["target"] == "rocm"


def test_a_new_target_is_offered_and_has_the_refusals_of_its_row(with_rocm: Copy) -> None:
    assert "hint: one of: cpu, mkl, cuda, rocm" in with_rocm.invoke("plan", "--target", "tpu", code=2).stderr
    official = with_rocm.invoke("plan", "--target", "rocm", "--wheel", "official", "--platform", "linux/amd64", code=12)
    assert f"no official x86_64 wheel of TensorFlow {newest.RELEASE} is for ROCm" in official.stderr
    both = with_rocm.invoke("plan", "--target", "rocm", "--config", "cuda", code=Unsupported.exit_code)
    assert "CUDA and ROCm are mutually exclusive\nhint: choose --target rocm or --target cuda" in both.stderr


# --- the rows ---------------------------------------------------------------------------------------------------------


def test_the_rows_fit_together() -> None:
    rows = targets.target_table()
    known = [row.name for row in rows.target]
    assert len(set(known)) == len(known)
    assert sum(row.default for row in rows.target) == 1
    assert {name for exclusion in rows.exclusion for name in exclusion.targets} <= set(known)
    assert [re.compile(row.asked_by) for row in rows.target]


def test_a_target_s_answers_and_checks_are_known() -> None:
    """Without a row in `[[configure]]` an answer would be dropped."""
    questions = {row.variable for row in release_table.table().configure}
    for row in targets.target_table().target:
        assert set(row.answers) <= questions, row.name
        assert set(row.checks) <= {check.name for check in CHECKS}, row.name
