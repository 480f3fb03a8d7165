"""The software bill of materials of an image, as CycloneDX 1.6: what its files say; what none says is left out.

The image is not started. The same image gives the same bytes. Source: cyclonedx.org/docs/1.6/json
"""

import json
import re
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from tfbuild import __version__
from tfbuild.context.labels import ImageLabels, read_labels
from tfbuild.engine import Engine, Image
from tfbuild.errors import TfbuildError
from tfbuild.oci.references import DIGEST
from tfbuild.plan import PLATFORMS, wheel
from tfbuild.publish import choose
from tfbuild.publish.wheel_rows import SHA256, pip_digest
from tfbuild.util.terminal import cause

STATUS = "/var/lib/dpkg/status"
OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")
# The builder's notes, if the wheel was compiled (templates/compile.sh).
BUILT = "/opt/tfbuild/build.txt"
METADATA = re.compile(r".*\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
DIRECT_URL = re.compile(r".*\.dist-info/direct_url\.json")
COMMIT = re.compile("[0-9a-f]{40}")
DPKG_FIELD = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*)$", re.MULTILINE)
# Of a name in a package's URL; a version in metadata may be anything.
PURL_NAME = re.compile(r"[\w.+-]+", re.ASCII)
# Control characters are in no field of a document; lone surrogates cannot be written.
UNWRITABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
# The most that is read of an image.
MOST_BYTES = 512 << 20
# The labels that say how TensorFlow was made.
LABELLED = ("release", "wheel", "requirement", "instruction-set", "copts", "compiler", "bazel", "source")
# Trivy's own properties begin with it.
TRIVY = "aquasecurity:trivy:"


# --- what is in the image ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PythonPackage:
    """`path`: of its metadata; `wheel_sha256`: of a wheel file that pip noted."""

    name: str
    version: str
    path: str
    wheel_sha256: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """`debian`: fields of each installed package; `system`: os-release; `built`: the builder's notes."""

    python: tuple[PythonPackage, ...]
    debian: tuple[Mapping[str, str], ...]
    system: Mapping[str, str]
    built: Mapping[str, str]


def read_contents(engine: Engine, ref: str) -> Contents:
    """Read the whole image; takes some seconds per gigabyte. Raises UnknownImage or TfbuildError."""
    try:
        return of_files(engine.read_files(ref, _wanted, MOST_BYTES))
    except (OSError, tarfile.TarError) as error:
        raise TfbuildError(
            f"the files of {ref} cannot be read: {cause(error)}", hint="check the container engine, and try again"
        ) from error


def _wanted(path: str) -> bool:
    return path in (STATUS, BUILT, *OS_RELEASE) or any(pattern.fullmatch(path) for pattern in (METADATA, DIRECT_URL))


def of_files(files: Mapping[str, bytes]) -> Contents:
    """Return what these files say that an image contains."""
    text = {path: files[path].decode(errors="replace") for path in (STATUS, BUILT, *OS_RELEASE) if path in files}
    return Contents(
        python=tuple(sorted(_python(files), key=lambda package: (package.name, package.path))),
        debian=tuple(sorted(_debian(text.get(STATUS, "")), key=lambda row: (row["Package"], row["Architecture"]))),
        system=next((_assignments(text[path]) for path in OS_RELEASE if path in text), {}),
        built=_built(text.get(BUILT, "")),
    )


def _assignments(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'") for name, _, value in lines}


def _built(text: str) -> dict[str, str]:
    """Return the builder's notes, without invalid digests."""
    notes = _assignments(text)
    notes["wheel"] = notes.get("wheel", "").partition(" ")[0]
    shapes = {"wheel": SHA256, "builder": DIGEST, "source_commit": COMMIT}
    return {name: value for name, value in notes.items() if name not in shapes or shapes[name].fullmatch(value)}


def _python(files: Mapping[str, bytes]) -> Iterator[PythonPackage]:
    for path, content in files.items():
        metadata = parse_email(content)[0] if METADATA.fullmatch(path) else {}
        name, version = str(canonicalize_name(metadata.get("name", ""))), metadata.get("version", "")
        if name and version:
            folder = PurePosixPath(path).parent
            yield PythonPackage(
                name=name,
                version=version,
                path=str(folder),
                wheel_sha256=pip_digest(files.get(f"{folder}/direct_url.json", b"")),
            )


def _debian(status: str) -> Iterator[dict[str, str]]:
    """Yield the fields of the packages that are installed; SourceVersion is that of their source package."""
    names = ("Package", "Version", "Architecture", "Source", "Status")
    for stanza in re.split(r"\n\s*\n", status):
        fields = dict(DPKG_FIELD.findall(stanza))
        row = {name: fields.get(name, "").strip() for name in names}
        if row["Package"] and row["Version"] and row["Status"].endswith(" installed"):
            # "glibc", or "glibc (2.36-9)" if the binary package has another version.
            source, _, version = row["Source"].partition("(")
            row["Source"] = source.strip() or row["Package"]
            yield row | {"SourceVersion": version.strip(" )") or row["Version"]}


def wheel_digest(contents: Contents, labels: Mapping[str, str]) -> str:
    """Return the digest of TensorFlow's wheel: as pip or the builder noted it, or the official one's; else "".

    pip installed an official wheel by that digest, but notes none of a wheel from an index.
    """
    noted = (package.wheel_sha256 for package in contents.python if package.name in wheel.projects())
    if found := next(filter(None, noted), "") or contents.built.get("wheel", ""):
        return found
    known = read_labels(labels)
    arch = PLATFORMS.get(known.get("platform"), "")
    if known.get("wheel") != "official" or not arch:
        return ""
    return wheel.official_sha256(known.get("requirement"), known.get("python"), arch)


# --- the document -----------------------------------------------------------------------------------------------------


def document(image: Image, contents: Contents) -> bytes:
    """Return the SBOM of an image with these contents, which may be anybody's."""
    known = read_labels(image.labels)
    created = choose.parse_time(image.created) or datetime.fromtimestamp(0, UTC)
    subject = _component(
        "container", "tfbuild", known.id, image.id, purl=_purl("docker", "tfbuild", image.id),
        properties={"tfbuild:image:config-digest": image.id},
    )  # fmt: skip
    rows = [*_base(known), *_interpreter(image.env)]
    rows += [_of_python(package, known, wheel_digest(contents, image.labels), contents) for package in contents.python]
    rows += [*_system(contents.system), *(_of_debian(package, contents.system) for package in contents.debian)]
    components = {row["bom-ref"]: row for row in rows}
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image.id)}",
        "version": 1,
        "metadata": {
            "timestamp": created.isoformat(),
            "tools": {"components": [{"type": "application", "name": "tfbuild", "version": __version__}]},
            "component": subject,
        },
        "components": list(components.values()),
        "dependencies": [{"ref": image.id, "dependsOn": sorted(components)}],
        # What is linked into TensorFlow is not known.
        "compositions": [{"aggregate": "incomplete", "assemblies": [image.id]}],
    }
    return json.dumps(content, indent=2).encode() + b"\n"


