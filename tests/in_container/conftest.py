"""What runs inside images runs here on a TensorFlow beside the test tools."""

import os
from collections.abc import Iterator

import pytest

from tests.checkout import ROOT
from tools.testing import MAKES_TENSORFLOW, TENSORFLOW, provide_tensorflow


@pytest.fixture(scope="package")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python with TensorFlow; what it leaves behind, as it may in a container, goes with the tests' own folders."""
    if os.environ.get(MAKES_TENSORFLOW):
        provide_tensorflow(ROOT)
    if not TENSORFLOW.is_file():
        pytest.skip(f"there is no {TENSORFLOW}; `invoke test` makes it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("left")))
        # As in an image: by default, oneDNN is on only where the CPU has instructions for neural networks.
        patch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
        yield str(TENSORFLOW)
