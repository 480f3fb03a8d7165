"""Give a wheel another project, version or platform: in its file's name, its metadata, its tags and its RECORD.

The file of Bazel's own name promises a glibc that the compile does not keep, and every instruction set of a release
makes a file of one name.
"""

import base64
import copy
import csv
import hashlib
import io
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email
from packaging.utils import InvalidName, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tfbuild.binary.inspector import AGAIN, demand_sizes, open_archive, text_in
from tfbuild.errors import BadInput
from tfbuild.util.files import decode
from tfbuild.util.terminal import printable

METADATA = re.compile(r"([^/]+)\.dist-info/METADATA")
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a wheel's file name, as they are spelled there. `build`: with its "-", or ""."""

    project: str
    version: str
    build: str
    python: str
    abi: str
    platforms: tuple[str, ...]

    @classmethod
    def parse(cls, name: str) -> "Parts":
        """Split a name that packaging has accepted."""
        project, version, *build, python, abi, platforms = name.removesuffix(".whl").split("-")
        return cls(
            project=project,
            version=version,
            build="".join(f"-{number}" for number in build),
            python=python,
            abi=abi,
            platforms=tuple(platforms.split(".")),
        )

    @property
    def stem(self) -> str:
        return f"{self.project}-{self.version}"

    @property
    def file(self) -> str:
        return f"{self.stem}{self.build}-{self.python}-{self.abi}-{'.'.join(self.platforms)}.whl"

    def tags(self) -> list[str]:
        """Return the tags of a wheel with this name, which its WHEEL file repeats."""
        return ["-".join(tag) for tag in product(self.python.split("."), self.abi.split("."), self.platforms)]


def demand_installable(wheel: Path) -> None:
    """Raise BadInput for a wheel that pip or uv would refuse, or whose files are not as long as it says."""
    with open_archive(wheel) as archive:
        metadata(archive, wheel.name)
        demand_sizes(archive)


