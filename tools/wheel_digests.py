"""The digests of TensorFlow's official wheels, as PyPI tells them.

    python -m tools.wheel_digests > tfbuild/facts/wheel_digests.json

Files on PyPI never change, so that what is written once holds. Each release that PyPI has and the facts know gets its
rows: a wheel by its requirement, Python and architecture.
"""

import json
import urllib.request
from collections.abc import Iterator
from functools import cache
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from tfbuild.errors import Unsupported
from tfbuild.facts import releases, targets
from tfbuild.plan import MACHINES
from tfbuild.plan.wheel import CPYTHON, LINUX, official_requirement

INDEX = "https://pypi.org/pypi/{}/json"
Digests = dict[str, dict[str, str]]


def wanted() -> Iterator[tuple[str, str]]:
    """The requirements that plans have, and the architecture of each."""
    for release in releases.releases():
        for arch in MACHINES:
            for target in targets.names():
                try:
                    yield official_requirement(release.version, target, arch), arch
                except Unsupported:
                    continue


def of_project(document: dict[str, Any], version: str) -> Iterator[tuple[str, str]]:
    """Python and architecture of each of the version's wheels for Linux, and its sha256."""
    for file in document["releases"].get(version, ()):
        if file["packagetype"] != "bdist_wheel":
            continue
        for tag in parse_wheel_filename(file["filename"])[3]:
            arch = next((arch for arch in MACHINES if LINUX.match(tag.platform) and tag.platform.endswith(arch)), "")
            if arch and (match := CPYTHON.fullmatch(tag.interpreter)) and int(match[1]) >= 11:
                yield f"3.{match[1]} {arch}", file["digests"]["sha256"]


@cache
def document_of(project: str) -> dict[str, Any]:
    """PyPI's document on a project."""
    with urllib.request.urlopen(INDEX.format(project)) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def collect() -> Digests:
    found: Digests = {}
    for words, arch in sorted(set(wanted())):
        requirement = Requirement(words)
        rows = dict(of_project(document_of(requirement.name), next(iter(requirement.specifier)).version))
        mine = sorted((place, digest) for place, digest in rows.items() if place.endswith(arch))
        found.setdefault(words, {}).update(mine)
    return found


if __name__ == "__main__":
    print(json.dumps(collect(), indent=1))
