"""The files check: nobody but root can change what runs, and a plain start of Python runs nothing but Python."""

import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name
from packaging.version import Version

from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned
from tfbuild.engine import FileEntry, Files
from tfbuild.facts import releases
from tfbuild.facts.release_table import is_version
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.plan import wheel
from tfbuild.verify import libraries
from tfbuild.verify.verification import Verification, VerificationCheck

VENV, HOME = dockerfile.VENV, dockerfile.CONFIGURATION["WorkingDir"]
USER, GROUP = map(int, dockerfile.CONFIGURATION["User"].split(":"))
PROGRAMS = f"{VENV}/bin"
SETTINGS = "pyvenv.cfg"
# By these, and by PROGRAM._pth, Python takes another library than its own if they are beside its program. Source:
# github.com/python/cpython, Modules/getpath.py, v3.13.0.
DIVERTING = (SETTINGS, "pybuilddir.txt", "Modules/Setup.local")
# Of all files that are read.
MOST_BYTES = 4 * 1024 * 1024
# What programs are run from.
SYSTEM = re.compile(r"/(opt(/(tensorflow|tfbuild)(/.*)?)?|(usr|etc|bin|sbin|lib\w*)(/.*)?)", re.ASCII | re.DOTALL)
MOST_FAULTS = 10
# Python imports these by themselves at each start: the first two itself, the third one Debian's first.
CUSTOM = ("sitecustomize", "usercustomize", "apport_python_hook")
# What Debian's Python has as its sitecustomize.
DEBIAN = (
    b"# install the apport exception handler if available\n"
    b"try:\n    import apport_python_hook\nexcept ImportError:\n    pass\nelse:\n    apport_python_hook.install()\n"
)
# The lines that setuptools writes into .pth files, for itself and for namespace packages. Source: github.com/pypa/
# setuptools, setup.py (46 to 80), and setuptools/namespaces.py.
PTH = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '(?:local|stdlib)'\) == 'local'; "
    r"enabled and __import__\('_distutils_hack'\)(?:\.add_shim\(\);)? *"
    r"|import sys, types, os;(?:has_mfs = sys\.version_info > \(3, 5\);)?"
    r"p = os\.path\.join\(sys\._getframe\(1\)\.f_locals\['sitedir'\], \*\((?:'\w+',? ?)+\)\);"
    r"importlib = (?:has_mfs and )?__import__\('importlib\.util'\);"
    r"(?:has_mfs and )?__import__\('importlib\.machinery'\);"
    r"m = (?:has_mfs and )?sys\.modules\.setdefault\('[\w.]+', importlib\.util\.module_from_spec\("
    r"importlib\.machinery\.PathFinder\.find_spec\('[\w.]+', \[os\.path\.dirname\(p\)\]\)\)\);"
    r"m = m or sys\.modules\.setdefault\('[\w.]+', types\.ModuleType\('[\w.]+'\)\);"
    r"mp = \(m or \[\]\) and m\.__dict__\.setdefault\('__path__', ?\[\]\);\(p not in mp\) and mp\.append\(p\)"
    r"(?:;m and setattr\(sys\.modules\['[\w.]+'\], '\w+', m\))?",
    re.ASCII,
)


def compare(planned: Planned, found: Files) -> Judgement:
    """Judge the files of an image by their folders, owners and modes, and by what a start of Python runs of them."""
    settings = {"home": "/", **dict(_settings(found.files.get(f"{VENV}/{SETTINGS}", b"")))}
    library = f"{PurePosixPath(settings['home']).parent}/lib/python{planned.python}"
    faults = [
        *_modes(found, (library, settings["home"])),
        *_programs(planned, found, settings),
        *_startup(found, library, libraries.site_packages(planned.python)),
        *_working_folder(found),
        *_metadata(planned, found),
    ]
    if faults:
        return Judgement(judge.FAIL, "; ".join(faults[:MOST_FAULTS]))
    return Judgement(judge.PASS, f"{len(found.entries)} files, none of which the image's user can change")


