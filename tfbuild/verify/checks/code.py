"""The code check: the machine code of TensorFlow's libraries needs what its labels say, no more and no less.

It sees what the CPU guard does not: BMI2, F16C or AVX-512's subsets, and code that was compiled with other flags than
the guard.
"""

from collections.abc import Iterator, Mapping

from tfbuild.binary import scan
from tfbuild.binary.scan import CodeUnreadable, Found
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.verify import libraries
from tfbuild.verify.verification import Claim, Verification, VerificationCheck


def read(engine: Engine, ref: str, planned: Planned) -> dict[str, Found]:
    """TensorFlow's libraries in an image, the main one first; CodeUnreadable with the reason. Nothing is started."""
    return libraries.taken_out(engine, ref, planned.python, planned.release)[0]


def compare(planned: Planned, libraries: Mapping[str, Found]) -> judge.Check:
    """Fail for code beyond the labels in any library, and where the main one makes no use of what they promise."""
    main = next(iter(libraries.values()))
    if main.arch != planned.arch:
        return judge.Check("code", judge.FAIL, f"it is code for {main.arch}, not for {planned.arch}")
    beyond = {name: sorted(found.compiled - planned.features) for name, found in libraries.items()}
    faults = [f"{name} needs {' '.join(features)} beyond its labels" for name, features in beyond.items() if features]
    if lacks := sorted((planned.features & scan.written()) - main.compiled):
        faults.append(f"it makes no use of {' '.join(lacks)}, for which it is labelled")
    told = f"compiled for {main.name}; {main.how()}"
    measures = tuple(_measures(planned, main))
    if faults:
        return judge.Check("code", judge.FAIL, f"{'; '.join(faults)}; {told}", measures)
    return judge.Check("code", judge.PASS, f"as labelled: {told}", measures)


def _measures(planned: Planned, main: Found) -> Iterator[judge.Measure]:
    """The share of the main library's regions that need a feature: of those promised, and of all that are not."""
    least = scan.threshold(main.method)
    promised = planned.features & scan.written()
    for name in sorted(promised):
        yield judge.Measure(f"{name}_share", round(main.share(name), 4), f">= {least}")
    for row in main.families:
        if row.feature not in planned.features:
            yield judge.Measure(f"{row.feature}_share", round(row.share, 4), f"< {least}")


def _run(verification: Verification) -> judge.Check:
    try:
        libraries = read(verification.engine, verification.ref, verification.planned)
    except CodeUnreadable as error:
        return judge.Check("code", judge.FAIL, error.reason)
    return compare(verification.planned, libraries)


CHECK = VerificationCheck(
    name="code",
    claim=Claim(
        proves="The machine code of TensorFlow's libraries needs the labelled instruction set: nothing beyond it, and "
        "all of it that compilers use by themselves. The CPU guard knows a dozen features; this sees the others too.",
        how="Two million instructions of each library, in windows spread evenly over it, were decoded on the host. "
        "What is chosen at run time (oneDNN, XNNPACK, BoringSSL) does not count: it is told by its symbols or, where "
        "those were stripped, by lying in a few places, while a compiler uses a feature all over a library.",
        fix="see what the code needs (invoke inspect IMAGE), and give --cpu that, or build for the CPU that was meant",
    ),
    run=_run,
)
