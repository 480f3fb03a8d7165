"""Base images, and which of them a release is built on: the typed view on facts/images.toml, and the choice.

The newest Python of the release for which a base has one of its compilers; the surest compiler that a base with that
Python has; among those bases a supported Debian with the compiler in its own archive, and then the oldest glibc.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from tfbuild import facts
from tfbuild.errors import UnknownCompiler, UnknownPython
from tfbuild.facts import Facts, releases, toolchains
from tfbuild.facts.toolchains import Distribution

# How a note begins that says what may turn out otherwise.
NOT_CERTAIN = "not certain: "


class BaseImage(Facts, frozen=True):
    """A registry's image with one Python, on one Debian release; `until`: when it was last rebuilt, "" while it is."""

    python: str
    distribution: str
    until: str = ""
    default: bool = False

    @property
    def image(self) -> str:
        return f"python:{self.python}-slim-{self.distribution}"

    @property
    def debian(self) -> Distribution:
        found = toolchains.distribution(self.distribution)
        assert found is not None  # a test of the facts
        return found

    @property
    def bootstrap(self) -> str:
        """The Debian release whose own python3 makes the same base; "" where that is another Python."""
        return self.distribution if self.debian.python == self.python else ""


class BaseImageTable(Facts, frozen=True):
    base: tuple[BaseImage, ...]


@dataclass(frozen=True, kw_only=True)
class BaseChoice:
    """What a release is built with; no `base`: one that the user named. `notes`: what was passed over, and why."""

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
    """The Pythons that bases have, oldest first."""
    return tuple(dict.fromkeys(row.python for row in bases()))


def of(python: str) -> tuple[BaseImage, ...]:
    """The bases with that Python, the oldest Debian first; UnknownPython where there is none."""
    found = tuple(row for row in bases() if row.python == python)
    if not found:
        raise UnknownPython(
            f"no base image with Python {python} is known", hint=f"one of: {', '.join(pythons())}; or --base NAME"
        )
    return found


def find(image: str) -> BaseImage | None:
    """The base of that name; None for an image that nobody has looked into."""
    return next((row for row in bases() if row.image == image), None)


def for_wheel(python: str) -> BaseImage:
    """The base for a wheel that is there already: one that can be made without a registry, else a supported one."""
    return min(of(python), key=lambda row: (not row.bootstrap, bool(row.debian.ended)))


def compiler(release: str) -> str:
    """The compiler that a release is built with by default; Debian 12's own for no release ("")."""
    return choose(release, releases.pythons(release)[::-1]).compiler if release else releases.DEFAULT_COMPILER


@cache
def choose(release: str, pythons: tuple[str, ...], asked: str = "", *, bootstrap: bool = False) -> BaseChoice:
    """The first of `pythons` that can be, with its base and compiler (`asked`, where one was), for a release.

    `bootstrap`: prefer bases that can be made without a registry. Raises UnknownCompiler where no base has the
    compiler, UnknownPython where there is no base at all.
    """
    for python in pythons:
        for compiler in [asked] if asked else [row.name for row in releases.compilers(release)]:
            if able := _with(python, compiler, bootstrap):
                notes = tuple(_notes(release, able, compiler))
                return BaseChoice(python=python, compiler=compiler, base=able[0], notes=notes)
    raise _refusal(release, pythons, asked)


def _with(python: str, compiler: str, bootstrap: bool = False) -> list[BaseImage]:
    """The bases with that Python that can install the compiler, the best first."""

    def worse(row: BaseImage) -> tuple[bool, bool, bool]:
        return bootstrap and not row.bootstrap, compiler not in row.debian.compilers, bool(row.debian.ended)

    able = [row for row in bases() if row.python == python and compiler in toolchains.compilers(row.debian)]
    return sorted(able, key=worse)


def _refusal(release: str, asked_pythons: Sequence[str], compiler: str) -> UnknownCompiler | UnknownPython:
    there = next((python for python in asked_pythons if python in pythons()), "")
    if not there:
        known = [python for python in releases.pythons(release) if python in pythons()]
        return UnknownPython(
            f"no base image with Python {' or '.join(asked_pythons)} is known",
            hint=f"one of: {', '.join(known)}; or --base NAME",
        )
    rows = of(there)
    had = dict.fromkeys(name for row in rows for name in toolchains.compilers(row.debian))
    return UnknownCompiler(
        f"{compiler or 'no compiler of the release'} is not in {', '.join(row.distribution for row in rows)}, which "
        f"the base images with Python {there} are made of",
        hint=f"--compiler with one of: {', '.join(had)}",
    )


# --- why -------------------------------------------------------------------------------------------------------------


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
    newer = [one for one in releases.pythons(release) if Version(one) > Version(python)]
    if out := [one for one in newer if not any(_with(one, name) for name in names)]:
        yield f"no base image has Python {' or '.join(out)} with a compiler of TensorFlow {release}"


def _about_compiler(release: str, python: str, compiler: str) -> Iterator[str]:
    known = releases.compilers(release)
    row = next((row for row in known if row.name == compiler), None)
    better = [one.name for one in known[: known.index(row) if row else None] if not _with(python, one.name)]
    if better:
        yield f"{' or '.join(better)} would come first, and no base image with Python {python} has it"
    if row is None:
        yield f"{NOT_CERTAIN}nobody is known to have built TensorFlow {release} with {compiler}"
    elif row.sure != "wheel":
        patched = f"; patched there: {row.patches}" if row.patches else ""
        how = f"{compiler} works for others" if row.certain else f"{NOT_CERTAIN}whether {compiler} compiles it"
        yield f"{how}: {row.source}{patched}"
