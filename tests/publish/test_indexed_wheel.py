"""`--wheel index:URL`: an image's wheel is the best of an index for the requested CPU."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.commandline import answer, invoke
from tests.publish.wheels import wheel
from tfbuild.publish import wheel_index


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with two sets of 2.14.0, another Python's, and what nobody gets: yanked, for CUDA, for a newer glibc."""
    folder = tmp_path_factory.mktemp("index")
    for number, (name, python, more) in enumerate(
        [("avx", "3.11", {}), ("x86-64-v4", "3.11", {}), ("x86-64-v4", "3.12", {}), ("x86-64-v4", "3.13", {}),
         ("x86-64-v4", "3.14", {"target": "cuda"}), ("avx", "3.13", {"audited": "manylinux_2_99_x86_64"})]
    ):  # fmt: skip
        wheel(folder / f"built{number}", name, python=python, **more)
        wheel_index.index(folder / "public", wheel_index.of_folder(folder / f"built{number}"), print)
    wheel_index.index(folder / "public", [], print, yanks={"x86-64-v4/*cp313*": "broken"})
    return folder / "public"


def words(public: Path, cpu: str, *more: str) -> tuple[str, ...]:
    return ("--target", "mkl", "--wheel", f"index:{public}", "--cpu", cpu, *more)


@pytest.mark.parametrize(
    ("cpu", "compiled", "python"),
    [("x86-64-v4-vnni", "x86-64-v4", "3.12"), ("haswell", "avx", "3.11")],
)
def test_an_image_gets_the_largest_set_that_its_cpu_runs(
    public: Path, cpu: str, compiled: str, python: str, tmp_path: Path
) -> None:
    done = invoke("build", *words(public, cpu), "--dry-run", "--json", cwd=tmp_path)
    (plan,) = json.loads(done.stdout)
    assert (plan["instruction_set"], plan["python"], plan["release"]) == (compiled, python, "2.14.0")
    sha256 = plan["wheel"]["sha256"]
    (copied,) = (tmp_path / "build" / plan["id"] / "context").rglob("*.whl")
    assert hashlib.sha256(copied.read_bytes()).hexdigest() == sha256
    assert f"for {compiled}, sha256:{sha256}" in done.stderr
    # The second run downloads nothing.
    assert "download: " in done.stderr
    assert "download: " not in invoke("plan", *words(public, cpu), cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("cpu", "more", "why"),
    [
        ("x86-64-v2", (), "fits this request: .*not avx/.* this CPU lacks avx xsave"),
        ("x86-64-v4", ("--release", "2.15"), "hint: its releases: 2.14.0; or compile one: invoke wheel"),
        (
            "x86-64-v4",
            ("--python", "3.13"),
            r"fits this request: .*cp313.* it needs glibc 2\.99; its base has 2\.\d+\n",
        ),
    ],
)
def test_an_index_without_a_fitting_wheel_is_an_error(
    public: Path, cpu: str, more: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    done = answer("plan", *words(public, cpu, *more), cwd=tmp_path)
    assert done.returncode == 27, done.stderr
    assert re.search(why, done.stderr), done.stderr
    assert not (tmp_path / "build").exists()
