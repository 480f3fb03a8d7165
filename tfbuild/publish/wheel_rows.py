"""The rows of an index of wheels: what choose.json says of each, and how they are read."""

import base64
import copy
import csv
import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from packaging.metadata import parse_email
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tfbuild.binary.inspector import FETCH_AGAIN, MOST_UNPACKED, open_archive, text_in
from tfbuild.cpu import isa
from tfbuild.cpu.isa import MACHINES
from tfbuild.errors import BadInput, RegistryRefused, TfbuildError
from tfbuild.pipeline.wheel import glibc
from tfbuild.plan import wheel as wheel_files
from tfbuild.publish.choose import Published
from tfbuild.util.files import decode

SCHEMA = "tfbuild.index/1"
CHOICES_FILE = "choose.json"
MOST_BYTES = 16 << 20
FOREIGN_HINT = "another version of tfbuild may have written it, or somebody else"
GLIBC = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,2}")


class VariantFile(msgspec.Struct, frozen=True, kw_only=True):
    """The same wheel with its instruction set in its name and metadata, for the index with variants."""

    file: str
    size: int
    sha256: str

    def row(self, wheel: "IndexedWheel") -> "IndexedWheel":
        """Return the row of the variant of a wheel."""
        return msgspec.structs.replace(wheel, file=self.file, size=self.size, sha256=self.sha256)


