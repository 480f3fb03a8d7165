"""A published package with custom ops, in an image with stripped libraries."""

from collections.abc import Callable

import pytest

from tfbuild.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
INSTALL = (
    "RUN --mount=type=secret,id=ca if [ -e /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi "
    "&& pip install --no-cache-dir --no-deps {}"
)
# Each library loads its ops; those of one package run.
PROGRAM = """
import importlib.util
from pathlib import Path
import tensorflow as tf
loaded = 0
for package in ("tensorflow_text", "tensorflow_decision_forests"):
    folder = Path(importlib.util.find_spec(package).origin).parent
    for path in sorted(folder.rglob("*.so")):
        if b"OpDefBuilder" in path.read_bytes():
            tf.load_op_library(str(path))
            loaded += 1
import tensorflow_text as text
words = text.UnicodeScriptTokenizer().tokenize(["Proof, not claims."])
print(loaded, [word.decode() for word in words.to_list()[0]])
"""


def test_published_custom_ops_load_and_run(
    image: Callable[..., str], derived: Callable[..., str], engine: Engine
) -> None:
    packages = "tensorflow-text==2.18.1 tensorflow-decision-forests==1.11.0"
    ref = derived(image("2.18.1", target="cpu"), "USER root", INSTALL.format(packages), "USER 1000:1000")
    run = engine.run(ref, ["python", "-c", PROGRAM])
    assert run.exit_code == 0, run.stderr[-4000:]
    loaded, _, words = run.stdout.partition(" ")
    assert int(loaded) > 20
    assert words == "['Proof', ',', 'not', 'claims', '.']\n"
