"""The code check: the machine code of TensorFlow's libraries needs what its labels say, no more and no less.

It sees what the CPU guard does not: BMI2, F16C or AVX-512's subsets, and code compiled with other flags than the
guard.
"""

from collections.abc import Iterator, Mapping

from tfbuild.binary import scan
from tfbuild.binary.scan import ScannedCode
from tfbuild.cpu.isa import InstructionSet
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.util import files
from tfbuild.verify import libraries
from tfbuild.verify.verification import Verification, VerificationCheck


def compare(labelled: InstructionSet, libraries: Mapping[str, ScannedCode]) -> Judgement:
    """Fail for code beyond the labels in any library, and where the main one does not use what they promise."""
    main = next(iter(libraries.values()))
    if main.arch != labelled.arch:
        return Judgement(judge.FAIL, f"it is code for {main.arch}, not for {labelled.arch}")
    beyond = {name: sorted(library.compiled - {*labelled.features}) for name, library in libraries.items()}
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


def _run(verification: Verification) -> Judgement:
    site = libraries.site_packages(verification.planned.python)
    with files.temporary_folder() as scratch:
        found = libraries.copied(verification.engine, verification.ref, site, scratch)
        tell = verification.require_wanted
        scanned = {name: scan.read_code(path, name=name, tell=tell) for name, path in found}
    return compare(verification.planned.instruction_set, scanned)


CHECK = VerificationCheck(
    name="code",
    proves="The machine code of TensorFlow's libraries needs no feature beyond the labelled ones, and uses all of them "
    "that compilers use on their own. The CPU guard knows a dozen features; this check sees the others too.",
    how="Two million instructions of each library, in windows spread evenly over it, were decoded on the host. "
    "What is chosen at run time (oneDNN, XNNPACK, BoringSSL) does not count: its symbols show it or, where "
    "those were stripped, that it lies in a few places, while a compiler uses a feature all over a library.",
    fix="see what the code needs (invoke inspect IMAGE): give that to --cpu, or build for the intended CPU",
    run=_run,
    beside=True,
)