def _component(
    kind: str, name: str, version: str, ref: str, *, purl: str = "", sha256: str = "",
    properties: Mapping[str, str] = {}, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a component without the fields that are empty."""
    fields = {
        "type": kind,
        "name": UNWRITABLE.sub("?", name),
        "version": UNWRITABLE.sub("?", version),
        "bom-ref": UNWRITABLE.sub("?", ref),
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else [],
        "properties": [{"name": key, "value": UNWRITABLE.sub("?", value)} for key, value in properties.items()],
    }
    return {key: value for key, value in {**fields, **more}.items() if value}


def _purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """Return a package's URL (github.com/package-url/purl-spec); "" if its name is not valid."""
    if not all(PURL_NAME.fullmatch(part) for part in name.split("/")):
        return ""
    known = "&".join(f"{key}={quote(value, ':', errors='replace')}" for key, value in qualifiers.items() if value)
    path = "/".join(quote(part) for part in name.split("/"))
    return f"pkg:{kind}/{path}@{quote(version, ':', errors='replace')}{f'?{known}' if known else ''}"


def _base(labels: ImageLabels) -> Iterator[dict[str, Any]]:
    digest = labels.base_digest
    if DIGEST.fullmatch(digest):
        yield _component(
            "container", labels.base_name or "base", digest, f"base@{digest}", sha256=digest.removeprefix("sha256:"),
            description="the image that this one is based on",
        )  # fmt: skip


def _interpreter(env: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the Python that official Python images compile: they state its version, and no package manager knows it."""
    variables = dict(entry.partition("=")[::2] for entry in env)
    if version := variables.get("PYTHON_VERSION", ""):
        purl = _purl("generic", "python", version)
        yield _component("application", "python", version, f"python@{version}", purl=purl)


def _of_python(package: PythonPackage, labels: ImageLabels, tensorflow: str, contents: Contents) -> dict[str, Any]:
    """Return a Python package. `tensorflow`: the digest of TensorFlow's wheel."""
    purl = _purl("pypi", package.name, package.version)
    is_tensorflow = package.name in wheel.projects()
    commit = contents.built.get("source_commit", "") if is_tensorflow else ""
    made = {f"tfbuild:tensorflow:{name}": labels.get(name) for name in LABELLED if is_tensorflow and labels.get(name)}
    return _component(
        "library", package.name, package.version, f"{purl}#{package.path}", purl=purl,
        sha256=tensorflow if is_tensorflow else package.wheel_sha256,
        properties={"tfbuild:path": package.path} | made,
        pedigree={"commits": [{"uid": commit}]} if commit else {},
    )  # fmt: skip


def _system(system: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the distribution; without it, Trivy ignores its packages (aquasecurity/trivy, pkg/sbom/io/decode.go)."""
    vendor, release = system.get("ID", ""), system.get("VERSION_ID", "")
    if vendor and release:
        yield _component("operating-system", vendor, release, f"system {vendor}-{release}")


def _of_debian(package: Mapping[str, str], system: Mapping[str, str]) -> dict[str, Any]:
    """Return a Debian package.

    Advisories name source packages: Grype reads them from the purl's `upstream`, as Syft writes it, and Trivy from
    properties of its own (aquasecurity/trivy, pkg/sbom/core).
    """
    name, version, arch, source, of_source = (
        package[key] for key in ("Package", "Version", "Architecture", "Source", "SourceVersion")
    )
    vendor, release = system.get("ID", "debian"), system.get("VERSION_ID", "")
    purl = _purl(
        "deb", f"{vendor}/{name}", version, arch=arch, distro=f"{vendor}-{release}" if release else "",
        upstream=f"{source}@{of_source}" if of_source != version else source if source != name else "",
    )  # fmt: skip
    properties = {"tfbuild:deb:source": source, f"{TRIVY}SrcName": source, f"{TRIVY}SrcVersion": of_source}
    reference = purl or f"deb {name} {version} {arch}"
    return _component("library", name, version, reference, purl=purl, properties=properties)
