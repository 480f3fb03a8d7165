"""What runs inside images runs here on a TensorFlow beside the test tools."""

import pytest

from tools.testing import TENSORFLOW


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with TensorFlow."""
    if not TENSORFLOW.is_file():
        pytest.skip(f"there is no {TENSORFLOW}; `invoke test` makes it")
    return str(TENSORFLOW)
