"""Base images, and the choice of one for a release: the typed view on facts/images.toml.

The choice is the newest Python of the release for which a base has one of its compilers; the surest compiler that a
base with that Python has; a base on a supported Debian with that compiler in its own archive; then the oldest glibc.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from tfbuild import facts
from tfbuild.errors import UnknownCompiler, UnknownPython
from tfbuild.facts import Facts, releases, toolchains
from tfbuild.facts.toolchains import Distribution

# The first words of a note about something that may turn out wrong.
NOT_CERTAIN = "not certain: "


class BaseImage(Facts, frozen=True):
    """A registry's image with one Python, on one Debian release. `until`: its last rebuild, "" while it is rebuilt."""

    python: str
    distribution: str
    until: str = ""
    default: bool = False

    @property
    def image(self) -> str:
        return f"python:{self.python}-slim-{self.distribution}"

    @property
    def debian(self) -> Distribution:
        debian = toolchains.distribution(self.distribution)
        assert debian is not None  # a test of the facts
        return debian

    @property
    def bootstrap(self) -> str:
        """The Debian release whose own python3 makes the same base, or "" if its Python is another one."""
        return self.distribution if self.debian.python == self.python else ""


class BaseImageTable(Facts, frozen=True):
    base: tuple[BaseImage, ...]


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    """What a release is built with. `base` is None if the user named one; `notes` say what was passed over, and why."""

    python: str
    compiler: str
    base: BaseImage | None = None
    notes: tuple[str, ...] = ()


@cache
def bases() -> tuple[BaseImage, ...]:
    return facts.load("images", BaseImageTable).base


def default() -> BaseImage:
    return next(row for row in bases() if row.default)


def pythons() -> tuple[str, ...]:
    """Return the Pythons that bases have, oldest first."""
    return tuple(dict.fromkeys(row.python for row in bases()))


def of(python: str) -> tuple[BaseImage, ...]:
    """Return the bases with that Python, the oldest Debian first; raises UnknownPython if there is none."""
    matches = tuple(row for row in bases() if row.python == python)
    if not matches:
        raise UnknownPython(
            f"no base image with Python {python} is known", hint=f"one of: {', '.join(pythons())}; or --base NAME"
        )
    return matches


def find(image: str) -> BaseImage | None:
    """Return the base of that name, or None for an image that is not known."""
    return next((row for row in bases() if row.image == image), None)


def for_wheel(python: str) -> BaseImage:
    """Return the base for an existing wheel: one that can be made without a registry, else a supported one."""
    return min(of(python), key=lambda row: (not row.bootstrap, bool(row.debian.ended)))


@cache
def choose(release: str, pythons: tuple[str, ...], compiler: str = "", *, bootstrap: bool = False) -> BaseChoice:
    """Return the first of `pythons` that has a base with `compiler` (default: with a compiler of the release).

    `bootstrap`: prefer bases that can be made without a registry. Raises UnknownCompiler if no base has the compiler,
    UnknownPython if no base has the Python.
    """
    for python in pythons:
        for name in [compiler] if compiler else [row.name for row in releases.compilers(release)]:
            if able := _with(python, name, bootstrap):
                notes = tuple(_notes(release, able, name))
                return BaseChoice(python=python, compiler=name, base=able[0], notes=notes)
    raise _refusal(release, pythons, compiler)


def _with(python: str, compiler: str, bootstrap: bool = False) -> list[BaseImage]:
    """Return the bases with that Python that can install the compiler, the best first."""

    def worse(row: BaseImage) -> tuple[bool, bool, bool]:
        return bootstrap and not row.bootstrap, compiler not in row.debian.compilers, bool(row.debian.ended)

    able = [row for row in bases() if row.python == python and compiler in toolchains.compilers(row.debian)]
    return sorted(able, key=worse)


def _refusal(release: str, wanted: Sequence[str], compiler: str) -> UnknownCompiler | UnknownPython:
    python = next((name for name in wanted if name in pythons()), "")
    if not python:
        known = [name for name in releases.pythons(release) if name in pythons()]
        return UnknownPython(
            f"no base image with Python {' or '.join(wanted)} is known",
            hint=f"one of: {', '.join(known)}; or --base NAME",
        )
    return UnknownCompiler(
        f"{compiler or 'no compiler of the release'} is not in {', '.join(row.distribution for row in of(python))}, "
        f"on which the base images with Python {python} are based",
        hint=f"--compiler with one of: {', '.join(compilers(python))}",
    )


def compilers(python: str) -> tuple[str, ...]:
    """Return the compilers that the base images with that Python can install, GCC first, oldest first."""
    names = {name for row in of(python) for name in toolchains.compilers(row.debian)}
    return tuple(sorted(names, key=lambda name: (name.startswith("clang"), int(name.rpartition("-")[2]))))


# --- notes ------------------------------------------------------------------------------------------------------------


def _notes(release: str, able: Sequence[BaseImage], compiler: str) -> Iterator[str]:
    base = able[0]
    yield from _about_python(release, base.python)
    yield from _about_compiler(release, base.python, compiler)
    for other in able[1:]:
        if Version(other.debian.glibc) < Version(base.debian.glibc):
            yield f"{other.image} has an older glibc than {base.image}, and is passed over: {_why_not(other, compiler)}"
    if suite := toolchains.llvm_suite(base.distribution, compiler):
        yield f"{compiler} comes from {toolchains.table().llvm.url} ({suite}): {base.distribution} does not have it"
    if base.until:
        yield f"{base.image} is an old image, not rebuilt since {base.until}"


def _why_not(base: BaseImage, compiler: str) -> str:
    if base.debian.ended:
        return f"support of {base.distribution} ended on {base.debian.ended}"
    if compiler not in base.debian.compilers:
        return f"{base.distribution} has no {compiler} itself"
    return "mmdebstrap cannot make it"


def _about_python(release: str, python: str) -> Iterator[str]:
    names = [row.name for row in releases.compilers(release)]
    newer = [other for other in releases.pythons(release) if Version(other) > Version(python)]
    if without_base := [other for other in newer if not any(_with(other, name) for name in names)]:
        yield f"no base image has Python {' or '.join(without_base)} with a compiler of TensorFlow {release}"


def _about_compiler(release: str, python: str, compiler: str) -> Iterator[str]:
    known = releases.compilers(release)
    row = next((row for row in known if row.name == compiler), None)
    better = [other.name for other in known[: known.index(row) if row else None] if not _with(python, other.name)]
    if better:
        yield f"{' or '.join(better)} would come first, and no base image with Python {python} has it"
    if row is None:
        yield f"{NOT_CERTAIN}nobody is known to have built TensorFlow {release} with {compiler}"
    elif row.sure != "wheel":
        patched = f"; patched there: {row.patches}" if row.patches else ""
        how = f"{compiler} works for others" if row.certain else f"{NOT_CERTAIN}whether {compiler} compiles it"
        yield f"{how}: {row.source}{patched}"
