"""The files of an index of wheels, but for the wheels: made of its rows, so that the same rows give the same bytes."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from packaging.version import Version

from tfbuild import facts
from tfbuild.bench import gain
from tfbuild.binary.inspector import open_archive
from tfbuild.cpu import isa
from tfbuild.pages import TEMPLATES, render
from tfbuild.plan import PLATFORMS
from tfbuild.publish import choose, indexes, wheel_rows
from tfbuild.publish.wheel_rows import CHOICES_FILE, SCHEMA, IndexedWheel, Parts, WheelList

TABLE_FILE, TOP_FILE, INSTALL_FILE = "choose.tsv", "index.html", "install.sh"
# Written after choose.json.
LAST_FILES = (TOP_FILE, INSTALL_FILE)
COLUMNS = ("release", "target", "python", "platform", "glibc", "speed", "set", "cpuinfo", "size", "sha256", "file")


def pages(
    rows: Sequence[IndexedWheel], gone: Sequence[IndexedWheel], url: str, *, variants: bool = False
) -> dict[str, str]:
    """Return the text of each file by its path, also of those pages that list nothing any more."""
    texts: dict[str, str] = {}
    sets: dict[str, dict[str, list[IndexedWheel]]] = defaultdict(lambda: defaultdict(list))
    for row in (*rows, *gone):
        sets[row.instruction_set][row.project] += [row] if row in rows else []
    for name, projects in sets.items():
        texts |= _simple(name, projects)
    if variants:
        texts |= _variant_pages(rows, gone)
    # The best first, because install.sh takes the first of equally fast ones.
    offered = sorted((row for row in rows if not row.yanked), key=lambda row: choose.rank(row.published), reverse=True)
    texts[TABLE_FILE] = "".join("\t".join(line) + "\n" for line in (COLUMNS, *map(columns, offered)))
    listed = msgspec.to_builtins(WheelList(schema=SCHEMA, wheels=tuple(rows), url=url))
    texts[CHOICES_FILE] = json.dumps(listed, indent=2) + "\n"
    texts[TOP_FILE] = _top_page(rows, url)
    texts[INSTALL_FILE] = (TEMPLATES / "index" / INSTALL_FILE).read_text(encoding="utf-8")
    return texts


def _simple(
    name: str, projects: Mapping[str, list[IndexedWheel]], documents: Mapping[str, Mapping[str, str]] = {}
) -> dict[str, str]:
    """Return the pages of one index. `documents`: other files beside the page of a project."""
    texts: dict[str, str] = {}
    for project, files in projects.items():
        others = documents.get(project, {})
        texts[f"{name}/simple/{project}/index.html"] = _project_page(project, files, others)
    links = [{"text": project, "attributes": {"href": f"{project}/"}} for project in sorted(projects)]
    title = f"TensorFlow for {name}"
    return texts | {f"{name}/simple/index.html": render("index/simple.html", title=title, links=links)}


def _top_page(rows: Iterable[IndexedWheel], url: str) -> str:
    """Return the table that people look at, the newest release and Python first, and their fastest set."""
    order = sorted(rows, key=lambda row: (Version(row.release), Version(row.python), choose.speed(row.published)))[::-1]
    measured = [
        gain.measured_operations(isa.instruction_set(row.features, PLATFORMS[row.platform]), row.release)
        for row in order
    ]
    table = [
        {"row": row, "address": quote(row.file), "megabytes": f"{row.size / 1e6:,.1f}", "measured": known}
        for row, known in zip(order, measured, strict=True)
    ]
    # Whole: a row leaves out what its release's official wheel is compiled for as well.
    sets = {known.cpu for known in measured if known}
    reports = [report for report in gain.measured_gains() if report.report and report.cpu in sets]
    return render("index/top.html", table=table, reports=reports, url=url.rstrip("/") or "URL")


def _project_page(project: str, rows: Iterable[IndexedWheel], documents: Mapping[str, str]) -> str:
    links = [
        {
            "text": row.name,
            "attributes": {
                # With "+" escaped, which S3 reads as a space.
                "href": f"../../../pool/{row.sha256}/{quote(row.name)}#sha256={row.sha256}",
                "data-requires-python": row.requires_python or None,
                "data-core-metadata": f"sha256={row.metadata}",
                "data-yanked": row.yanked or None,
            },
        }
        for row in rows
    ] + [
        {"text": name, "attributes": {"href": f"{quote(name)}#sha256={hashlib.sha256(text.encode()).hexdigest()}"}}
        for name, text in documents.items()
    ]
    return render("index/simple.html", title=f"Links for {project}", links=links)


def columns(row: IndexedWheel) -> list[str]:
    """Return the row of choose.tsv: what a shell on the host compares, with /proc/cpuinfo's names of the features."""
    return [
        row.release,
        row.target,
        row.python,
        row.platform,
        row.glibc,
        indexes.speed_text(row.published),
        row.instruction_set,
        indexes.cpuinfo(row.features),
        str(row.size),
        row.sha256,
        row.file,
    ]


