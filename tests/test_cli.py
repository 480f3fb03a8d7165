"""The command line as a process: what its reader and its caller see."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_reader_that_went_away_is_no_error() -> None:
    end, pipe = os.pipe()
    os.close(end)
    with os.fdopen(pipe, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "plan", "--release", "2.20.0", "--cpu", "avx"],
            cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")
