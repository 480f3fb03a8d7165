"""TensorFlow 2.0.4, analysed whole by its own Bazel with exactly what the product renders for it.

The tree and the archives that it names lie beside the checkout, in shared/sources/2.0.4 of one of its parents; they are
in no repository and no registry. Nothing comes from a network. Nothing is compiled, so that this machine's own compiler
and Python stand in for the builder's.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.facts import trees
from tests.with_engine import mirror
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.facts import toolchains
from tfbuild.plan import Build, Request

RELEASE = "2.0.4"
SOURCES = [folder / "shared" / "sources" / RELEASE for folder in Path(__file__).resolve().parents]
HERE = next((folder for folder in SOURCES if folder.is_dir()), None)
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.sources,
    pytest.mark.skipif(HERE is None, reason=f"no shared/sources/{RELEASE} beside the checkout, nor can it be had"),
]
SECONDS = 900.0


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    arguments = [str(word) for word in command]
    return subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """tree, overrides, rules_docker.git, and Bazel's cache with the archives by their digests."""
    assert HERE is not None
    folder = tmp_path_factory.mktemp(RELEASE)
    for name, archive in (("tree", f"tensorflow-{RELEASE}"), ("overrides", "overrides"), ("git", "rules_docker.git")):
        (folder / name).mkdir()
        with tarfile.open(HERE / f"{archive}.tar.xz") as tar:
            tar.extractall(folder / name, filter="tar")
    shutil.copytree(HERE / "mkl_linux", folder / "overrides" / "mkl_linux")
    for file in (HERE / "archives").iterdir():
        kept = folder / "cache" / "content_addressable" / "sha256" / sha256(file) / "file"
        kept.parent.mkdir(parents=True)
        kept.symlink_to(file)
    yield folder
    # Bazel's outputs are read-only.
    run("chmod", "-R", "u+w", folder, cwd=folder)
    shutil.rmtree(folder, ignore_errors=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.fixture(scope="module")
def tree(work: Path) -> Path:
    (found,) = (work / "tree").iterdir()
    return found


@pytest.fixture(scope="module")
def build(work: Path, tree: Path) -> Build:
    overrides = tuple(f"{path.name}={path}" for path in sorted((work / "overrides").iterdir()))
    request = Request(
        target="mkl",
        release=RELEASE,
        python="3.7",
        cpu="x86-64-v3",
        compiler="gcc-9",
        base="debian:bullseye",
        platform="linux/amd64",
        source=str(tree),
        override_repository=overrides,
        # 2.0's own configs for oneDNN contradict each other, and XLA's LLVM cannot be had: see the folder's README.
        bazel_flag=("--define=build_with_mkl_dnn_only=true",),
        configure=("TF_ENABLE_XLA=0",),
        config=("noaws", "nohdfs", "noignite", "nokafka", "nonccl"),
        system_lib=("curl", "hwloc", "pcre", "swig"),
    )
    return plan.select(request, None)


@pytest.fixture(scope="module")
def fixed(work: Path, tree: Path, build: Build) -> Path:
    """The tree as the source stage leaves it, and the context in `work`."""
    fixes = dockerfile.write(build, work / "context").folder / "fixes"
    for patch in sorted(fixes.glob("*.patch")):
        done = run("git", "apply", "--whitespace=nowarn", patch, cwd=tree, env=alone(work))
        assert done.returncode == 0, done.stderr
    done = run(sys.executable, fixes.parent / "scripts" / "edit.py", tree, fixes / "edits.json", cwd=work)
    assert done.returncode == 0, done.stderr
    return tree


def alone(work: Path) -> dict[str, str]:
    """An environment in which git takes no folder above for a repository, and GitHub is the folder here."""
    home = work / "home"
    home.mkdir(exist_ok=True)
    github = f'[url "{work}/git/"]\n\tinsteadOf = https://github.com/\n'
    (home / ".gitconfig").write_text(f"{github}[safe]\n\tdirectory = *\n")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CEILING_DIRECTORIES": "/", **nowhere}


@pytest.fixture(scope="module")
def python(work: Path) -> Path:
    """A virtual environment, as the builder's is one; of numpy the analysis wants only a folder of headers."""
    folder = work / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=work)
    (packages,) = folder.glob("lib/python*/site-packages")
    headers = packages / "numpy" / "include"
    (headers / "numpy").mkdir(parents=True)
    (headers / "numpy" / "arrayobject.h").touch()
    (packages / "numpy" / "__init__.py").write_text(f"def get_include():\n    return {str(headers)!r}\n")
    return folder / "bin" / "python3"


def test_the_table_of_trees_says_of_it_what_it_says_itself(tree: Path) -> None:
    listed = trees.of(RELEASE)
    assert listed is not None
    assert trees.tree("here", str(tree)).facts == listed.facts


def test_its_known_failures_are_fixed_as_they_were_by_hand(build: Build, fixed: Path, work: Path) -> None:
    assert HERE is not None
    assert [row.id for row in build.fixes] == ["grpc-gettid", "python2-configuration"]
    for patch in (HERE / "patches").glob("*.patch"):
        done = run("git", "apply", "--reverse", "--check", patch, cwd=fixed, env=alone(work))
        assert done.returncode == 0, f"{patch.name}: {done.stderr}"


def test_a_fix_that_the_tree_has_already_does_not_apply(fixed: Path, work: Path) -> None:
    fixes = work / "context" / "fixes"
    assert run("git", "apply", fixes / "grpc-gettid.patch", cwd=fixed, env=alone(work)).returncode != 0
    done = run(sys.executable, fixes.parent / "scripts" / "edit.py", fixed, fixes / "edits.json", cwd=work)
    assert done.stderr == "tfbuild: the fix python2-configuration does not apply to this tree\n"


def test_its_own_bazel_analyses_the_wheel_with_the_plans_flags(
    build: Build, fixed: Path, work: Path, python: Path
) -> None:
    digest = toolchains.bazel_sha256(build.bazel, "x86_64")
    bazel = work / "bazel"
    shutil.copyfile(mirror.binary(build.bazel, digest), bazel)
    bazel.chmod(0o755)
    gcc = shutil.which("gcc")
    here = {plan.BUILD_PYTHON: str(python), "/usr/bin/gcc-9": gcc}
    env = alone(work) | {name: here.get(value) or value for name, value in dockerfile.configure(build)}
    env["PATH"] = f"{python.parent}:{work}:{env['PATH']}"
    # A newer Python than the builder's says that its distutils are old, which the tree takes for an error.
    env["PYTHONWARNINGS"] = "ignore"

    done = run(python, "configure.py", cwd=fixed, env=env)
    assert done.returncode == 0, done.stderr

    rc = (work / "context" / "bazelrc").read_text().replace("@BUILDER@", "0")
    rc = rc.replace(dockerfile.OVERRIDES, str(work / "overrides"))
    (work / "bazelrc").write_text(f"{rc}\nbuild --repository_cache={work}/cache --curses=no --color=no\n")
    options = (f"--bazelrc={work}/bazelrc", f"--output_user_root={work}/root", "--batch")
    done = run(bazel, *options, "build", "--nobuild", build.bazel_target, cwd=fixed, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "INFO: Analyzed target //tensorflow/tools/pip_package:build_pip_package" in done.stderr
