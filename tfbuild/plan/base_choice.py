"""The choice of the Python, the base image and the compiler of a build.

It is the newest Python of the release for which a base has one of its compilers; the surest compiler that a base with
that Python has; a base on a supported Debian with that compiler in its own archive; then the oldest glibc. What is
known to fail is passed over, unless nothing else is left.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from packaging.version import Version

from tfbuild.cpu import compilers
from tfbuild.errors import Unsupported
from tfbuild.facts import releases, toolchains
from tfbuild.facts.toolchains import BaseImage, Distribution
from tfbuild.plan.failures import Failure
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import choose_python

# The first words of a note about something that may turn out wrong.
NOT_CERTAIN = "not certain: "
# Returns the known failures of a compile with that compiler on that Debian.
Failures = Callable[[str, Distribution | None], tuple[Failure, ...]]


def default_base() -> tuple[str, str]:
    """Return the image of the default base, and the Debian release that makes it without a registry."""
    row = toolchains.default_base()
    return row.image, row.bootstrap


def base_for_wheel(python: str) -> BaseImage:
    """Return the base for an existing wheel: one that can be made without a registry, if there is one."""
    return min(toolchains.bases_with(python), key=lambda row: not row.bootstrap)


def debian_pythons() -> str:
    """Return the Pythons of bases that can be made without a registry, in words: 3.11 and 3.13."""
    *first, last = (row.python for row in toolchains.table().distribution)
    return f"{', '.join(first)} and {last}"


def packaged(distribution: str) -> frozenset[str]:
    """Return the compilers and the Python that a Debian release itself has, such as gcc-12; none of an unknown one."""
    debian = toolchains.distribution(distribution)
    return frozenset((*debian.compilers, f"python{debian.python}")) if debian else frozenset()


def choose(request: Request, release: str, failures: Failures) -> tuple[str, str, BaseImage | None, tuple[str, ...]]:
    """Return the Python, the compiler and the base of a compile, with notes on what was passed over and why.

    The base is None if the user named one, which may have any compiler. Raises Unsupported.
    """
    compiler = named_compiler(request.compiler, release) if request.compiler else ""
    supported = releases.pythons(release)
    if request.base not in BASES:
        return choose_python(request, release, supported), compiler or releases.compiler(release), None, ()
    pythons = (choose_python(request, release, supported),) if request.python else supported[::-1]
    return first_base(release, pythons, compiler, bootstrap=request.base == "bootstrap", failures=failures)


def named_compiler(text: str, release: str) -> str:
    """Return the compiler that --compiler names. Raises Unsupported with those of the release's base images."""
    try:
        return "-".join(map(str, compilers.find(text)))
    except Unsupported as error:
        python, *_ = first_base(release, releases.pythons(release)[::-1])
        known = _installable(python)
        family = re.match("[a-z]*", text.strip().lower())
        of_family = [name for name in known if family and name.partition("-")[0] == family[0]]
        raise Unsupported(error.reason, hint=f"base images have: {', '.join(of_family or known)}") from None


def first_base(
    release: str,
    pythons: tuple[str, ...],
    compiler: str = "",
    *,
    bootstrap: bool = False,
    failures: Failures = lambda *_: (),
) -> tuple[str, str, BaseImage, tuple[str, ...]]:
    """Return the first of `pythons` that has a base with `compiler` (default: one of the release); see `choose`.

    `bootstrap`: only bases that can be made without a registry. `failures`: what is known to fail is passed over.
    Raises Unsupported if no base has the compiler or the Python.
    """
    names = [compiler] if compiler else [row.name for row in releases.compilers(release)]
    able = [(row, name) for python in pythons for name in names for row in _bases_with(python, name, bootstrap)]
    failing: dict[tuple[BaseImage, str], Failure] = {}
    for base, name in able:
        if row := next((row for row in failures(name, base.debian) if row.expected), None):
            failing[base, name] = row
    if not able:
        raise _refusal(release, pythons, compiler, bootstrap)
    base, name = next((one for one in able if one not in failing), able[0])
    beside = [row for row, other in able if other == name and row.python == base.python and (row, other) not in failing]
    untried = _notes(release, beside or [base], name, failing=(base, name) in failing)
    return base.python, name, base, (*_about_failures(failing, able.index((base, name)), able), *untried)


def _bases_with(python: str, compiler: str, bootstrap: bool = False) -> list[BaseImage]:
    """Return the bases with that Python that can install the compiler, the best first."""
    able = [row for row in _bases(bootstrap) if row.python == python and compiler in toolchains.compilers(row.debian)]
    return sorted(able, key=lambda row: compiler not in row.debian.compilers)


