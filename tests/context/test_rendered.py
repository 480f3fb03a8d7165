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


def test_an_image_has_these_labels() -> None:
    own = labels_of(from_source())
    oci, ours = "org.opencontainers.image.", "io.tfbuild."
    assert own == {
        f"{oci}title": "TensorFlow 2.21.0 mkl",
        f"{oci}description": "TensorFlow 2.21.0 mkl, Python 3.11, for x86-64-v3, with TCMalloc",
        f"{oci}version": "2.21.0-mkl-py3.11-x86-64-v3",
        f"{oci}created": "2026-03-06T00:00:00Z",
        f"{oci}revision": "a481b10260dfdf833a1b16007eead49c1d7febf3",
        f"{oci}base.name": "${BASE_NAME}",
        f"{oci}base.digest": "${BASE_DIGEST}",
        f"{ours}id": "2.21.0-mkl-py3.11-x86-64-v3",
        f"{ours}release": "2.21.0",
        f"{ours}target": "mkl",
        f"{ours}python": "3.11",
        f"{ours}platform": "linux/amd64",
        f"{ours}features": " ".join(from_source().instruction_set.features),
        f"{ours}context": "${CONTEXT_DIGEST}",
        f"{ours}reused": "${REUSED}",
        f"{ours}plan": own[f"{ours}plan"],
    }
    assert list(own)[:4] == [f"{oci}{name}" for name in ("title", "description", "version", "created")]


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
    digest = f"sha256:{64 * 'a'}"
    pinned = dockerfile.files(official(), base_digest=digest)["Dockerfile"]
    assert pinned.startswith(f"{dockerfile.MARKER}: {dockerfile.command(official())} --pin\n")
    assert digest in pinned
    assert digest not in text
    shared = dockerfile.own_files(official(), own="x/", origin="invoke generate", usage="build it")["Dockerfile"]
    assert shared.startswith(f"{dockerfile.MARKER}: invoke generate\n")
    assert "x/entrypoint.sh" in shared


def test_an_image_has_this_environment() -> None:
    tcmalloc = {
        "LD_PRELOAD": "/usr/local/lib/libtcmalloc_minimal.so.4",
        "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "1099511627776",
    }
    assert dockerfile.environment(official()) == tcmalloc | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    assert dockerfile.environment(official(target="cpu")) == tcmalloc
    openmp = tcmalloc | {"TF_ENABLE_ONEDNN_OPTS": "1", "KMP_BLOCKTIME": "0"}
    assert dockerfile.environment(official(threading="openmp")) == openmp


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("//tensorflow/x:build_pip_package", "bazel-bin/tensorflow/x/build_pip_package /wheel"),
        ("//tensorflow/x:wheel", "cp -r bazel-bin/tensorflow/x/wheel_house/. /wheel/"),
    ],
)
def test_the_wheel_is_collected_where_its_target_puts_it(target: str, command: str) -> None:
    assert dockerfile.collect(target) == command


def test_a_bundle_has_what_the_official_wheel_requires_where_that_is_known() -> None:
    assert dockerfile.packages(official()) == dockerfile.packages(from_source()) == "tensorflow-cpu==2.21.0"
    assert dockerfile.packages(replace(from_source(), release="2.99.0")) == ""


def test_the_compiler_is_named_for_bazel_s_own_toolchain_too() -> None:
    answers = dict(dockerfile.configure(from_source(compiler="clang-18")))
    assert answers["CC"] == answers["BAZEL_COMPILER"] == "/usr/bin/clang-18"


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
