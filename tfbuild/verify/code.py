"""The code check: the machine code of TensorFlow's libraries needs what its labels say, no more and no less.

It sees what the CPU guard does not: BMI2, F16C or AVX-512's subsets, and code that was compiled with other flags than
the guard.
"""

from collections.abc import Iterator, Mapping

from tfbuild import inspection, inspector
from tfbuild.engine import Engine
from tfbuild.inspection import Found
from tfbuild.smoke import judge
from tfbuild.smoke.judge import Check, Measure
from tfbuild.verify.planned import Planned


def read(engine: Engine, ref: str, planned: Planned) -> dict[str, Found]:
    """TensorFlow's libraries in an image, the main one first; CodeUnreadable with the reason. Nothing is started."""
    return inspector.taken_out(engine, ref, planned.python, planned.release)[0]


def check(planned: Planned, libraries: Mapping[str, Found]) -> Check:
    """Fails for code beyond the labels in any library, and where the main one makes no use of what they promise."""
    main = next(iter(libraries.values()))
    if main.arch != planned.arch:
        return Check("code", judge.FAIL, f"it is code for {main.arch}, not for {planned.arch}")
    beyond = {name: sorted(found.compiled - planned.features) for name, found in libraries.items()}
    faults = [f"{name} needs {' '.join(features)} beyond its labels" for name, features in beyond.items() if features]
    if lacks := sorted((planned.features & inspection.written()) - main.compiled):
        faults.append(f"it makes no use of {' '.join(lacks)}, for which it is labelled")
    told = f"compiled for {main.name}; {main.how()}"
    measures = tuple(_measures(planned, main))
    if faults:
        return Check("code", judge.FAIL, f"{'; '.join(faults)}; {told}", measures)
    return Check("code", judge.PASS, f"as labelled: {told}", measures)


def _measures(planned: Planned, main: Found) -> Iterator[Measure]:
    """The share of the main library's regions that need a feature: of those promised, and of all that are not."""
    least = inspection.threshold(main.method)
    promised = planned.features & inspection.written()
    for name in sorted(promised):
        yield Measure(f"{name}_share", round(main.share(name), 4), f">= {least}")
    for row in main.families:
        if row.feature not in planned.features:
            yield Measure(f"{row.feature}_share", round(row.share, 4), f"< {least}")
