"""The rows for a new release are proposed from its wheels; tests/plan/test_tree.py has those from its tree."""

import tomllib
from pathlib import Path

from tests.binary import libraries
from tests.binary.test_scan import AVX, AVX2, everywhere, function, library, zipped
from tests.facts import newest, propose
from tests.rows import each
from tfbuild.facts import releases

NEXT = "2.99.0rc0"
NAME = "tensorflow_cpu-2.99.0rc0-cp399-cp399-manylinux_2_27_x86_64.whl"
METADATA = 'Requires-Dist: nvidia-cudnn-cu13<10.0,>=9.12; extra == "and-cuda"\n'


def said(folder: Path, text: bytes, pythons: list[str]) -> str:
    framework = libraries.library(libraries.recorded("tensorflow_cpu-2.14.0"), text=function(AVX))
    files = {
        "tensorflow/libtensorflow_framework.so.2": framework + text,
        "tensorflow/libtensorflow_cc.so.2": library(everywhere(AVX2), count=64),
        "x.dist-info/METADATA": METADATA.encode(),
    }
    return "".join(propose.of_wheel(zipped(folder / NAME, files), NEXT, "x86_64", pythons))


def test_what_a_wheel_says_otherwise_becomes_rows(tmp_path: Path) -> None:
    text = said(tmp_path, b"\0clang version 21.1.8\0", ["3.13", "3.99"])
    rows = {name: row for name, (row,) in tomllib.loads(text).items()}
    source = {"from": "2.99.0", "source": f"PyPI, files of {NEXT}"}
    assert rows["python"] == {**source, "versions": ["3.13", "3.99"], "sure": "index"}
    assert rows["compiler"] == {**source, "wheel": "clang-21.1.8", "measured": [NEXT], "sure": "wheel"}
    assert (rows["official_wheel"]["from"], rows["official_wheel"]["features"]) == ("2.99.0", ["avx", "avx2"])
    assert text.endswith("# [and-cuda] requires nvidia-cudnn-cu13<10.0,>=9.12: compare [[cuda]]\n")


@each(
    "arguments, said",
    [
        ([], "usage: python -m tests.facts.propose"),
        (["{}"], "does not say which release it is"),
        (["none"], "unknown TensorFlow release 'none'"),
    ],
)
def test_what_nothing_can_be_proposed_for_is_one_error(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in (propose.main([argument.format(tmp_path) for argument in arguments]) or "")


def test_what_it_says_as_the_facts_do_does_not(tmp_path: Path) -> None:
    compiler = releases.wheel_compiler(newest.RELEASE).replace("-", " version ")
    text = f"\0{compiler}\0"
    rows = tomllib.loads(said(tmp_path, text.encode(), list(releases.official_pythons(newest.RELEASE, "x86_64"))))
    assert not {"python", "compiler"} & rows.keys()
