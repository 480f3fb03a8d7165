"""A user's script under TensorFlow's own profiler, from the command line to the windows of its trace."""

import os
import subprocess
from pathlib import Path

from tfbuild.in_container.bench import script_profile
from tfbuild.in_container.bench.records import Profiled, Window
from tfbuild.measure import probe

FOLDER = Path(script_profile.__file__).parent
# Waits 50 ms for each row, computes for a while, and runs until the second window of its trace is complete.
SCRIPT = """
import glob, os, sys, time
import numpy as np
import tensorflow as tf

def read(index):
    time.sleep(0.05)
    return np.ones(64, np.float32)

@tf.function
def step(x):
    return tf.reduce_sum(tf.linalg.matmul(tf.ones([700, 700]) * x[0], tf.ones([700, 700])))

folder = os.environ["TFBUILD_PROFILE"]
for row in tf.data.Dataset.range(10**6).map(lambda index: tf.numpy_function(read, [index], tf.float32)):
    step(row).numpy()
    if glob.glob(folder + "/*/1/complete"):
        break
print("done", len(sys.argv), os.environ["PYTHONUNBUFFERED"], sys.stdin.read())
"""


def test_a_script_is_profiled_and_its_waits_are_told_from_its_steps(python: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [python, "-B", str(FOLDER), "--profile", "500", str(tmp_path), python, "train.py", "-x"]
    done = subprocess.run(command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (profiled,) = probe.records(done.stdout.decode(), [Profiled])
    assert (profiled.exit_code, profiled.tail[-1]) == (0, "done 2 1 ")
    assert 2 < profiled.seconds < 500
    window, *_ = profiled.windows
    assert isinstance(window, Window)
    assert 1 < window.span < 10
    assert 5 < window.asked < 100
    assert 0.2 * window.span < window.waiting < window.span
    assert 0 < window.compute < window.span - window.waiting + 0.1
    assert window.gpu == 0
