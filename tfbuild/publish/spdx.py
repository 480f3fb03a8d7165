"""An SBOM as SPDX 2.3: what tfbuild's CycloneDX document says, in the other standard's words.

Source: spdx.github.io/spdx-spec/v2.3. The same image gives the same bytes. SPDX's licences are expressions of its own
list: a name that is none of those is in the comment.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from cyclonedx.spdx import is_expression

from tfbuild import __version__
from tfbuild.publish import choose

NOT_KNOWN = "NOASSERTION"
PURPOSES = {
    "container": "CONTAINER",
    "operating-system": "OPERATING_SYSTEM",
    "library": "LIBRARY",
    "application": "APPLICATION",
    "file": "FILE",
}
# A licence whose text an SPDX document would have to quote.
REFERENCE = re.compile(r"LicenseRef-|DocumentRef-")


def of_cyclonedx(bill: bytes) -> bytes:
    """Return an SBOM that tfbuild wrote as SPDX 2.3."""
    content = json.loads(bill)
    image = content["metadata"]["component"]
    packages = [*_flat(0, image), *(row for part in content.get("components", []) for row in _flat(1, part))]
    ids = [f"SPDXRef-{number}" for number in range(len(packages))]
    contained = [(ids[_owner(packages, number)], ids[number]) for number in range(1, len(packages))]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image.get("version") or image["name"],
        "documentNamespace": uuid.uuid5(uuid.NAMESPACE_URL, f"spdx {image['bom-ref']}").urn,
        "creationInfo": {
            "created": (choose.moment(content["metadata"]["timestamp"]) or datetime.fromtimestamp(0, UTC)).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
            "creators": [f"Tool: tfbuild-{__version__}"],
        },
        "packages": [_package(name, part) for name, (_, part) in zip(ids, packages, strict=True)],
        "relationships": [
            _relationship("SPDXRef-DOCUMENT", "DESCRIBES", ids[0]),
            *(_relationship(owner, "CONTAINS", part) for owner, part in contained),
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def _flat(depth: int, component: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield a component and what is in it, each with its depth."""
    yield depth, component
    for part in component.get("components", []):
        yield from _flat(depth + 1, part)


def _owner(packages: list[tuple[int, dict[str, Any]]], number: int) -> int:
    """Return the last package before this one that is one level above it."""
    depth = packages[number][0]
    return next(before for before in range(number - 1, -1, -1) if packages[before][0] < depth)


def _relationship(of: str, kind: str, to: str) -> dict[str, str]:
    return {"spdxElementId": of, "relationshipType": kind, "relatedSpdxElement": to}


def _package(spdx_id: str, component: dict[str, Any]) -> dict[str, Any]:
    expression, names = _licences(component.get("licenses", []))
    commits = [row["uid"] for row in component.get("pedigree", {}).get("commits", [])]
    properties = [f"{row['name']}: {row.get('value', '')}" for row in component.get("properties", [])]
    purl = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": component.get("purl")}
    known = {
        "versionInfo": component.get("version"),
        "checksums": [{"algorithm": "SHA256", "checksumValue": row["content"]} for row in component.get("hashes", [])],
        "externalRefs": [purl] if component.get("purl") else [],
        "sourceInfo": f"commit {', '.join(commits)}" if commits else "",
        "licenseComments": f"declared: {'; '.join(names)}" if names else "",
        "comment": "\n".join(properties),
    }
    return {
        "SPDXID": spdx_id,
        "name": component["name"],
        "downloadLocation": NOT_KNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": NOT_KNOWN,
        "licenseDeclared": expression or NOT_KNOWN,
        "copyrightText": NOT_KNOWN,
        "primaryPackagePurpose": PURPOSES[component["type"]],
        **{name: value for name, value in known.items() if value},
    }


def _licences(rows: Iterable[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return what of a component's licences is one expression of SPDX's, and the names of all others."""
    texts = [row.get("expression") or row["license"].get("id") or row["license"]["name"] for row in rows]
    if len(texts) == 1 and is_expression(texts[0]) and not REFERENCE.search(texts[0]):
        return texts[0], []
    return "", texts