def wanted(path: str) -> bool:
    """Whether a file's content is read."""
    name = PurePosixPath(path).name
    own = name == SETTINGS or (name == "METADATA" and _project(path) in wheel.projects())
    return own or name.endswith(".pth") or name in {f"{module}.py" for module in CUSTOM}


def _modes(found: Files, folders: Iterable[str]) -> Iterator[str]:
    """Yield the files that give rights to whoever runs them, and those that the image's user can change."""
    elsewhere = _elsewhere(found, folders)
    for path, entry in found.entries.items():
        if stat.S_ISREG(entry.mode) and (entry.capable or entry.mode & (stat.S_ISUID | stat.S_ISGID)):
            yield f"{path} {'has capabilities' if entry.capable else 'is setuid or setgid'}"
        way = elsewhere.get(path)
        if _is_changeable(entry) and (way or SYSTEM.fullmatch(path)):
            owner = f"owner {entry.uid}:{entry.gid}, mode {entry.mode & 0o7777:o}"
            yield f"{path} can be changed by the image's user ({owner}){f', and {way} leads there' if way else ''}"


def _elsewhere(found: Files, folders: Iterable[str]) -> dict[str, str]:
    """Return the paths outside the system to which its links and Python's `folders` lead, each with the first of these.

    They include all that is in such a place, and what is passed on the way: whoever can change it changes what runs.
    """
    inside = defaultdict(list)
    for path in found.entries:
        inside[path.rpartition("/")[0]].append(path)
    links = (path for path, entry in found.entries.items() if entry.target and SYSTEM.fullmatch(path))
    todo = [(start, start) for start in (*links, *folders)]
    ways: dict[str, str] = {}
    opened: set[str] = set()
    while todo:
        path, start = todo.pop()
        *passed, end = found.walk(path)
        for place in (*passed, end):
            if not SYSTEM.fullmatch(place):
                ways.setdefault(place, start)
        if end and end in ways and end not in opened:
            opened.add(end)
            todo += [(child, start) for child in inside[end]]
    return ways


def _is_changeable(entry: FileEntry) -> bool:
    # /dev/null has no content that could run, and what is switched off in a system is often a link to it.
    if stat.S_ISCHR(entry.mode):
        return False
    if stat.S_ISLNK(entry.mode):
        return entry.uid == USER
    by_group = entry.gid == GROUP and entry.mode & stat.S_IWGRP
    return bool(entry.uid == USER or by_group or entry.mode & stat.S_IWOTH)


def _programs(planned: Planned, found: Files, settings: Mapping[str, str]) -> Iterator[str]:
    """Yield what `python` runs besides the one program and its own library."""
    program, home = found.resolve(f"{PROGRAMS}/python"), settings["home"]
    names = {path for path in found.entries if re.fullmatch(rf"{PROGRAMS}/python[\d.]*", path)}
    names |= {f"{PROGRAMS}/python3", f"{PROGRAMS}/python{planned.python}"}
    yield from (f"{path} is not {PROGRAMS}/python" for path in sorted(names) if found.resolve(path) != program)
    if settings.get("include-system-site-packages") != "false":
        yield f"{VENV}/{SETTINGS} includes packages from elsewhere"
    if found.resolve(f"{home}/python{planned.python}") != program:
        yield f"{VENV}/{SETTINGS} has Python's home in {home}, which is not that of {PROGRAMS}/python"
    folders = {found.resolve(PROGRAMS), found.resolve(home), program.rpartition("/")[0]}
    diverting = {path for path in found.entries if path.endswith("._pth") and path.rpartition("/")[0] in folders}
    diverting |= {path for folder in folders for name in DIVERTING if found.resolve(path := f"{folder}/{name}")}
    yield from (f"by {path} Python takes another library than its own" for path in sorted(diverting))


