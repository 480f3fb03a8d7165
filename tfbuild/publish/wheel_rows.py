"""The rows of an index of wheels: what choose.json says of each, and how they are read."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tfbuild.binary.inspector import MOST_UNPACKED
from tfbuild.cpu import isa
from tfbuild.cpu.isa import MACHINES
from tfbuild.errors import RegistryRefused, TfbuildError
from tfbuild.pipeline.wheel import glibc
from tfbuild.plan import wheel as wheel_files
from tfbuild.publish.choose import Published
from tfbuild.publish.wheel_names import SHA256, Parts
from tfbuild.util.files import decode

SCHEMA = "tfbuild.index/1"
CHOICES = "choose.json"
MOST_BYTES = 16 << 20
GLIBC = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){1,2}")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What the wheel's sidecar says of how it was compiled. `builder`: a digest."""

    tfbuild: str
    builder: str
    compiler: str
    bazel: str | None
    source_commit: str | None


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
    member, "" without one. `built`: None for wheels that tfbuild did not compile. `yanked`: why nobody should install
    it any more, or "".
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
    built: Provenance | None
    yanked: str = ""
    variant: VariantFile | None = None

    @property
    def name(self) -> str:
        return self.file.rpartition("/")[2]

    @property
    def published(self) -> Published:
        """What the rules of `pull` choose by."""
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
    return said == named and row.file == place and sized and _glibc_agrees(row.glibc, parts.platforms)


def _glibc_agrees(said: str, platforms: Iterable[str]) -> bool:
    """Whether a row's glibc is the one that the wheel's name promises; a name without one leaves it to the row."""
    promised = oldest_glibc(platforms)
    if promised:
        return said == promised
    return not said or GLIBC.fullmatch(said) is not None


def read_list(content: bytes, origin: str) -> WheelList:
    """Return what is in a choose.json; raises RegistryRefused with `origin` if this tfbuild cannot read it."""
    try:
        schema = decode(content, dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, not {SCHEMA}")
        return decode(content, WheelList)
    except ValueError as error:
        raise RegistryRefused(
            f"{origin} cannot be used: {error}", hint="another version of tfbuild may have written it, or somebody else"
        ) from error


def oldest_glibc(platforms: Iterable[str]) -> str:
    """Return the oldest glibc that a wheel's platforms promise; "" if they promise none."""
    versions = [version for tag in platforms if (version := glibc(tag)) is not None]
    return ".".join(map(str, min(versions))) if versions else ""
