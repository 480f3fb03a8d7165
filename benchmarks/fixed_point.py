"""How many values casts to Eigen's fixed-point types get wrong with AVX-512, with tfbuild's edit and without it.

    .venv/bin/python -m benchmarks.fixed_point RELEASE=FOLDER[:FOLDER...] ... [--compiler g++]

FOLDER: where a release's headers are, TensorFlow's first: its tree and Eigen's, or the `include` of an installed wheel.
The edit is that of the known failure avx512-fixed-point (tfbuild/facts/failures.toml). fixed_point.cc is compiled
against the headers as they are and as edited, for x86-64-v4 and for x86-64-v3, and run; this CPU must have AVX-512.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.harness import record
from tfbuild import cpu
from tfbuild.plan.failures import Edit, known_failures

SOURCE = Path(__file__).with_suffix(".cc")
FAILURE = "avx512-fixed-point"
LEVELS = ("x86-64-v4", "x86-64-v3")
Wrong = dict[str, int]


def edited(release: str, root: Path) -> tuple[Edit, Path]:
    """The release's edit, and the header below `root` that has its line."""
    for edit in (edit for failure in known_failures(release) if failure.id == FAILURE for edit in failure.edits):
        for path in sorted(root.glob(edit.files)):
            if edit.find in path.read_text(encoding="utf-8"):
                return edit, path
    raise SystemExit(f"no header with the line of {FAILURE} below {root}")


def wrong(header: Path, folders: list[Path], level: str, compiler: str) -> Wrong:
    """Each cast and how many of its 1,024 values are wrong."""
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        program = Path(scratch, "program")
        includes = [f"-I{folder}" for folder in (header.parent, *folders)]
        flags = ["-std=c++17", "-O2", "-w", f"-march={level}", f'-DHEADER="{header}"', *includes]
        subprocess.run([compiler, *flags, SOURCE, "-o", program], check=True)
        lines = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return {name: int(count) for name, count, _ in (line.split("\t") for line in lines)}


def measure(release: str, folders: list[Path], compiler: str) -> dict[str, Wrong]:
    edit, header = edited(release, folders[0])
    found = {f"{level}, as it is": wrong(header, folders, level, compiler) for level in LEVELS}
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        # The header includes its neighbours.
        copy = Path(shutil.copytree(header.parent, Path(scratch, "copy"))) / header.name
        copy.write_text(copy.read_text(encoding="utf-8").replace(edit.find, edit.replace), encoding="utf-8")
        found |= {f"{level}, edited": wrong(copy, folders, level, compiler) for level in LEVELS}
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="+", metavar="RELEASE=FOLDER[:FOLDER...]")
    parser.add_argument("--compiler", default="g++")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    if "avx512bw" not in cpu.detect().features:
        raise SystemExit("this CPU lacks AVX-512, without which the casts do not run")
    version = subprocess.run([chosen.compiler, "--version"], capture_output=True, text=True, check=True).stdout
    results: dict[str, object] = {"compiler": version.splitlines()[0], "of": 1024}
    for release, _, folders in (one.partition("=") for one in chosen.releases):
        found = measure(release, [Path(folder).resolve() for folder in folders.split(":")], chosen.compiler)
        results[release] = found
        for case, counts in found.items():
            bad = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
            print(f"{release}, {case}: {bad or 'none'} wrong of 1024", flush=True)
    print(record("fixed_point", results))


if __name__ == "__main__":
    main()