def _settings(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the settings of a pyvenv.cfg; one that is there twice gets a value that is never right."""
    seen = set()
    for line in content.decode(errors="replace").splitlines():
        name, _, value = (part.strip() for part in line.partition("="))
        yield name.lower(), "twice" if name.lower() in seen else value
        seen.add(name.lower())


def _startup(found: Files, library: str, packages: str) -> Iterator[str]:
    """Yield the files in Python's folders whose code runs at every start, or before its own library or packages."""
    folders, at = (library, f"{library}/lib-dynload", packages), PurePosixPath(library)
    if (archive := str(at.with_name(f"{at.name.replace('.', '')}.zip"))) in found.entries:
        yield f"{archive} comes before Python's own library"
    places = {found.resolve(folder) or folder for folder in folders}
    for path in found.entries:
        at = PurePosixPath(path)
        if str(at.parent) not in places:
            continue
        if at.name.partition(".")[0] in CUSTOM and found.files.get(found.resolve(path)) != DEBIAN:
            yield f"at every start Python also runs {path}"
        lines = found.files.get(found.resolve(path), b"\xff").decode(errors="replace").splitlines()
        if at.suffix == ".pth" and not all(PTH.fullmatch(line) or not line.strip() for line in lines):
            yield f"at every start Python also runs or adds what {path} says"
    own, binaries, others = (_modules(found, folder) for folder in folders)
    hidden = sorted((own | binaries) & others)
    yield from (f"{library} has {name}, which hides the package" for name in hidden)


def _modules(found: Files, folder: str) -> set[str]:
    """Return the names that can be imported from a folder."""
    place = PurePosixPath(found.resolve(folder) or folder)
    inside = (PurePosixPath(path) for path in found.entries if path.startswith(f"{place}/"))
    names = (path.relative_to(place).parts for path in inside)
    return {parts[0].partition(".")[0] for parts in names if parts[-1].endswith((".py", ".pyc", ".so"))} - {
        "__pycache__"
    }


def _working_folder(found: Files) -> Iterator[str]:
    """Yield what Python could import from the working folder: it comes first, and no module begins with a dot."""
    if (place := found.resolve(HOME)) != HOME:
        yield f"the working folder {HOME} is {place or 'nowhere'}"
    for path, entry in found.entries.items():
        at = PurePosixPath(path)
        if str(at.parent) == HOME and not (at.name.startswith(".") and stat.S_ISREG(entry.mode)):
            yield f"{path} is in the working folder, from which Python imports first"


def _metadata(planned: Planned, found: Files) -> Iterator[str]:
    """Yield the packages of TensorFlow whose version is not the planned one, or that there is none."""
    site = libraries.site_packages(planned.python)
    versions = {}
    for path, content in found.files.items():
        if path.startswith(f"{site}/") and path.endswith("/METADATA"):
            match = re.search(rb"^Version: *(\S{1,64})$", content, re.MULTILINE | re.ASCII)
            version = match[1].decode(errors="replace") if match else ""
            versions[_project(path)] = releases.release_of_wheel(Version(version)) if is_version(version) else "unknown"
    name = planned.requirement.partition("-" if planned.wheel == "file" else "==")[0].partition("[")[0]
    if not versions or (name and canonicalize_name(name) not in versions):
        yield f"{site} has no package {name or 'of TensorFlow'}"
    for project, version in versions.items():
        if version != planned.release:
            yield f"its package {project} is of release {version}, but its label says {planned.release}"


def _project(metadata: str) -> str:
    """Return the project of a METADATA file by its folder: tensorflow_cpu-2.21.0.dist-info."""
    return canonicalize_name(PurePosixPath(metadata).parent.name.partition("-")[0])


def _run(verification: Verification) -> Judgement:
    tell = verification.require_wanted
    try:
        return compare(verification.planned, verification.engine.read_files(verification.ref, wanted, MOST_BYTES, tell))
    except OSError as error:
        return Judgement(judge.FAIL, f"{error.filename} cannot be read: {error.strerror or error}")


CHECK = VerificationCheck(
    name="files",
    proves="No file is setuid or setgid or has capabilities, and the image's user can change nothing that runs. A "
    "plain start of Python finds this Python, its own library and TensorFlow's packages, and runs nothing before them.",
    how="All files of the image were listed without starting it, with their owners and modes. pyvenv.cfg, .pth "
    "files, sitecustomize and usercustomize, Python's folders and the working folder were compared with those of "
    "an image that tfbuild builds.",
    fix="remove what is named from the image, or from its base image, and build the image again",
    run=_run,
    beside=True,
)
