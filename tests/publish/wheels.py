"""Small wheels of TensorFlow: the CPU guard of a real one, metadata, and one module."""

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from tests.binary import libraries
from tfbuild import facts
from tfbuild.cpu import isa

# Recorded guards, and the instruction sets of TensorFlow 2.14.0 that agree with each.
GUARDS = {"avx": "tensorflow_cpu-2.14.0", "x86-64-v4": "intel_tensorflow_avx512-2.14.0"}
MANYLINUX = "manylinux_2_28_x86_64"
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
WHEEL = "Wheel-Version: 1.0\nGenerator: bdist_wheel (0.41.2)\nRoot-Is-Purelib: false\nTag: {tag}\n"


def wheel(
    folder: Path,
    compiled: str = "avx",
    *,
    release: str = "2.14.0",
    python: str = "3.11",
    platform: str = "linux_x86_64",
    audited: str = MANYLINUX,
    guard: str = "",
    target: str = "mkl",
    requires: str = "",
    code: str = "",
    project: str = "tensorflow_cpu",
) -> Path:
    """A wheel for a set, with the sidecar that `invoke wheel` writes. `guard`: of another set; `code`: in hex."""
    tag = f"cp{python.replace('.', '')}"
    stem = f"{project}-{release}"
    held = libraries.recorded(GUARDS[guard or ("x86-64-v4" if "v4" in compiled else "avx")])
    library = libraries.library(held, text=bytes.fromhex(code))
    fields = [f"Requires-Dist: {requires}"] if requires else []
    head = [
        "Metadata-Version: 2.1",
        f"Name: {project.replace('_', '-')}",
        f"Version: {release}",
        "Requires-Python: >=3.9",
        *fields,
    ]
    members: dict[str, bytes] = {
        "tensorflow/__init__.py": f"__version__ = {release!r}\nset = {compiled!r}\n".encode(),
        FRAMEWORK: library,
        f"{stem}.data/purelib/tensorflow/note.txt": b"data\n",
        f"{stem}.others/note.txt": b"not of this version alone\n",
        f"{stem}.dist-info/METADATA": "\n".join([*head, "", "Name: of a section\n"]).encode(),
        f"{stem}.dist-info/WHEEL": WHEEL.format(tag=f"{tag}-{tag}-{platform}").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return described(
        zipped(folder / f"{stem}-{tag}-{tag}-{platform}.whl", members), compiled, audited=audited, target=target
    )


def zipped(path: Path, members: Mapping[str, bytes]) -> Path:
    """A wheel of these members and its RECORD."""
    record = f"{next(name for name in members if name.endswith('METADATA')).rpartition('/')[0]}/RECORD"
    rows = [f"{name},sha256={record_digest(content)},{len(content)}" for name, content in members.items()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, record: "\n".join([*rows, f"{record},,\n"]).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 3, 1, 12, 0, 0)), content)
    return path


def described(path: Path, compiled: str, *, audited: str = MANYLINUX, target: str = "mkl") -> Path:
    """The wheel with a sidecar beside it."""
    names = isa.resolve(compiled, arch="x86_64").features
    own = path.name.removesuffix(".whl").rpartition("-")[2].split(".")
    sidecar = {
        "schema": "tfbuild.wheel/1",
        "wheel": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "plan": {"target": target, "features": sorted(names), "instruction_set": compiled},
        "audit": {"platform_tag": audited, "own_tags": own, "needs": {"GLIBC": "2.28"}, "external_libraries": []},
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(sidecar))
    return path


def record_digest(content: bytes) -> str:
    """The digest of a file as a wheel's RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def cpuinfo(path: Path, compiled: str) -> Path:
    """A recording of a CPU that has just the features of that set."""
    flags = " ".join(("fpu", "lm", *facts.cpuinfo_names(isa.resolve(compiled, arch="x86_64").features)))
    path.write_text(f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: {compiled}\nflags\t\t: {flags}\n\n")
    return path


def files(folder: Path) -> dict[str, bytes]:
    """What a web server has of a folder, by path."""
    content = {
        f"/{quote(str(path.relative_to(folder)))}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    pages = {name.removesuffix("index.html"): page for name, page in content.items() if name.endswith("/index.html")}
    return content | pages
