"""The isa check: the features compiled into TensorFlow are the plan's, none missing and none beyond."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfbuild import binary, facts, inspector, releases
from tfbuild.binary import Guard, GuardUnreadable
from tfbuild.cpu import canonical
from tfbuild.engine import Engine
from tfbuild.smoke import judge
from tfbuild.smoke.judge import Check
from tfbuild.verify.planned import Planned

# Every x86-64 has these, so no plan names them, and the guard asks for them in every build.
BASE = frozenset({"SSE", "SSE2"})


def read(engine: Engine, ref: str, planned: Planned) -> Guard:
    """The guard of the TensorFlow in an image, which is not started for it; GuardUnreadable with the reason."""
    path = inspector.site(planned.python, planned.release, releases.package(planned.release).framework)
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        try:
            library = engine.read_file(ref, path, Path(folder) / "library", binary.MOST_BYTES)
        except OSError as error:
            raise GuardUnreadable(f"{path} cannot be taken out of the image: {error.strerror or error}") from error
        return binary.read_guard(library, planned.release)


def check(planned: Planned, guard: Guard, flags: Sequence[str], message: Sequence[str] | None, why: str) -> Check:
    """`flags`: the CPU's, in the kernel's names; `message`: what TensorFlow says it leaves unused (None: `why`)."""
    judged = binary.judged(planned.release)
    wanted = (BASE | set(binary.spelling(planned.release, planned.features))) & judged
    compiled = set(guard.compiled) & judged
    faults = [
        f"{what} {' '.join(sorted(names))}"
        for what, names in (("lacks", wanted - compiled), ("has beyond its plan", compiled - wanted))
        if names
    ]
    if faults:
        return Check("isa", judge.FAIL, f"compiled for {' '.join(guard.compiled)}: it {' and it '.join(faults)}")
    told = f"compiled for {' '.join(guard.compiled)}, as planned"
    if message is None:
        return Check("isa", judge.PASS, f"{told}; not cross-checked with TensorFlow's message, since {why}")
    expected = _seen_by_kernel(unused(guard, flags))
    if _seen_by_kernel(message) != expected:
        return Check("isa", judge.FAIL, _disagreement(message, expected))
    return Check("isa", judge.PASS, f"{told}; TensorFlow's own message agrees ({' '.join(message) or 'none unused'})")


def unused(guard: Guard, flags: Sequence[str]) -> tuple[str, ...]:
    """What this CPU has and the build leaves unused, in the guard's names and order."""
    held = set(canonical(frozenset(flags), "x86_64"))
    names = {row.tensorflow for row in facts.features("x86_64") if row.name in held}
    return tuple(name for name in guard.unused if name in names)


def _seen_by_kernel(names: Sequence[str]) -> tuple[str, ...]:
    """Without those that no kernel prints (AMX_FP16): TensorFlow asks the CPU itself."""
    hidden = {row.tensorflow for row in facts.features("x86_64") if row.tensorflow and not row.cpuinfo}
    return tuple(name for name in names if name not in hidden)


def _disagreement(message: Sequence[str], expected: Sequence[str]) -> str:
    said = " ".join(message) or "nothing"
    read = " ".join(expected) or "nothing"
    return f"its guard leaves {read} of this CPU unused, but TensorFlow's own message says {said}"
