"""Variants of one version in one index, of which uv takes the one for its CPU (PEP 825 and PEP 850: drafts).

The lowest set is the plain wheel, which every client without variants takes. Wheels for exact levels are there a second
time, with the level in their name and a variant.json inside. NAME-VERSION-variants.json repeats all of them.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from tfbuild import facts
from tfbuild.binary.inspector import open_archive
from tfbuild.facts import Facts
from tfbuild.publish import choose, wheel_names
from tfbuild.publish.wheel_names import Parts
from tfbuild.publish.wheel_rows import IndexedWheel

# The folder of the index that has them.
AUTO = "auto"


class VariantFacts(Facts, frozen=True):
    schema: str
    namespace: str
    provider: str
    feature: str
    sets: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class VariantRelease:
    """One version of a project: its files, plain ones and variants, and its variants.json by name; "" for none."""

    project: str
    files: tuple[IndexedWheel, ...]
    name: str
    document: str


def variant_rows(rows: Iterable[IndexedWheel]) -> list[IndexedWheel]:
    """Return the rows that need a variant: those for levels, but for the lowest set of their version and Python."""
    sets, groups = _variant_facts().sets, _groups(rows).values()
    return [row for group in groups for row in group[1:] if row.instruction_set in sets]


def write(row: IndexedWheel, wheel: Path, scratch: Path) -> tuple[Path, bytes]:
    """Write the variant of a wheel into `scratch`; return it and its metadata, which are those of the wheel."""
    target = scratch / f"{row.name.removesuffix('.whl')}-{_label(row)}.whl"
    wheel_names.rewrite(wheel, target, Parts.parse(row.name), {"variant.json": _document([row]).encode()})
    with open_archive(wheel) as archive:
        return target, wheel_names.metadata(archive, row.name)


def releases(rows: Iterable[IndexedWheel]) -> list[VariantRelease]:
    """Return what the index with variants has."""
    versions: dict[tuple[str, str], list[IndexedWheel]] = defaultdict(list)
    for (project, version, *_), group in _groups(rows).items():
        versions[project, version] += [group[0], *(row for row in group[1:] if row.variant)]
    return [_release(group) for group in versions.values()]


def _release(rows: list[IndexedWheel]) -> VariantRelease:
    variants = [row for row in rows if row.variant]
    files = [row.variant.row(row) if row.variant else row for row in rows]
    return VariantRelease(
        project=rows[0].project,
        files=tuple(files),
        name=f"{Parts.parse(rows[0].name).stem}-variants.json",
        document=_document(variants) if variants else "",
    )


def _groups(rows: Iterable[IndexedWheel]) -> dict[tuple[str, str, str], list[IndexedWheel]]:
    """Return the x86-64 wheels of each version and Python that are offered, the lowest set first.

    Versions that name their set are left out: of those, clients without variants would take the highest.
    """
    groups: dict[tuple[str, str, str], list[IndexedWheel]] = defaultdict(list)
    for row in rows:
        if row.platform == "linux/amd64" and not row.yanked and Version(row.version).local is None:
            groups[row.project, row.version, row.python].append(row)
    for group in groups.values():
        group.sort(key=lambda row: choose.speed(row.published))
    return groups


def _variant_facts() -> VariantFacts:
    (known,) = facts.rows("variants", VariantFacts)
    return known


def _label(row: IndexedWheel) -> str:
    return row.instruction_set.replace("-", "_")


def _document(rows: Iterable[IndexedWheel]) -> str:
    known = _variant_facts()
    variants = {_label(row): {known.namespace: {known.feature: [known.sets[row.instruction_set]]}} for row in rows}
    document: dict[str, Any] = {
        "$schema": known.schema,
        "default-priorities": {"namespace": [known.namespace]},
        "providers": {known.namespace: {"requires": [known.provider]}},
        "variants": dict(sorted(variants.items())),
    }
    return json.dumps(document, indent=2) + "\n"
