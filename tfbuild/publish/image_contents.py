"""What an image contains: Python and Debian packages and the builder's own notes, read from its files.

The image is not started, and nothing is guessed: facts that no file states are left out.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from debian.deb822 import Deb822
from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from tfbuild.engine import Engine, Files
from tfbuild.errors import BadInput, TfbuildError
from tfbuild.oci.references import DIGEST
from tfbuild.publish.wheel_names import SHA256, noted_digest
from tfbuild.util.terminal import cause

STATUS = "/var/lib/dpkg/status"
# Images without dpkg (distroless) have one file per package.
STATUS_FOLDER = "/var/lib/dpkg/status.d/"
SYSTEM = ("/etc/os-release", "/usr/lib/os-release")
# The builder's notes, if the wheel was compiled (templates/compile.sh).
BUILT = "/opt/tfbuild/build.txt"
COPYRIGHT = re.compile(r"/usr/share/doc/(?P<package>[^/]+)/copyright")
DOC = re.compile(r"/usr/share/doc/[^/]+")
METADATA = re.compile(r".*\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
DIRECT_URL = re.compile(r".*\.dist-info/direct_url\.json")
# Where auditwheel and delvewheel put the shared libraries bundled in a wheel.
BUNDLED = re.compile(r"(?P<site>.*)/(?P<package>[^/]+)\.libs/(?P<library>[^/]+)")
NOTICES = re.compile(r".*/tensorflow/THIRD_PARTY_NOTICES\.txt")
NOTICE = re.compile(r"^== (?P<name>.+)$", re.MULTILINE)
COMMIT = re.compile("[0-9a-f]{40}")
# The most that is read of an image. The image of 2.21.0 has 34 MB of libraries bundled in wheels.
MOST_BYTES = 512 << 20
# A License field may hold the whole text of a licence; anything longer than this is not a name.
LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class BundledLibrary:
    """A shared library bundled in a wheel, by its file name (the library's name, a hash, its version)."""

    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PythonPackage:
    """`path`: of its metadata; `expression`: SPDX; `licences`: names as written; `wheel_sha256`: of a wheel file."""

    name: str
    version: str
    path: str
    expression: str
    licences: tuple[str, ...]
    wheel_sha256: str
    libraries: tuple[BundledLibrary, ...]


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """`source`: the source package's name; `licences`: the short names in a machine-readable copyright file."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    licences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """`system`: os-release; `built`: the builder's notes; `notices`: projects whose licences TensorFlow includes."""

    python: tuple[PythonPackage, ...]
    debian: tuple[DebianPackage, ...]
    system: Mapping[str, str]
    built: Mapping[str, str]
    notices: tuple[str, ...]

    @property
    def source_commit(self) -> str:
        """TensorFlow's commit, "" unless it was compiled."""
        return self.built.get("source_commit", "")


def read_contents(engine: Engine, ref: str) -> Contents:
    """Read the whole image; takes some seconds per gigabyte. Raises UnknownImage or TfbuildError."""
    try:
        return of_files(engine.read_files(ref, _wanted, MOST_BYTES))
    except (OSError, tarfile.TarError) as error:
        raise TfbuildError(
            f"the files of {ref} cannot be read: {cause(error)}", hint="check the container engine, and try again"
        ) from error


def _wanted(path: str) -> bool:
    if path in (STATUS, BUILT, *SYSTEM) or path.startswith(STATUS_FOLDER):
        return True
    return any(pattern.fullmatch(path) for pattern in (COPYRIGHT, DOC, METADATA, DIRECT_URL, BUNDLED, NOTICES))


def of_files(files: Files) -> Contents:
    """Return what these files say that an image contains."""
    files_of_text = {path: content for path, content in files.files.items() if not BUNDLED.fullmatch(path)}
    text = {path: content.decode(errors="replace") for path, content in files_of_text.items()}
    notices = [path for path in text if NOTICES.fullmatch(path)]
    names = {match["name"].strip() for path in notices for match in NOTICE.finditer(text[path])}
    return Contents(
        python=tuple(sorted(_python(files), key=lambda package: (package.name, package.path))),
        debian=tuple(sorted(_debian(text, files.links), key=lambda package: (package.name, package.architecture))),
        system=next((_assignments(text[path]) for path in SYSTEM if path in text), {}),
        built=_built(text.get(BUILT, "")),
        notices=tuple(sorted(names - {"--"}, key=str.casefold)),
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


# --- Python ---


def _python(files: Files) -> Iterator[PythonPackage]:
    libraries = _libraries(files.files)
    for path, content in files.files.items():
        if not METADATA.fullmatch(path):
            continue
        metadata, _ = parse_email(content)
        name, version = metadata.get("name", ""), metadata.get("version", "")
        if not name or not version:
            continue
        folder = PurePosixPath(path).parent
        direct = files.files.get(f"{folder}/direct_url.json", b"")
        yield PythonPackage(
            name=str(canonicalize_name(name)),
            version=version,
            path=str(folder),
            expression=metadata.get("license_expression", ""),
            licences=tuple(_licences(metadata.get("license", ""), metadata.get("classifiers", []))),
            wheel_sha256=noted_digest(direct),
            libraries=tuple(libraries.get((str(folder.parent), str(canonicalize_name(name))), ())),
        )


def _licences(field: str, classifiers: Iterable[str]) -> list[str]:
    """Return the License field if it is a name, otherwise the classifiers."""
    name = field.strip()
    if name and "\n" not in name and len(name) <= LONGEST_NAME and name.upper() != "UNKNOWN":
        return [name]
    return sorted({text.rpartition("::")[2].strip() for text in classifiers if text.startswith("License ::")})


def _libraries(files: Mapping[str, bytes]) -> dict[tuple[str, str], list[BundledLibrary]]:
    """Return the bundled libraries by site folder and package name."""
    libraries: dict[tuple[str, str], list[BundledLibrary]] = {}
    for path, content in sorted(files.items()):
        if match := BUNDLED.fullmatch(path):
            library = BundledLibrary(file=match["library"], sha256=hashlib.sha256(content).hexdigest())
            libraries.setdefault((match["site"], str(canonicalize_name(match["package"]))), []).append(library)
    return libraries


# --- Debian ---


def _debian(text: Mapping[str, str], links: Mapping[str, str]) -> Iterator[DebianPackage]:
    files = [path for path in text if path == STATUS or path.startswith(STATUS_FOLDER)]
    for path in sorted(files):
        for stanza in _stanzas(text[path], path):
            name, status = stanza.get("Package", ""), stanza.get("Status", "install ok installed")
            if not name or not stanza.get("Version") or not status.endswith(" installed"):
                continue
            # "glibc", or "glibc (2.36-9)" if the binary package has another version.
            source, _, source_version = stanza.get("Source", name).partition("(")
            yield DebianPackage(
                name=name,
                version=stanza["Version"],
                architecture=stanza.get("Architecture", ""),
                source=source.strip(),
                source_version=source_version.strip(" )") or stanza["Version"],
                licences=tuple(_short_names(_copyright(name, text, links))),
            )


def _stanzas(text: str, path: str) -> Iterator[Deb822]:
    try:
        yield from Deb822.iter_paragraphs(text.splitlines(keepends=True), use_apt_pkg=False)
    except ValueError as error:
        raise BadInput(
            f"the image's {path} is not a list of packages: {error}", hint="build the image again"
        ) from error


def _copyright(package: str, text: Mapping[str, str], links: Mapping[str, str]) -> str:
    """Return a package's copyright file; its folder may be a link to that of another package of the same source."""
    folder = f"/usr/share/doc/{package}"
    if folder in links:
        folder = f"/usr/share/doc/{PurePosixPath(links[folder]).name}"
    return text.get(f"{folder}/copyright", "")


def _short_names(text: str) -> list[str]:
    """Return the licences that a machine-readable copyright file (DEP 5) names; [] for other files."""
    if not text.startswith("Format:"):
        return []
    try:
        stanzas = list(Deb822.iter_paragraphs(text.splitlines(keepends=True), use_apt_pkg=False))
    except ValueError:
        return []
    names = {stanza["License"].partition("\n")[0].strip() for stanza in stanzas if stanza.get("License")}
    return sorted(name for name in names if name and len(name) <= LONGEST_NAME)
