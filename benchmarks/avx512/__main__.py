"""What an image does on an emulated CPU with AVX-512: benchmarks/results/avx512.json.

    .venv/bin/python -m benchmarks.avx512 IMAGE [IMAGE ...]

QEMU's user emulation (`benchmarks.emulated`) ends at AVX2. Bochs emulates a whole machine, which boots Linux with the
image as its disk: once as a Haswell, which has AVX2 and no AVX-512, and once as a Skylake-X. There run the image's
entry point, then a convolution and a matrix product without the entry point, and `tfbuild-smoke`, which checks numbers,
TCMalloc and oneDNN. Takes about 15 minutes of CPU time for each image and CPU.

Needs Debian's packages bochs, bochs-term, isolinux, xorriso, busybox-static, kmod, cpio and e2fsprogs. The kernel comes
from Debian's package, which is downloaded and unpacked, not installed.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.avx512 import machine
from benchmarks.emulated import PROGRAM
from benchmarks.harness import record
from tfbuild import cpu

CPUS = {"Haswell": "corei7_haswell_4770", "Skylake-X": "corei7_skylake_x"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="+", help="images on the engine, built for x86-64")
    options = parser.parse_args()
    outcomes: dict[str, list[dict[str, object]]] = {}
    with tempfile.TemporaryDirectory(prefix="tfbuild-bochs-") as name:
        folder = Path(name)
        modules = machine.unpacked_kernel(folder)
        for image in options.image:
            machine.write_boot_image(image, modules, PROGRAM, folder)
            with machine.disk(image, folder) as disk:
                outcomes[image] = [outcome(image, name, disk, folder) for name in CPUS]
    print(record("avx512", {"bochs": machine.version(), "kernel": modules.name, "images": outcomes}))


def outcome(image: str, name: str, disk: Path, folder: Path) -> dict[str, object]:
    """The CPU's features, how the entry point ended, TensorFlow without it, and what `tfbuild-smoke` found."""
    steps, seconds = machine.run(CPUS[name], disk, folder)
    guarded, alone, smoke = steps["entry_point"], steps["without_it"], steps["smoke"]
    # Where the entry point refuses the CPU, tfbuild-smoke does not run.
    found = json.loads(smoke.output) if guarded.code == 0 else None
    print(f"{image} on {name}: entry point {guarded.code}, without it {alone.code}, smoke {smoke.code}", flush=True)
    return {
        "cpu": name,
        "features": sorted(cpu.parse(steps["cpuinfo"].output, machine="x86_64").features),
        "entry_point": guarded.code,
        "says": guarded.errors.strip().splitlines()[-1] if guarded.code else "",
        "without_it": alone.code,
        "computed": alone.output.strip() == "computed",
        "smoke": found and {"verdict": found["verdict"], "checks": {row["name"]: row for row in found["checks"]}},
        "cpu_seconds": round(seconds),
    }


if __name__ == "__main__":
    main()
