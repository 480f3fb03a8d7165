"""Whether published packages with custom ops need a function that an image's TensorFlow no longer exports.

    .venv/bin/python -m benchmarks.addons

templates/unexport.py takes weak functions out of what TensorFlow's largest library exports. Here every library of every
package below is read, with the official wheel that it was compiled against: none may ask for a name that would go.
Downloads 2 GB of wheels for x86-64 from the package registry, and needs no engine.
"""

import runpy
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from tfbuild.context.dockerfile import TEMPLATES

PYTHON = "3.11"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
# By the release of TensorFlow that each package's wheel was compiled against.
PACKAGES = {
    "2.14.1": ("dm-reverb==0.14.0", "tensorflow-addons==0.23.0", "tensorflow-compression==2.14.1"),
    "2.15.1": (
        "struct2tensor==0.48.1", "tensorflow-quantum==0.7.3", "tensorflow-recommenders-addons==0.8.1",
        "tfx-bsl==1.16.1",
    ),
    "2.16.2": ("tensorflow-io==0.37.1", "tensorflow-io-gcs-filesystem==0.37.1"),
    "2.18.1": ("tensorflow-decision-forests==1.11.0", "tensorflow-text==2.18.1"),
    "2.20.0": ("tensorflow-text==2.20.1",),
}  # fmt: skip
UNEXPORT: dict[str, Any] = runpy.run_path(str(TEMPLATES / "unexport.py"))
AT_LEAST = 100 << 20  # bytes, as in templates/slim.sh


def unpacked(requirement: str, folder: Path) -> Path:
    """Download a package's wheel and return the folder with its libraries."""
    wheels = folder / f"wheels-{requirement}"
    options = ["--only-binary", ":all:", "--python-version", PYTHON, "--no-deps", "--dest", str(wheels)]
    options += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, requirement], check=True)
    (wheel,) = wheels.iterdir()
    target = folder / requirement
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, [name for name in archive.namelist() if ".so" in name])
    wheel.unlink()
    return target


def libraries(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file():
            yield UNEXPORT["Library"](path)


def compare(release: str, folder: Path) -> dict[str, object]:
    """What goes from a release, and what each package asks of it: of all its libraries, and of what would go."""
    tensorflow = unpacked(f"tensorflow-cpu=={release}", folder)
    (largest,) = (library for library in libraries(tensorflow) if library.path.stat().st_size > AT_LEAST)
    symbols = list(largest.symbols())
    numbers = UNEXPORT["removable"](largest, UNEXPORT["names_in"]([tensorflow], largest.path))
    gone = {symbols[number].name for number in numbers}
    exported = {symbol.name for symbol in symbols if symbol.section}
    packages = {}
    for requirement in PACKAGES[release]:
        asked = [
            {symbol.name for symbol in library.symbols() if not symbol.section}
            for library in libraries(unpacked(requirement, folder))
        ]
        packages[requirement] = {
            "libraries": len(asked),
            "of_tensorflow": len(set().union(*asked) & exported),
            "of_gone": len(set().union(*asked) & gone),
        }
    return {"exported": len(exported), "gone": len(gone), "packages": packages}


def main() -> None:
    releases: dict[str, Any] = {}
    for release in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            releases[release] = compare(release, Path(folder))
        print(release, releases[release])
    every = [row for found in releases.values() for row in found["packages"].values()]
    total = {name: sum(row[name] for row in every) for name in ("libraries", "of_tensorflow", "of_gone")}
    print(record("addons", {"releases": releases, "packages": len(every), **total}))


if __name__ == "__main__":
    main()