def _bases(bootstrap: bool) -> list[BaseImage]:
    """Return the known bases; `bootstrap`: those that can be made without a registry."""
    return [row for row in toolchains.bases() if row.bootstrap or not bootstrap]


def _refusal(release: str, wanted: Sequence[str], compiler: str, bootstrap: bool) -> Unsupported:
    bases = _bases(bootstrap)
    pythons = {row.python for row in bases}
    python = next((name for name in wanted if name in pythons), "")
    if not python:
        known = [name for name in releases.pythons(release) if name in pythons]
        other = "--base registry" if bootstrap else "--base NAME, with an image that has it"
        how = "can be made by mmdebstrap" if bootstrap else "is known"
        return Unsupported(
            f"no base image with Python {' or '.join(wanted)} {how}",
            hint=f"one of: {', '.join(known)}; or {other.partition(',')[0]}" if known else other,
        )
    distributions = ", ".join(row.distribution for row in bases if row.python == python)
    missing = f"{compiler} is not in" if compiler else f"no compiler that is known to build TensorFlow {release} is in"
    return Unsupported(
        f"{missing} {distributions}, on which the base images with Python {python} are based",
        hint=f"--compiler with one of: {', '.join(_installable(python, bootstrap))}",
    )


def _installable(python: str, bootstrap: bool = False) -> tuple[str, ...]:
    """Return the compilers that the base images with that Python can install, GCC first, oldest first."""
    able = (row for row in _bases(bootstrap) if row.python == python)
    names = {name for row in able for name in toolchains.compilers(row.debian)}
    return tuple(sorted(names, key=lambda name: (name.startswith("clang"), int(name.rpartition("-")[2]))))


# --- notes ------------------------------------------------------------------------------------------------------------


def _about_failures(
    failing: dict[tuple[BaseImage, str], Failure], chosen: int, able: Sequence[tuple[BaseImage, str]]
) -> Iterator[str]:
    """Say which failures made the choice another one than the first."""
    passed = {failing[one].id: one for one in reversed(able[:chosen])}
    for base, compiler in passed.values():
        failure = failing[base, compiler]
        yield f"{compiler} on {base.image} is passed over ({failure.id}): {failure.symptom}"


def _notes(release: str, able: Sequence[BaseImage], compiler: str, *, failing: bool) -> Iterator[str]:
    base = able[0]
    yield from _about_python(release, base.python)
    if not failing:
        yield from _about_compiler(release, base.python, compiler)
    for other in able[1:]:
        if Version(other.debian.glibc) < Version(base.debian.glibc):
            why = f"{other.distribution} has no {compiler} itself"
            yield f"{other.image} has an older glibc than {base.image}, and is passed over: {why}"
    if suite := toolchains.llvm_suite(base.distribution, compiler):
        yield f"{compiler} comes from {toolchains.table().llvm.url} ({suite}): {base.distribution} does not have it"


def _about_python(release: str, python: str) -> Iterator[str]:
    names = [row.name for row in releases.compilers(release)]
    newer = [other for other in releases.pythons(release) if Version(other) > Version(python)]
    if without_base := [other for other in newer if not any(_bases_with(other, name) for name in names)]:
        yield f"no base image has Python {' or '.join(without_base)} with a compiler of TensorFlow {release}"


def _about_compiler(release: str, python: str, compiler: str) -> Iterator[str]:
    known = releases.compilers(release)
    row = next((row for row in known if row.name == compiler), None)
    better = [other.name for other in known[: known.index(row) if row else None] if not _bases_with(python, other.name)]
    if better:
        yield f"{' or '.join(better)} is preferred, but no base image with Python {python} has it"
    yield from _confidence(release, compiler)


def _confidence(release: str, compiler: str) -> Iterator[str]:
    """Yield a note on how sure it is that the compiler compiles the release, unless its official wheel proves it."""
    row = next((row for row in releases.compilers(release) if row.name == compiler), None)
    if row is None:
        yield f"{NOT_CERTAIN}nobody is known to have built TensorFlow {release} with {compiler}"
    elif row.sure != "wheel":
        patched = f"; patched there: {row.patches}" if row.patches else ""
        how = f"{compiler} works for others" if row.certain else f"{NOT_CERTAIN}whether {compiler} compiles it"
        yield f"{how}: {row.source}{patched}"
