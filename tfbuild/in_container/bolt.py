"""Lay out TensorFlow's core library by LLVM's BOLT: `python bolt.py WHEEL CONSTRAINTS VERSION`, as a compile ends.

An instrumented copy of the library counts which way branches go while `python bolt.py` does the work below. Then BOLT
puts together what runs together. For that the compile links with --emit-relocs, which no library needs afterwards.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIBRARY = "tensorflow/libtensorflow_framework.so.2"
# Debian's BOLT looks for it in /usr/lib, and it is in a folder there.
RUNTIME = "llvm-{version}/lib/libbolt_rt_instr.a"
LAYOUT = ("-reorder-blocks=ext-tsp", "-reorder-functions=cdsort", "-split-functions", "-split-all-cold", "-split-eh")
# Of each kind of work.
SECONDS = 4.0


def lay_out(wheel: Path, constraints: Path, version: str, scratch: Path, training: Path = Path(__file__)) -> None:
    """Replace the core library in a wheel. Exits with a message where a program or the training fails.

    `constraints`: pip's, for what the wheel requires; `version`: BOLT's; `training`: what runs on the instrumented one.
    """
    bolt, profile = f"llvm-bolt-{version}", scratch / "profile"
    run("install the wheel", sys.executable, "-m", "venv", scratch / "venv")
    python, pip = scratch / "venv/bin/python", ("-m", "pip", "--disable-pip-version-check", "install", "--no-cache-dir")
    run("install the wheel", python, *pip, "--constraint", constraints, wheel)
    installed = next((scratch / "venv").glob(f"lib/python*/site-packages/{LIBRARY}"))
    linked = installed.rename(scratch / "linked.so")
    instrument = ("-instrument", f"-instrumentation-file={profile}", "-instrumentation-file-append-pid")
    runtime = f"--runtime-instrumentation-lib={RUNTIME.format(version=version)}"
    run("instrument the library", bolt, linked, *instrument, runtime, "-o", installed)
    run("run the sample program", python, training)
    run("lay out the library", f"merge-fdata-{version}", *scratch.glob("profile.*"), "-o", profile)
    run("unpack the wheel", sys.executable, "-m", "wheel", "unpack", "--dest", scratch / "unpacked", wheel)
    (content,) = (scratch / "unpacked").iterdir()
    for library in content.rglob("*.so*"):
        library.chmod(0o644)  # up to 2.15, some cannot be written
        run("remove relocations", "objcopy", "--remove-relocations=*", library)
    run("lay out the library", bolt, linked, "-data", profile, *LAYOUT, "-o", content / LIBRARY)
    (content / LIBRARY).chmod(0o644)
    run("pack the wheel", sys.executable, "-m", "wheel", "pack", "--dest-dir", wheel.parent, content)


def run(what: str, *words: "str | Path") -> None:
    """Run a program, and say for `invoke build` what is being done (tfbuild.pipeline.bazel). Exits where it fails."""
    print(f"tfbuild: bolt: {what}", flush=True)
    if code := subprocess.run(words, check=False).returncode:
        why = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        sys.exit(f"tfbuild: --bolt cannot {what} ({why}); leave it out, and nothing is compiled again")


# --- the training -----------------------------------------------------------------------------------------------------


def train() -> None:
    """Do each kind of work for SECONDS: what TensorFlow does itself, around and between kernels on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    for work in training():
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            work()


def training() -> Iterator[Callable[[], Any]]:
    """Yield functions that each do one kind of work: graphs, loops, eager steps, input, strings, Keras, tracing."""
    import tensorflow as tf

    def loop(count: Any) -> Any:
        step = tf.while_loop(lambda step, _: step < count, lambda step, x: (step + 1, x * 1.0001 + 0.5), (0, 1.0))
        return step[1]

    looped = tf.function(loop)
    yield lambda: looped(tf.constant(300))

    def chain(x: Any) -> Any:
        for number in range(400):
            x = tf.tanh(x) + x if number % 7 == 0 else x * 1.0001 if number % 2 else x - 0.001
        return x

    chained = tf.function(chain)
    yield lambda: chained(tf.ones([8]))

    weights = [tf.Variable(tf.random.normal([64, 64])), tf.Variable(tf.random.normal([64, 10]))]

    def eager() -> None:
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(tf.random.normal([8, 64]), weights[0]))
            loss = tf.reduce_mean(tf.nn.softmax(tf.matmul(hidden, weights[1])))
        for variable, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.01 * slope)

    yield eager

    def data() -> None:
        rows = tf.data.Dataset.range(2000).map(lambda value: (value * 2, tf.cast(value, tf.float32)))
        for _ in rows.filter(lambda value, _: value % 3 == 0).shuffle(100).batch(4).prefetch(2):
            pass

    yield data

    features = {
        "a": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * 20)),
        "b": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"words"])),
    }
    examples = [tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()] * 64
    wanted = {"a": tf.io.FixedLenFeature([20], tf.float32), "b": tf.io.VarLenFeature(tf.string)}
    yield lambda: tf.io.parse_example(examples, wanted)

    lines = tf.constant(["The quick brown fox jumps Over"] * 64)
    words = tf.function(lambda text: tf.strings.split(tf.strings.lower(text), " ").to_tensor())
    yield lambda: words(lines)

    layers = [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential([tf.keras.layers.Input((16,)), *layers])
    model.compile("adam", "mse")
    x, y = tf.random.normal([512, 16]), tf.random.normal([512, 2])
    yield lambda: model.fit(x, y, batch_size=16, verbose=0)
    yield lambda: model.predict(x, batch_size=64, verbose=0)

    recurrent = tf.keras.Sequential([tf.keras.layers.Input((20, 16)), tf.keras.layers.LSTM(32)])
    yield lambda: recurrent(tf.ones([4, 20, 16]))

    yield lambda: tf.function(lambda value: tf.nn.relu(tf.matmul(value, weights[0])) + 1.0)(tf.ones([2, 64]))


if __name__ == "__main__":
    if sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            lay_out(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3], Path(folder))
    else:
        train()
