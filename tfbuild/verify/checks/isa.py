"""The isa check: the features compiled into TensorFlow are the plan's, none missing and none beyond."""

from collections.abc import Sequence

from tfbuild import facts
from tfbuild.binary.guard import Guard, read_guard
from tfbuild.cpu.recordings import canonical
from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.plan import Build
from tfbuild.verify import libraries
from tfbuild.verify.verification import Verification, VerificationCheck

# Every x86-64 has these, so no plan names them; the guard checks them in every build.
BASE = frozenset({"SSE", "SSE2"})


def compare(planned: Build, guard: Guard, flags: Sequence[str], message: Sequence[str] | None, why: str) -> Judgement:
    """Judge the guard by the plan.

    `flags`: the CPU's, in the kernel's names; `message`: the features that TensorFlow reports as unused; where that is
    None, `why`.
    """
    judged = releases.guard_judged(planned.release)
    wanted = (BASE | set(releases.guard_spelling(planned.release, planned.instruction_set.features))) & judged
    compiled = set(guard.compiled) & judged
    faults = [
        f"{fault} {' '.join(sorted(names))}"
        for fault, names in (("lacks", wanted - compiled), ("has beyond its plan", compiled - wanted))
        if names
    ]
    if faults:
        return Judgement(judge.FAIL, f"compiled for {' '.join(guard.compiled)}: it {' and it '.join(faults)}")
    summary = f"compiled for {' '.join(guard.compiled)}, as planned"
    if message is None:
        return Judgement(judge.PASS, f"{summary}; not cross-checked with TensorFlow's message, since {why}")
    expected = _seen_by_kernel(unused(guard, flags))
    if _seen_by_kernel(message) != expected:
        return Judgement(judge.FAIL, _disagreement(message, expected))
    return Judgement(judge.PASS, f"{summary}; TensorFlow's own message agrees ({' '.join(message) or 'none unused'})")


def unused(guard: Guard, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the features of this CPU that the build leaves unused, in the guard's names and order."""
    held = canonical(flags, "x86_64")
    names = {row.tensorflow for row in facts.features("x86_64") if row.name in held}
    return tuple(name for name in guard.unused if name in names)


def _seen_by_kernel(names: Sequence[str]) -> tuple[str, ...]:
    """Leave out features that no kernel prints (AMX_FP16): TensorFlow asks the CPU itself."""
    hidden = {row.tensorflow for row in facts.features("x86_64") if row.tensorflow and not row.cpuinfo}
    return tuple(name for name in names if name not in hidden)


def _disagreement(message: Sequence[str], expected: Sequence[str]) -> str:
    by_message = " ".join(message) or "nothing"
    by_guard = " ".join(expected) or "nothing"
    return f"its guard leaves {by_guard} of this CPU unused, but TensorFlow's own message says {by_message}"


def _skip(verification: Verification) -> str:
    arch = verification.planned.instruction_set.arch
    return "" if arch == "x86_64" else f"TensorFlow's guard knows no feature of {arch}"


def _run(verification: Verification) -> Judgement:
    planned, start = verification.planned, verification.start
    with libraries.framework(verification.engine, verification.ref, planned) as library:
        guard = read_guard(library, planned.release)
    verification.guard = guard
    flags = start.environment.cpu_flags if start.environment else ()
    message = judge.message(start.outcome.output) if start.tensorflow else None
    return compare(planned, guard, flags, message, start.why)


CHECK = VerificationCheck(
    name="isa",
    proves="The instruction set compiled into TensorFlow is the plan's: none missing, none beyond it.",
    how="The calls of the CPU guard inside libtensorflow_framework.so.2 were disassembled on the host (nothing was "
    "executed), and compared with the labels and with TensorFlow's own message about unused instructions.",
    fix="rebuild with the copts of the plan, or give --cpu the instruction set that the wheel really has",
    skip=_skip,
    run=_run,
)
