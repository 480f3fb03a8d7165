"""The software bill of materials of an image, as CycloneDX 1.6. The same image gives the same bytes."""

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Commit, Component, ComponentType, Pedigree
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tfbuild import __version__
from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine, Image
from tfbuild.oci import references
from tfbuild.plan import PLATFORMS, wheel
from tfbuild.publish import choose, image_contents
from tfbuild.publish.image_contents import Contents, DebianPackage, PythonPackage

CONFIG = "tfbuild:image:config-digest"
# Trivy's own properties begin with it.
TRIVY = "aquasecurity:trivy:"


def of_image(engine: Engine, image: Image, ref: str) -> bytes:
    """Return the SBOM of an image on this engine; this reads the whole image."""
    return document(image, image_contents.read_contents(engine, ref))


def document(image: Image, contents: Contents) -> bytes:
    """Return the SBOM of an image with these contents."""
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, image.id))
    bom.metadata.timestamp = choose.moment(image.created) or datetime.fromtimestamp(0, UTC)
    bom.metadata.tools = ToolRepository(
        components=[Component(type=ComponentType.APPLICATION, name="tfbuild", version=__version__)]
    )
    subject = _subject(image, contents)
    bom.metadata.component = subject
    components = [*_base(image.labels), *_interpreter(image.env)]
    components += [_of_python(package, image.labels, contents) for package in contents.python]
    components += [*_system(contents.system), *(_of_debian(package, contents.system) for package in contents.debian)]
    for component in components:
        bom.components.add(component)
    bom.register_dependency(subject, components)
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"


def _subject(image: Image, contents: Contents) -> Component:
    properties = [Property(name=CONFIG, value=image.id)]
    properties += [Property(name="tfbuild:note", value=note) for note in notes(image.labels, contents)]
    return Component(
        type=ComponentType.CONTAINER,
        name="tfbuild",
        version=read_labels(image.labels).id or None,
        bom_ref=image.id,
        purl=_purl("docker", "tfbuild", image.id),
        properties=properties,
    )


def notes(labels: Mapping[str, str], contents: Contents) -> list[str]:
    """Return what the SBOM lacks, and why."""
    lines = []
    packages = [package for package in contents.python if package.name in wheel.projects()]
    if not packages:
        lines.append("no Python package of TensorFlow is in the image")
    elif not wheel_digest(contents, labels):
        lines.append("the digest of TensorFlow's wheel is not known")
    if packages and not contents.source_commit:
        lines.append("TensorFlow's source commit is not known: only a build from source writes it down")
    if packages:
        lines.append("the libraries that are linked into TensorFlow are not known, nor their versions")
    if not contents.debian:
        lines.append("no Debian package is in the image")
    if not read_labels(labels).base_digest:
        lines.append("the base image is not known")
    return lines


def _base(labels: Mapping[str, str]) -> Iterator[Component]:
    known = read_labels(labels)
    digest = known.base_digest
    if references.DIGEST.fullmatch(digest):
        yield Component(
            type=ComponentType.CONTAINER,
            name=known.base_name or "base",
            version=digest,
            bom_ref=f"base@{digest}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
            description="the image that this one stands on",
        )


def _interpreter(env: tuple[str, ...]) -> Iterator[Component]:
    """Yield the Python that official Python images compile: they state its version, and no package manager knows it."""
    variables = dict(entry.partition("=")[::2] for entry in env)
    if version := variables.get("PYTHON_VERSION", ""):
        yield Component(
            type=ComponentType.APPLICATION,
            name="python",
            version=version,
            purl=_purl("generic", "python", version),
            bom_ref=f"python@{version}",
        )


def _purl(
    kind: str, name: str, version: str, namespace: str = "", qualifiers: Mapping[str, str] = {}
) -> PackageURL | None:
    """Return a package's URL; None if its name is not valid."""
    try:
        purl = PackageURL(kind, namespace=namespace, name=name, version=version, qualifiers=dict(qualifiers))
        purl.to_string()  # some names are only refused here
        return purl
    except (ValueError, TypeError):
        return None


def _of_python(package: PythonPackage, labels: Mapping[str, str], contents: Contents) -> Component:
    purl = _purl("pypi", package.name, package.version)
    reference = f"{purl}#{package.path}"
    is_tensorflow = package.name in wheel.projects()
    digest = wheel_digest(contents, labels) if is_tensorflow else package.wheel_sha256
    commit = contents.source_commit if is_tensorflow else ""
    properties = [Property(name="tfbuild:path", value=package.path)]
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=purl,
        bom_ref=reference,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else [],
        pedigree=Pedigree(commits=[Commit(uid=commit)]) if commit else None,
        properties=[*properties, *(_of_tensorflow(labels) if is_tensorflow else ())],
        components=[
            Component(
                type=ComponentType.FILE,
                name=library.file,
                bom_ref=f"{reference}/{library.file}",
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=library.sha256)],
            )
            for library in package.libraries
        ],
    )


def _of_tensorflow(labels: Mapping[str, str]) -> Iterator[Property]:
    known = read_labels(labels)
    for name in ("release", "wheel", "requirement", "instruction-set", "copts", "compiler", "bazel", "source"):
        if value := known.get(name):
            yield Property(name=f"tfbuild:tensorflow:{name}", value=value)


def wheel_digest(contents: Contents, labels: Mapping[str, str]) -> str:
    """Return the digest of TensorFlow's wheel: as pip or the builder noted it, or the official one's; else "".

    pip installed an official wheel by that digest, but notes none of a wheel from an index.
    """
    noted = (package.wheel_sha256 for package in contents.python if package.name in wheel.projects())
    return next(filter(None, noted), "") or contents.built.get("wheel", "") or _official(labels)


def _official(labels: Mapping[str, str]) -> str:
    known = read_labels(labels)
    arch = PLATFORMS.get(known.get("platform"), "")
    if known.get("wheel") != "official" or not arch:
        return ""
    return wheel.official_sha256(known.get("requirement"), known.get("python"), arch)


def _system(system: Mapping[str, str]) -> Iterator[Component]:
    """Yield the distribution; without it, Trivy ignores its packages (aquasecurity/trivy, pkg/sbom/io/decode.go)."""
    vendor, release = system.get("ID", ""), system.get("VERSION_ID", "")
    if vendor and release:
        yield Component(
            type=ComponentType.OPERATING_SYSTEM, name=vendor, version=release, bom_ref=f"system {vendor}-{release}"
        )


def _of_debian(package: DebianPackage, system: Mapping[str, str]) -> Component:
    """Return a Debian package.

    Advisories name source packages: Grype reads them from the purl's `upstream`, as Syft writes it, and Trivy from
    properties of its own (aquasecurity/trivy, pkg/sbom/core).
    """
    vendor, release = system.get("ID", "debian"), system.get("VERSION_ID", "")
    same_version = package.source_version == package.version
    upstream = package.source if same_version else f"{package.source}@{package.source_version}"
    qualifiers = {
        "arch": package.architecture,
        "distro": f"{vendor}-{release}" if release else "",
        "upstream": "" if same_version and package.source == package.name else upstream,
    }
    known = {name: value for name, value in qualifiers.items() if value}
    purl = _purl("deb", package.name, package.version, vendor, known)
    properties = {
        "tfbuild:deb:source": package.source,
        f"{TRIVY}SrcName": package.source,
        f"{TRIVY}SrcVersion": package.source_version,
    }
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=purl,
        bom_ref=str(purl or f"deb {package.name} {package.version} {package.architecture}"),
        properties=[Property(name=name, value=value) for name, value in properties.items()],
    )
