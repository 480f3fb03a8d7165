"""What an image does on CPUs that this machine is not: benchmarks/results/emulated.json.

    .venv/bin/python -m benchmarks.emulated IMAGE [IMAGE ...]

For each CPU that QEMU's user emulation knows, from one without SSE4 to one with AVX2: how the image's entry point ends
where /proc/cpuinfo is that CPU's, and how TensorFlow ends when it runs on the emulated CPU without the entry point.
QEMU raises SIGILL for each instruction that the CPU lacks, up to AVX2. Needs gcc and qemu-user-static.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.harness import record
from tfbuild import cpu
from tfbuild.engine import Engine
from tfbuild.measure.probe import PYTHON

QEMU = "qemu-x86_64-static"
# Prints the emulated CPU's /proc/cpuinfo, which is the machine's own under user emulation.
CPUINFO = Path(__file__).parent.parent / "tests" / "data" / "emulated" / "cpuinfo_x86_64.c"
CPUS = ("Conroe", "Penryn", "Nehalem", "SandyBridge", "IvyBridge", "Haswell")
# A convolution's and a matrix product's kernels are those that the instruction set changes most.
PROGRAM = """
import numpy, tensorflow as tf
a = numpy.random.RandomState(0).rand(64, 64).astype("float32")
assert numpy.allclose(tf.linalg.matmul(a, a), a @ a, atol=1e-3)
image = a.reshape(1, 64, 64, 1)
assert tf.nn.conv2d(image, numpy.ones((3, 3, 1, 8), "float32"), 1, "SAME").shape == (1, 64, 64, 8)
print("computed")
"""
# The emulation takes about a minute for an import of TensorFlow.
SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="+", help="images on the engine, built for x86-64")
    images = parser.parse_args().image
    engine = Engine.connect()
    qemu = Path(shutil.which(QEMU) or parser.error(f"{QEMU} is missing: apt-get install qemu-user-static"))
    descriptions = describe(qemu)
    outcomes = {}
    for image in images:
        outcomes[image] = [{"cpu": name, **outcome(engine, image, qemu, name, descriptions[name])} for name in CPUS]
    print(record("emulated", {"qemu": version(qemu), "images": outcomes}))


def version(qemu: Path) -> str:
    return subprocess.run([qemu, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


def describe(qemu: Path) -> dict[str, bytes]:
    """The emulated CPUs' /proc/cpuinfo, by name."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "cpuinfo"
        subprocess.run(["gcc", "-static", "-O1", "-o", program, CPUINFO], check=True)
        return {
            name: subprocess.run([qemu, "-cpu", name, program], check=True, capture_output=True).stdout for name in CPUS
        }


def outcome(engine: Engine, image: str, qemu: Path, name: str, description: bytes) -> dict[str, object]:
    """The CPU's features, the entry point's exit code and last line, and how TensorFlow ends without it."""
    files = {"cpuinfo": description, "qemu": qemu.read_bytes()}
    with engine.sandbox(image, files, "/mnt") as sandbox:
        guarded = engine.run(image, ["true"], sandbox=sandbox.replacing({"/proc/cpuinfo": "cpuinfo"}))
        # A shell stands in between: the kernel ignores the signal by which QEMU's first process would end itself.
        command = ["-c", '/mnt/qemu "$@"; exit $?', "sh", "-cpu", name, PYTHON, "-c", PROGRAM]
        alone = engine.run(image, command, entrypoint=["/bin/sh"], sandbox=sandbox, timeout=SECONDS)
    row = {
        "features": sorted(cpu.parse(description.decode(), machine="x86_64").features),
        "entry_point": guarded.exit_code,
        "says": "" if guarded.exit_code == 0 else guarded.stderr.strip().splitlines()[-1],
        "without_it": alone.exit_code,
        "computed": alone.stdout.strip() == "computed",
    }
    print(f"{image} on {name}: entry point {row['entry_point']}, without it {row['without_it']}", flush=True)
    return row


if __name__ == "__main__":
    main()