def metadata(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the METADATA of the wheel called `name`.

    Raises BadInput if it has none or several, or one that contradicts the name: pip and uv would refuse the wheel.
    """
    names = archive.namelist()
    members = [member for member in names if METADATA.fullmatch(member)]
    if len(members) != 1:
        raise BadInput(f"{name} has {len(members)} METADATA files, not one", hint=AGAIN)
    if odd := _odd_member(names, members[0].rpartition("/")[0]):
        raise BadInput(f"{name} is malformed: {odd}", hint=AGAIN)
    content = text_in(archive, members[0])
    project, version, _, _ = parse_wheel_filename(name)
    raw = parse_email(content)[0]
    try:
        agrees = canonicalize_name(raw.get("name", "")) == project and Version(raw.get("version", "")) == version
    except (InvalidName, ValueError):
        agrees = False
    if not agrees:
        raise BadInput(f"{name} has the METADATA of another wheel", hint="do not rename wheels; build it again")
    return content


def _odd_member(names: Sequence[str], info: str) -> str:
    """Return what pip or uv would refuse, or read in two ways; "" if there is nothing. `info`: the .dist-info."""
    if lacking := {f"{info}/RECORD", f"{info}/WHEEL"} - set(names):
        return f"it has no {min(lacking)}"
    twice = (name for name, count in Counter(names).items() if count > 1)
    outside = (name for name in names if name.startswith("/") or ".." in name.split("/"))
    folders = (name for name in names if (top := name.partition("/")[0]).endswith(".dist-info") and top != info)
    kinds = (("is in it twice", twice), ("is a path out of it", outside), ("is of another package", folders))
    return next((f"{printable(name)} {what}" for what, found in kinds for name in found), "")


def rename(wheel: Path, folder: Path, *, project: str, version: str, platforms: tuple[str, ...]) -> Path:
    """Return the wheel with this project, version and these platforms: itself, or a new file in `folder`."""
    old = Parts.parse(wheel.name)
    new = replace(old, project=project.replace("-", "_"), version=version, platforms=platforms)
    if new == old:
        return wheel
    target = folder / new.file
    with open_archive(wheel) as archive:
        text = metadata(archive, wheel.name)
        stem = _stem(archive)
        info = f"{new.stem}.dist-info"
        changed = {
            f"{info}/METADATA": _with_fields(text, Name=project, Version=version),
            f"{info}/WHEEL": _with_tags(text_in(archive, f"{stem}.dist-info/WHEEL"), new.tags()),
        }
        _rewrite(archive, target, new.stem, changed)
    return target


def add(wheel: Path, target: Path, name: str, content: bytes) -> bytes:
    """Write a wheel with one more file in its .dist-info, and return its METADATA."""
    with open_archive(wheel) as archive:
        text, stem = metadata(archive, wheel.name), _stem(archive)
        _rewrite(archive, target, stem, {f"{stem}.dist-info/{name}": content})
    return text


def _stem(archive: zipfile.ZipFile) -> str:
    """Return PROJECT-VERSION as the folders of a wheel with one METADATA have it."""
    (stem,) = (match[1] for name in archive.namelist() if (match := METADATA.fullmatch(name)))
    return stem


def _rewrite(archive: zipfile.ZipFile, target: Path, stem: str, changed: Mapping[str, bytes]) -> None:
    """Copy a wheel with PROJECT-VERSION `stem` in its folders' names, and these files changed or new."""
    old = _stem(archive)
    names = {info.filename: _moved(info.filename, old, stem) for info in archive.infolist()}
    record = text_in(archive, f"{old}.dist-info/RECORD").decode()
    changed = {**changed, f"{stem}.dist-info/RECORD": _recorded(record, names, changed)}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for entry in archive.infolist():
            _copy(archive, entry, out, names[entry.filename], changed)
        for name in sorted(changed.keys() - set(names.values())):
            new = copy.copy(archive.getinfo(f"{old}.dist-info/METADATA"))
            new.filename = name
            out.writestr(new, changed[name])


def _moved(name: str, old: str, new: str) -> str:
    top, slash, rest = name.partition("/")
    kind = top.removeprefix(old)
    return f"{new}{kind}{slash}{rest}" if top != kind and kind in (".dist-info", ".data") else name


def _with_fields(text: bytes, **fields: str) -> bytes:
    """Return METADATA with these fields; those of its description stay."""
    head, blank, body = text.partition(b"\n\n")
    for name, value in fields.items():
        head = re.sub(rb"(?m)^%s:.*$" % name.encode(), f"{name}: {value}".encode(), head, count=1)
    return head + blank + body


def _with_tags(text: bytes, tags: list[str]) -> bytes:
    lines = [line for line in text.decode().splitlines() if line and not line.startswith("Tag:")]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()


def _recorded(record: str, names: Mapping[str, str], changed: Mapping[str, bytes]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    rows = list(csv.reader(record.splitlines()))
    # RECORD itself is the last.
    rows[-1:-1] = [[name, "", ""] for name in sorted(changed.keys() - set(names.values()))]
    for name, *values in rows:
        path = names.get(name, name)
        if (content := changed.get(path)) is not None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            values = [f"sha256={digest}", str(len(content))]
        writer.writerow([path, *values])
    return out.getvalue().encode()


def _copy(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: zipfile.ZipFile, name: str, changed: Mapping[str, bytes]
) -> None:
    info = copy.copy(entry)
    info.filename = name
    if name in changed:
        out.writestr(info, changed[name])
        return
    with archive.open(entry) as source, out.open(info, "w") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def noted_digest(direct_url: bytes) -> str:
    """Return the sha256 that pip noted of a wheel from a file or an address (PEP 610); "" of one from an index."""
    try:
        archive = decode(direct_url or b"{}", dict[str, Any]).get("archive_info") or {}
        hashes = archive.get("hashes") or {}
        digest = str(hashes.get("sha256") or str(archive.get("hash", "")).removeprefix("sha256="))
    except (ValueError, AttributeError):
        return ""
    return digest if SHA256.fullmatch(digest) else ""
