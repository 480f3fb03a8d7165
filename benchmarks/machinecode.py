"""What `invoke inspect` finds in real wheels and in an image, and what it takes: CPU time, and memory of their size.

    .venv/bin/python -m benchmarks.machinecode [IMAGE]

The wheels come from PyPI. `shares`: of the regions of the main library, by feature.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.harness import record

IMAGE = "tfbuild:2.21.0-mkl-py3.11-f16c"
FEATURES = ("avx2", "bmi2", "fma", "f16c", "avx512f")
WHEELS = {
    "official 2.14.0": ("tensorflow-cpu==2.14.0",),
    "official 2.21.0": ("tensorflow-cpu==2.21.0",),
    "intel-tensorflow-avx512 2.14.0": ("intel-tensorflow-avx512==2.14.0",),
    "official 2.4.0": ("tensorflow-cpu==2.4.0", "--python-version=3.8", "--only-binary=:all:"),
}
# A process of its own, so that nothing else is among its children.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def inspected(subject: str, *options: str) -> dict[str, object]:
    """Seconds of CPU time, MiB at most, instructions that were decoded, and shares."""
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "invoke", "inspect", subject, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu, kib = done.stderr.splitlines()[-1].split()
    main = json.loads(done.stdout)["libraries"][0]
    shares = {name: main["features"].get(name, {}).get("share", 0) for name in FEATURES}
    return {
        "cpu_seconds": round(float(cpu), 1),
        "peak_mib": round(int(kib) / 1024),
        "instructions": main["instructions"],
        "shares": shares,
    }


def library_mib(wheel: Path) -> int:
    """The largest library in it, unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        return max(info.file_size for info in archive.infolist()) // 2**20


def main() -> None:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in WHEELS.items():
            output = Path(folder) / name
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(output), *words]
            subprocess.run(pip, check=True)
            (wheel,) = output.glob("*.whl")
            values = {"largest_library_mib": library_mib(wheel), **inspected(str(wheel))}
            if name == "official 2.21.0":
                values["full"] = inspected(str(wheel), "--full")
            results[name] = values
            print(name, values, flush=True)
    image = sys.argv[1] if len(sys.argv) > 1 else IMAGE
    results[f"image {image}"] = inspected(image)
    print(record("machinecode", results))


if __name__ == "__main__":
    main()
