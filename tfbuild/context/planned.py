"""What an image claims to be: its labels, read once and checked, and the known defects of its release."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfbuild.context.labels import ALLOCATOR, PREFIX, is_version, read_labels
from tfbuild.errors import UnknownImage
from tfbuild.facts import defects, targets
from tfbuild.in_container.smoke import judge

# The identifier names the report's files.
IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
PYTHON = re.compile(r"3\.\d{1,2}")
NEEDED = ("id", "release", "python", "target", "platform", "features", "allocator")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan that the labels carry; `features` in canonical names."""

    id: str
    release: str
    python: str
    target: str
    arch: str
    features: frozenset[str]
    threading: str
    allocator: str
    wheel: str = ""

    @classmethod
    def of(cls, ref: str, labels: Mapping[str, str], architecture: str) -> "Planned":
        """UnknownImage where the labels are not those of an image of that architecture ("amd64") that tfbuild made."""
        found = read_labels(labels)
        told = {name: found.get(name) for name in (*NEEDED, "threading", "wheel")}
        if missing := [PREFIX + name for name in NEEDED if name not in found.own]:
            raise UnknownImage(f"{ref} was not made by tfbuild: it has no label {missing[0]}", hint="invoke build")
        readable = {
            "id": bool(IDENTIFIER.fullmatch(told["id"])),
            "python": bool(PYTHON.fullmatch(told["python"])),
            "release": is_version(told["release"]),
            "target": targets.find(told["target"]) is not None,
            "allocator": told["allocator"] == ALLOCATOR,
            "platform": told["platform"] == f"linux/{architecture}",
        }
        if bad := [name for name, good in readable.items() if not good]:
            raise UnknownImage(f"{ref} has an unreadable label {PREFIX}{bad[0]}: {told[bad[0]][:40]!r}")
        return cls(
            id=told["id"],
            release=told["release"],
            python=told["python"],
            target=told["target"],
            arch="aarch64" if told["platform"].endswith("arm64") else "x86_64",
            features=frozenset(told["features"].split()),
            threading=told["threading"],
            allocator=told["allocator"],
            wheel=told["wheel"],
        )

    def smoke(self) -> judge.Plan:
        """What the smoke benchmark's judgement needs of it."""
        return judge.Plan(
            release=self.release,
            python=self.python,
            target=self.target,
            threading=self.threading,
            allocator=self.allocator,
            checks=targets.get(self.target).checks,
            known_defects=defects.known(self.release),
        )