# --- variants of one version in one index, of which uv takes the one for its CPU --------------------------------------


# The folder of the index that has them (PEP 825 and PEP 850: drafts). The lowest set is the plain wheel, which every
# client without variants takes. Wheels for exact levels are there a second time, with the level in their name.
AUTO = "auto"

# What says in that index that a wheel is for a level: `PROVIDER` is a package that clients know by name; none has to be
# installed. Tried with uv 0.13.9 --preview-features wheel-variants (2026-11); variantlib 0.2.2 writes another schema.
VARIANT_SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
PROVIDER = "x86-64-variant-provider"


def _variant_pages(rows: Sequence[IndexedWheel], gone: Sequence[IndexedWheel]) -> dict[str, str]:
    versions: dict[tuple[str, str], list[IndexedWheel]] = defaultdict(list)
    for (project, version, *_), group in _groups(rows).items():
        versions[project, version] += [group[0], *(row for row in group[1:] if row.variant)]
    projects: dict[str, list[IndexedWheel]] = {row.project: [] for row in (*rows, *gone)}
    documents: dict[str, dict[str, str]] = {name: {} for name in projects}
    texts: dict[str, str] = {}
    for (project, _), files in versions.items():
        projects[project] += [row.variant.row(row) if row.variant else row for row in files]
        if variants := [row for row in files if row.variant]:
            name = f"{Parts.parse(files[0].name).stem}-variants.json"
            documents[project][name] = texts[f"{AUTO}/simple/{project}/{name}"] = _document(variants)
    return texts | _simple(AUTO, projects, documents)


def variant_rows(rows: Iterable[IndexedWheel]) -> list[IndexedWheel]:
    """Return the rows that need a variant: those for levels, but for the lowest set of their version and Python."""
    levels = {level.name for level in facts.every_level("x86_64")}
    return [row for group in _groups(rows).values() for row in group[1:] if row.instruction_set in levels]


def write_variant(row: IndexedWheel, wheel: Path, scratch: Path) -> tuple[Path, bytes]:
    """Write the variant of a wheel into `scratch`; return it and its metadata, which are those of the wheel."""
    target = scratch / f"{row.name.removesuffix('.whl')}-{_label(row)}.whl"
    wheel_rows.rewrite(wheel, target, Parts.parse(row.name), {"variant.json": _document([row]).encode()})
    with open_archive(wheel) as archive:
        return target, wheel_rows.metadata(archive, row.name)


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


def _label(row: IndexedWheel) -> str:
    return row.instruction_set.replace("-", "_")


def _document(rows: Iterable[IndexedWheel]) -> str:
    sets = {level.name: level.variant for level in facts.every_level("x86_64")}
    variants = {_label(row): {"x86_64": {"level": [sets[row.instruction_set]]}} for row in rows}
    document: dict[str, Any] = {
        "$schema": VARIANT_SCHEMA,
        "default-priorities": {"namespace": ["x86_64"]},
        "providers": {"x86_64": {"requires": [PROVIDER]}},
        "variants": dict(sorted(variants.items())),
    }
    return json.dumps(document, indent=2) + "\n"
