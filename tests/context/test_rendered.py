"""What stands in the files of a context and in the labels of an image, word by word: published, compared by digests."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.context.test_dockerfile import WHEEL, from_file, from_source, official
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of, read_labels
from tfbuild.pipeline import build_context
from tfbuild.plan.source import Source

# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "label"),
    [
        (Source(kind="git", tag="v2.21.0", commit=""), "v2.21.0"),
        (Source(kind="archive", tag="", commit="", sha256="ab"), "archive@sha256:ab"),
        (Source(kind="tree", tag="", commit="", sha256="ab"), "tree@sha256:ab"),
    ],
)
def test_a_label_says_what_was_compiled(source: Source, label: str) -> None:
    assert read_labels(labels_of(from_source(source=source))).get("source") == label
    assert not read_labels(labels_of(official())).get("source")


# --- which files ------------------------------------------------------------------------------------------------------


def test_the_plan_in_an_image_is_what_its_smoke_benchmark_compares() -> None:
    assert json.loads(dockerfile.files(official(release="2.14.0"))["plan.json"]) == {
        "release": "2.14.0", "python": "3.11", "compiler": official(release="2.14.0").compiler, "target": "mkl",
        "threading": "threadpool", "allocator": "tcmalloc", "checks": ["onednn"],
        "known_defects": ["max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc"],
    }  # fmt: skip


def test_a_wheel_is_linked_or_copied_and_does_not_count_for_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"a wheel")
    linked = build_context.write_context(from_file(wheel), tmp_path / "linked")
    assert (linked.folder / "wheel" / WHEEL).stat().st_ino == wheel.stat().st_ino
    assert (linked.folder / "wheel" / "SHA256SUMS").read_text() == f"{'0' * 64}  /mnt/wheel/{WHEEL}\n"
    assert "sha256sum --check --strict /mnt/wheel/SHA256SUMS" in (linked.folder / "Dockerfile").read_text()

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    copied = build_context.write_context(from_file(wheel), tmp_path / "copied")
    assert (copied.folder / "wheel" / WHEEL).read_bytes() == b"a wheel"
    assert (copied.folder / "wheel" / WHEEL).stat().st_ino != wheel.stat().st_ino
    wheel.unlink()
    wheel.write_bytes(b"changed")
    assert build_context.write_context(from_file(wheel), tmp_path / "again").digest == linked.digest == copied.digest


# --- what the Dockerfile and its commands say -------------------------------------------------------------------------


def test_the_head_of_a_dockerfile_says_who_wrote_it_and_how_to_build_it() -> None:
    text = dockerfile.files(official())["Dockerfile"]
    assert text.startswith(f"{dockerfile.MARKER}: {dockerfile.command(official())}\n")
    usage = "docker build --platform linux/amd64 --tag tfbuild:2.21.0-mkl-py3.11-avx-unverified ."
    assert usage in text
    assert "in this folder" in text


def test_an_image_has_this_environment() -> None:
    tcmalloc = {
        "LD_PRELOAD": "/usr/local/lib/libtcmalloc_minimal.so.4",
        "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "1099511627776",
    }
    assert dockerfile.environment(official()) == tcmalloc | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert dockerfile.environment(official(target="cpu")) == tcmalloc
    openmp = tcmalloc | {"TF_ENABLE_ONEDNN_OPTS": "1", "KMP_BLOCKTIME": "0"}
    assert dockerfile.environment(official(threading="openmp")) == openmp


def test_the_wheel_is_collected_from_the_script_that_an_older_target_is() -> None:
    collected = dockerfile.collect("//tensorflow/x:build_pip_package")
    assert collected == "bazel-bin/tensorflow/x/build_pip_package /wheel"


def test_a_bundle_has_what_the_official_wheel_requires_where_that_is_known() -> None:
    assert dockerfile.packages(official()) == dockerfile.packages(from_source()) == "tensorflow-cpu==2.21.0"
    assert dockerfile.packages(replace(from_source(), release="2.99.0")) == ""


def test_pip_installs_what_was_planned() -> None:
    assert dockerfile.requirement(official()) == "tensorflow-cpu==2.21.0"
    odd = replace(official().wheel, requirement="tensorflow==2.21.0; python_version > '3'")
    assert dockerfile.requirement(official(wheel=odd)).startswith("'tensorflow==2.21.0; ")
    assert dockerfile.requirement(from_file(Path(WHEEL))) == f"/mnt/wheel/{WHEEL}"
    own = replace(from_file(Path(WHEEL)), target="cuda", release="2.20.0")
    assert dockerfile.requirement(own) == f"'/mnt/wheel/{WHEEL}[and-cuda]'"
    assert dockerfile.requirement(from_source()) == "/mnt/wheel/*.whl"
    assert dockerfile.requirement(from_source(target="cuda", cuda="12.5.1")) == '"$(echo /mnt/wheel/*.whl)[and-cuda]"'
    assert dockerfile.requirement(from_source(target="cuda", cuda="11.8", release="2.14.0")) == "/mnt/wheel/*.whl"
