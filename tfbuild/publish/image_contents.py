"""What an image contains: Python and Debian packages and the builder's own notes, read from its files.

The image is not started, and nothing is guessed: facts that no file states are left out.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from tfbuild.engine import Engine, Files
from tfbuild.errors import TfbuildError
from tfbuild.oci.references import DIGEST
from tfbuild.publish.wheel_names import SHA256, noted_digest
from tfbuild.util.terminal import cause

STATUS = "/var/lib/dpkg/status"
# Images without dpkg (distroless) have one file per package.
STATUS_FOLDER = "/var/lib/dpkg/status.d/"
SYSTEM = ("/etc/os-release", "/usr/lib/os-release")
# The builder's notes, if the wheel was compiled (templates/compile.sh).
BUILT = "/opt/tfbuild/build.txt"
METADATA = re.compile(r".*\.(?:dist-info/METADATA|egg-info/PKG-INFO)")
DIRECT_URL = re.compile(r".*\.dist-info/direct_url\.json")
# Where auditwheel and delvewheel put the shared libraries bundled in a wheel.
BUNDLED = re.compile(r"(?P<site>.*)/(?P<package>[^/]+)\.libs/(?P<library>[^/]+)")
COMMIT = re.compile("[0-9a-f]{40}")
FIELD = re.compile(r"^([A-Za-z0-9-]+):[ \t]*(.*)$", re.MULTILINE)
# The most that is read of an image. The image of 2.21.0 has 34 MB of libraries bundled in wheels.
MOST_BYTES = 512 << 20


@dataclass(frozen=True, kw_only=True)
class BundledLibrary:
    """A shared library bundled in a wheel, by its file name (the library's name, a hash, its version)."""

    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PythonPackage:
    """`path`: of its metadata; `wheel_sha256`: of a wheel file that pip noted."""

    name: str
    version: str
    path: str
    wheel_sha256: str
    libraries: tuple[BundledLibrary, ...]


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """`source`: the source package's name, to which advisories refer."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str


@dataclass(frozen=True, kw_only=True)
class Contents:
    """`system`: os-release; `built`: the builder's notes."""

    python: tuple[PythonPackage, ...]
    debian: tuple[DebianPackage, ...]
    system: Mapping[str, str]
    built: Mapping[str, str]

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
    return any(pattern.fullmatch(path) for pattern in (METADATA, DIRECT_URL, BUNDLED))


def of_files(files: Files) -> Contents:
    """Return what these files say that an image contains."""
    known = (STATUS, BUILT, *SYSTEM)
    contents = {path: text for path, text in files.files.items() if path in known or path.startswith(STATUS_FOLDER)}
    text = {path: content.decode(errors="replace") for path, content in contents.items()}
    return Contents(
        python=tuple(sorted(_python(files.files), key=lambda package: (package.name, package.path))),
        debian=tuple(sorted(_debian(text), key=lambda package: (package.name, package.architecture))),
        system=next((_assignments(text[path]) for path in SYSTEM if path in text), {}),
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
    libraries = _libraries(files)
    for path, content in files.items():
        if not METADATA.fullmatch(path):
            continue
        metadata, _ = parse_email(content)
        name, version = metadata.get("name", ""), metadata.get("version", "")
        if not name or not version:
            continue
        folder = PurePosixPath(path).parent
        yield PythonPackage(
            name=str(canonicalize_name(name)),
            version=version,
            path=str(folder),
            wheel_sha256=noted_digest(files.get(f"{folder}/direct_url.json", b"")),
            libraries=tuple(libraries.get((str(folder.parent), str(canonicalize_name(name))), ())),
        )


def _libraries(files: Mapping[str, bytes]) -> dict[tuple[str, str], list[BundledLibrary]]:
    """Return the bundled libraries by site folder and package name."""
    libraries: dict[tuple[str, str], list[BundledLibrary]] = {}
    for path, content in sorted(files.items()):
        if match := BUNDLED.fullmatch(path):
            library = BundledLibrary(file=match["library"], sha256=hashlib.sha256(content).hexdigest())
            libraries.setdefault((match["site"], str(canonicalize_name(match["package"]))), []).append(library)
    return libraries


def _debian(text: Mapping[str, str]) -> Iterator[DebianPackage]:
    files = [path for path in text if path == STATUS or path.startswith(STATUS_FOLDER)]
    stanzas = (stanza for path in sorted(files) for stanza in re.split(r"\n\s*\n", text[path]))
    for fields in (dict(FIELD.findall(stanza)) for stanza in stanzas):
        name, version, status = (fields.get(key, "").strip() for key in ("Package", "Version", "Status"))
        if not name or not version or not (status or "install ok installed").endswith(" installed"):
            continue
        # "glibc", or "glibc (2.36-9)" if the binary package has another version.
        source, _, source_version = fields.get("Source", name).partition("(")
        yield DebianPackage(
            name=name,
            version=version,
            architecture=fields.get("Architecture", "").strip(),
            source=source.strip(),
            source_version=source_version.strip(" )") or version,
        )
