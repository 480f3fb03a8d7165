"""The checks isa and code: the labelled instruction set, by the CPU guard and by the machine code of TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tfbuild.binary import scan
from tfbuild.binary.guard import MOST_BYTES, Guard, read_guard
from tfbuild.binary.scan import ScannedCode
from tfbuild.cpu.isa import InstructionSet
from tfbuild.cpu.recordings import canonical
from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.plan import Build
from tfbuild.util import files
from tfbuild.verify import Verification, VerificationCheck, libraries

# Every x86-64 has these, so no plan names them; the guard checks them in every build.
BASELINE = frozenset({"SSE", "SSE2"})


def compare(planned: Build, guard: Guard, flags: Sequence[str], message: Sequence[str] | None, why: str) -> Judgement:
    """Judge the guard by the plan.

    `flags`: the CPU's, by the kernel's names; `message`: the features that TensorFlow reports as unused, or
    None and `why`.
    """
    judged = releases.guard_judged(planned.release)
    wanted = (BASELINE | set(releases.guard_spelling(planned.release, planned.instruction_set.features))) & judged
    compiled = set(guard.compiled) & judged
    faults = [
        f"{fault} {' '.join(sorted(names))}"
        for fault, names in (("lacks", wanted - compiled), ("exceeds its plan by", compiled - wanted))
        if names
    ]
    if faults:
        return Judgement(judge.FAIL, f"compiled for {' '.join(guard.compiled)}: it {' and it '.join(faults)}")
    summary = f"compiled for {' '.join(guard.compiled)}, as planned"
    if message is None:
        return Judgement(judge.PASS, f"{summary}; not cross-checked with TensorFlow's message, since {why}")
    expected = unused(guard, planned.release, canonical(flags, "x86_64"))
    # TensorFlow asks the CPU itself, which may have what this kernel, or any, does not list.
    unlisted = {*guard.unused} - {*expected}
    if tuple(name for name in message if name not in unlisted) != expected:
        by_message, by_guard = (" ".join(names) or "nothing" for names in (message, expected))
        said = f"its guard leaves {by_guard} of this CPU unused, but TensorFlow's own message says {by_message}"
        return Judgement(judge.FAIL, said)
    return Judgement(judge.PASS, f"{summary}; TensorFlow's own message agrees ({' '.join(message) or 'none unused'})")


def unused(guard: Guard, release: str, held: frozenset[str]) -> tuple[str, ...]:
    """Return those features of a CPU that the build leaves unused, in the guard's names and order."""
    names = releases.guard_spelling(release, held)
    return tuple(name for name in guard.unused if name in names)


def _skip(verification: Verification) -> str:
    arch = verification.planned.instruction_set.arch
    return "" if arch == "x86_64" else f"TensorFlow's guard knows no feature of {arch}"


def _run(verification: Verification) -> Judgement:
    planned, environment = verification.planned, verification.environment
    path = f"{libraries.site_packages(planned.python)}/{releases.PACKAGE}/{releases.FRAMEWORK}"
    with files.temporary_folder() as scratch:
        library = verification.engine.read_file(verification.ref, path, scratch / "library", MOST_BYTES)
        guard = read_guard(library, planned.release)
    verification.guard = guard
    flags = environment.cpu_flags if environment else ()
    message = judge.unused_features(verification.start.ended.stderr) if verification.tensorflow else None
    return compare(planned, guard, flags, message, verification.why)


CHECK = VerificationCheck(
    name="isa",
    proves="The instruction set compiled into TensorFlow is the plan's: no feature missing, none beyond it.",
    how="The calls of the CPU guard inside libtensorflow_framework.so.2 were disassembled on the host (nothing was "
    "executed), and compared with the labels and with TensorFlow's own message about unused instructions.",
    fix="rebuild with the copts of the plan, or give --cpu the instruction set that the wheel really has",
    skip=_skip,
    run=_run,
)


# --- code ------------------------------------------------------------------------------------------------------------
# It sees what the guard does not: BMI2, F16C or AVX-512's subsets, and code compiled with other flags than the guard.


# In code for armv8-a, GCC and Clang call __aarch64_ldadd4_acq_rel and its like, which ask the CPU first, and link them
# into each shared object: all that a small one of a few regions has.
OUTLINED = frozenset(("atomics",))


def compare_code(
    labelled: InstructionSet, libraries: Mapping[str, ScannedCode], others: Mapping[str, ScannedCode] = {}
) -> Judgement:
    """Fail for code beyond the labels in any library, and where the main one does not use what they promise.

    Of the `others`, which are small, counts what compilers write by themselves, where it has a large share.
    """
    main = next(iter(libraries.values()))
    if main.arch != labelled.arch:
        return Judgement(judge.FAIL, f"it is code for {main.arch}, not for {labelled.arch}")
    beyond = {name: sorted(library.compiled - {*labelled.features}) for name, library in libraries.items()}
    least, unlabelled = scan.threshold("beside"), sorted(scan.written() - OUTLINED - {*labelled.features})
    for name, library in others.items():
        beyond[name] = [feature for feature in unlabelled if library.share(feature) >= least]
    faults = [f"{name} needs {' '.join(features)} beyond its labels" for name, features in beyond.items() if features]
    if lacks := sorted(({*labelled.features} & scan.written()) - main.compiled):
        faults.append(f"it does not use {' '.join(lacks)}, for which it is labelled")
    summary = f"compiled for {main.name}; {main.how()}"
    measures = tuple(_measures({*labelled.features}, main))
    if faults:
        return Judgement(judge.FAIL, f"{'; '.join(faults)}; {summary}", measures)
    return Judgement(judge.PASS, f"as labelled: {summary}", measures)


def _measures(promised: set[str], main: ScannedCode) -> Iterator[judge.Measurement]:
    """Yield the share of the main library's regions that need each feature, promised or not."""
    least = scan.threshold(main.method)
    for name in sorted(promised & scan.written()):
        yield judge.Measurement(f"{name}_share", round(main.share(name), 4), f">= {least}")
    for row in main.families:
        if row.feature not in promised:
            yield judge.Measurement(f"{row.feature}_share", round(row.share, 4), f"< {least}")


def _run_code(verification: Verification) -> Judgement:
    site = libraries.site_packages(verification.planned.python)
    with files.temporary_folder() as scratch:
        found = libraries.copied(verification.engine, verification.ref, site, scratch)
        read = partial(scan.read_code, tell=verification.require_wanted)
        scanned = {name: read(path, name=name) for name, path in found}
        beside = libraries.beside(verification.engine, verification.ref, site, scanned, scratch)
        others = {name: read(path, name=name, regions=scan.FEW) for name, path in beside}
    return compare_code(verification.planned.instruction_set, scanned, others)


CODE = VerificationCheck(
    name="code",
    proves="The machine code of TensorFlow's libraries needs no feature beyond the labelled ones, and uses all of them "
    "that compilers use on their own. The CPU guard knows a dozen features; this check sees the others too.",
    how="Two million instructions of each of the two large libraries, and up to half a million of each other shared "
    "object of TensorFlow's, in windows spread evenly over it, were decoded on the host. "
    "Code that is chosen at run time (oneDNN, XNNPACK, BoringSSL) does not count. Its symbols show it; in a stripped "
    "library, it lies in a few places, while a compiler uses a feature all over the library.",
    fix="see what the code needs (invoke inspect IMAGE): give that to --cpu, or build for the intended CPU",
    run=_run_code,
    beside=True,
)
