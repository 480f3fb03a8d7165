"""The plan in an image's labels, read once and checked, and the known defects of its release."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.context.labels import ALLOCATOR, PREFIX, is_version, read_labels
from tfbuild.errors import UnknownImage
from tfbuild.facts import defects, targets
from tfbuild.facts.release_table import spelled
from tfbuild.in_container.smoke import judge

# The identifier names the report's files.
IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)
NEEDED = ("id", "release", "python", "target", "platform", "features", "allocator")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan in an image's labels. `features` are canonical names; `version`: of the tfbuild that made the image."""

    id: str
    release: str
    python: str
    target: str
    arch: str
    features: frozenset[str]
    threading: str
    allocator: str
    wheel: str = ""
    instruction_set: str = ""
    compute_capabilities: tuple[str, ...] = ()
    version: str = ""

    @classmethod
    def of(cls, ref: str, labels: Mapping[str, str], architecture: str) -> "Planned":
        """Read the labels; raises UnknownImage if tfbuild made no such image for that architecture ("amd64")."""
        image = read_labels(labels)
        values = {name: image.get(name) for name in (*NEEDED, "threading", "wheel")}
        if missing := [PREFIX + name for name in NEEDED if name not in image.own]:
            raise UnknownImage(f"{ref} was not made by tfbuild: it has no label {missing[0]}", hint="invoke build")
        readable = {
            "id": bool(IDENTIFIER.fullmatch(values["id"])),
            "python": bool(PYTHON.fullmatch(values["python"])),
            "release": is_version(values["release"]),
            "target": targets.find(values["target"]) is not None,
            "allocator": values["allocator"] == ALLOCATOR,
            "platform": values["platform"] == f"linux/{architecture}",
        }
        if bad := [name for name, good in readable.items() if not good]:
            raise UnknownImage(f"{ref} has an unreadable label {PREFIX}{bad[0]}: {values[bad[0]][:40]!r}")
        return cls(
            id=values["id"],
            release=values["release"],
            python=values["python"],
            target=values["target"],
            arch="aarch64" if values["platform"].endswith("arm64") else "x86_64",
            features=frozenset(values["features"].split()),
            threading=values["threading"],
            allocator=values["allocator"],
            wheel=values["wheel"],
            instruction_set=image.get("instruction-set"),
            compute_capabilities=tuple(image.get("compute-capabilities").split()),
            version=image.get("version"),
        )

    @property
    def platform(self) -> str:
        return f"linux/{'arm64' if self.arch == 'aarch64' else 'amd64'}"

    def smoke(self) -> judge.Plan:
        """Return what the smoke benchmark's judgement needs."""
        return judge.Plan(
            release=spelled(self.release),
            python=self.python,
            target=self.target,
            threading=self.threading,
            allocator=self.allocator,
            checks=targets.get(self.target).checks,
            known_defects=defects.known(self.release),
        )