class IndexedWheel(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel of the index. `file`: its path from the top of the index.

    `python`: "3.11"; `glibc`: the oldest that it runs with, "" if nothing says so; `created`: the time of its newest
    member, "" without one. `yanked`: why nobody should install it any more, or "".
    """

    file: str
    size: int
    sha256: str
    metadata: str
    project: str
    version: str
    release: str
    python: str
    requires_python: str
    platform: str
    glibc: str
    target: str
    instruction_set: str
    features: tuple[str, ...]
    created: str
    yanked: str = ""
    variant: VariantFile | None = None

    @property
    def name(self) -> str:
        return self.file.rpartition("/")[2]

    @property
    def published(self) -> Published:
        """The row as an image, for the rules of `pull`."""
        return Published(
            id=f"{self.instruction_set}/{self.name}",
            digest=f"sha256:{self.sha256}",
            release=self.release,
            target=self.target,
            python=self.python,
            platform=self.platform,
            instruction_set=self.instruction_set,
            features=frozenset(self.features),
            created=self.created,
        )


class WheelList(msgspec.Struct, frozen=True, kw_only=True):
    """choose.json. `url`: where the index is served, "" if nobody has said so."""

    schema: str
    wheels: tuple[IndexedWheel, ...]
    url: str = ""


def is_sound(row: IndexedWheel) -> bool:
    """Return whether a row agrees with its file's name and with this tfbuild's names of features and sets."""
    try:
        file = wheel_files.from_name(Path(row.name))
        compiled = isa.instruction_set(row.features, file.arch)
    except TfbuildError:
        return False
    parts = Parts.parse(row.name)
    said = (row.project, row.version, row.release, row.python, row.platform, row.instruction_set)
    named = (file.project, parts.version, file.version, file.python, MACHINES[file.arch], compiled.name)
    place = f"pool/{row.sha256}/{row.name}"
    sized = 0 < row.size <= MOST_UNPACKED and SHA256.fullmatch(row.sha256) is not None
    # A name that promises no glibc leaves it to the row.
    promised = oldest_glibc(parts.platforms)
    agrees = row.glibc == promised if promised or not row.glibc else GLIBC.fullmatch(row.glibc) is not None
    return said == named and row.file == place and sized and agrees


def read_list(content: bytes, origin: str) -> WheelList:
    """Return the content of a choose.json; raises RegistryRefused with `origin` if this tfbuild cannot read it."""
    try:
        schema = decode(content, dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, not {SCHEMA}")
        return decode(content, WheelList)
    except ValueError as error:
        raise RegistryRefused(f"{origin} cannot be used: {error}", hint=FOREIGN_HINT) from error


def oldest_glibc(platforms: Iterable[str]) -> str:
    """Return the oldest glibc that a wheel's platforms promise; "" if they promise none."""
    versions = [version for tag in platforms if (version := glibc(tag)) is not None]
    return ".".join(map(str, min(versions))) if versions else ""


# --- another project, version, platform or file for a wheel -----------------------------------------------------------


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


def metadata(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the METADATA of the wheel called `name`.

    Raises BadInput if METADATA, WHEEL or RECORD is missing, or belongs to another wheel.
    """
    members = [member for member in archive.namelist() if METADATA.fullmatch(member)]
    if len(members) != 1:
        raise BadInput(f"{name} has {len(members)} METADATA files, not one", hint=FETCH_AGAIN)
    info = members[0].rpartition("/")[0]
    if lacking := {f"{info}/WHEEL", f"{info}/RECORD"} - {*archive.namelist()}:
        raise BadInput(f"{name} has no {min(lacking)}", hint=FETCH_AGAIN)
    content = text_in(archive, members[0])
    project, version, _, _ = parse_wheel_filename(name)
    raw = parse_email(content)[0]
    try:
        agrees = canonicalize_name(raw.get("name", "")) == project and Version(raw.get("version", "")) == version
    except ValueError:
        agrees = False
    if not agrees:
        raise BadInput(f"{name} has the METADATA of another wheel", hint="do not rename wheels; build it again")
    return content


def rewrite(wheel: Path, target: Path, new: Parts, added: Mapping[str, bytes] = {}) -> None:
    """Copy a wheel to `target` with the project, version and tags of `new`, and with files added to its .dist-info.

    Raises BadInput for a wheel that is broken.
    """
    with open_archive(wheel) as archive:
        text = metadata(archive, wheel.name)
        stem = next(match[1] for name in archive.namelist() if (match := METADATA.fullmatch(name)))
        old, info = f"{stem}.dist-info", f"{new.stem}.dist-info"
        changed = {f"{info}/{name}": content for name, content in added.items()}
        if new != Parts.parse(wheel.name):
            changed[f"{info}/METADATA"] = _with_fields(text, Name=new.project.replace("_", "-"), Version=new.version)
            changed[f"{info}/WHEEL"] = _with_tags(text_in(archive, f"{old}/WHEEL"), new.tags())
        names = {name: _moved(name, stem, new.stem) for name in archive.namelist()}
        record = text_in(archive, f"{old}/RECORD").decode()
        changed[f"{info}/RECORD"] = _recorded(record, names, changed, f"{info}/RECORD")
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
            for entry in archive.infolist():
                _copy(archive, entry, out, names[entry.filename], changed)
            for name in sorted(changed.keys() - set(names.values())):
                made = copy.copy(archive.getinfo(f"{old}/METADATA"))
                made.filename = name
                out.writestr(made, changed[name])


def _moved(name: str, old: str, new: str) -> str:
    top, slash, rest = name.partition("/")
    return f"{new}{top.removeprefix(old)}{slash}{rest}" if top in (f"{old}.dist-info", f"{old}.data") else name


def _with_fields(text: bytes, **fields: str) -> bytes:
    """Return METADATA with these fields; those of its description stay."""
    head, blank, body = text.partition(b"\n\n")
    for name, value in fields.items():
        head = re.sub(rb"(?m)^%s:.*$" % name.encode(), f"{name}: {value}".encode(), head, count=1)
    return head + blank + body


def _with_tags(text: bytes, tags: list[str]) -> bytes:
    lines = [line for line in text.decode().splitlines() if line and not line.startswith("Tag:")]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()


def _recorded(text: str, names: Mapping[str, str], changed: Mapping[str, bytes], own: str) -> bytes:
    """Return RECORD with moved names, the digests of changed files, and itself last; `own`: its own name."""
    rows = {names.get(row[0], row[0]): row[1:] for row in csv.reader(text.splitlines()) if row}
    for name, content in sorted(changed.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows[name] = [f"sha256={digest}", str(len(content))]
    rows.pop(own, None)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([name, *values] for name, values in rows.items())
    return f"{out.getvalue()}{own},,\n".encode()


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


def pip_digest(direct_url: bytes) -> str:
    """Return the sha256 that pip noted of a wheel from a file or an address (PEP 610); "" of one from an index."""
    try:
        archive = decode(direct_url or b"{}", dict[str, Any]).get("archive_info") or {}
        hashes = archive.get("hashes") or {}
        digest = str(hashes.get("sha256") or str(archive.get("hash", "")).removeprefix("sha256="))
    except (ValueError, AttributeError):
        return ""
    return digest if SHA256.fullmatch(digest) else ""
