"""From what was found and what was planned to a check: pass, warn, fail, or skip with a reason. Nothing runs here.

`warn` is a defect of the release that is known and listed in the facts: it is shown, and the image is not to blame.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Tuple

from .records import Cuda, Environment, Faults, OneDnn, Part, TensorFlow

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"

GUARD_EXIT = 86
# glibc's malloc: 10,241 faults for a 40 MiB tensor (one for each 4 KiB page); TCMalloc: 0. A count: no load changes it.
MOST_FAULTS = 1000
MOST_GPU_ERROR = 1e-3
# The largest errors seen on seven wheels were 7e-7, exp 2e-7, gradient 1e-10, xla 3e-7, training 0.12.
LIMITS = {
    "matmul": 1e-5,
    "convolution": 1e-5,
    "exp": 2e-6,
    "softmax": 1e-5,
    "batch_norm": 1e-5,
    "gradient": 1e-6,
    "max_pool_nhwc": 0.0,
    "avg_pool_nhwc": 1e-6,
    "max_pool_nchw_after_nhwc": 0.0,
    "avg_pool_nchw_after_nhwc": 1e-6,
    "xla": 1e-4,
    "training": 0.6,
}
# Parts that need not be in every build.
OPTIONAL = ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc", "xla")
# What oneDNN's name of an implementation must hold on a CPU with all of these features, best first.
ONEDNN_ISAS = (
    ("avx512_core", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2", ("avx2",)),
    ("avx", ("avx",)),
    ("sse41", ("sse4_1",)),
)
# Other names for the same code: up to oneDNN 2 for convolutions in AVX-512, in MKL-DNN 0.x for SSE4.1.
ALIASES = {"avx512_core": ("avx512_core", "avx512_common"), "sse41": ("sse41", "sse42")}
# Every release's way to switch oneDNN off (up to 2.4, and in later builds by --config=mkl: TF_DISABLE_MKL).
NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DISABLE_MKL": "1"}
# oneDNN's, DNNL's and MKL-DNN's variable.
TALKATIVE = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}
# MKL-DNN's line about the CPU.
DETECTED = "Detected ISA is "
NOT_PRELOADED = re.compile(r"ERROR: ld\.so: .*cannot be preloaded.*")
VERBOSE = re.compile(r"^(?:onednn|dnnl|mkldnn)_verbose,(.*)$", re.MULTILINE)
MESSAGES = (
    re.compile(r"^To enable the following instructions:((?: [^\s,]+)+), in other operations, rebuild", re.MULTILINE),
    re.compile(r"use the following CPU instructions in performance[- ]critical operations: +((?:\S+ ?)+)"),
    re.compile(r"this TensorFlow binary was not compiled to use:((?: \S+)+)"),
)


@dataclass(frozen=True)
class Plan:
    """What the image is planned to be, as far as it is known; an empty field is not compared.

    `checks`: those that its target makes beside the ones that every image has to pass.
    """

    release: str = ""
    python: str = ""
    target: str = ""
    threading: str = ""
    allocator: str = ""
    checks: Tuple[str, ...] = ()
    known_defects: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a probe ended: `code` is negative (a child) or above 128 (a container) where a signal killed it."""

    code: int
    stderr: str
    timed_out: bool = False

    @property
    def why(self) -> str:
        """Empty where it ended well."""
        if self.timed_out:
            return "did not end in time"
        number = -self.code if self.code < 0 else self.code - 128 if self.code > 128 else 0
        if number == signal.SIGILL:
            return "killed by SIGILL (illegal instruction): it holds instructions that this CPU lacks"
        if number:
            return "killed by {}".format(_signal_name(number))
        return "exit code {}: {}".format(self.code, last_line(self.stderr)) if self.code else ""


@dataclass(frozen=True)
class Measure:
    """One number behind a check; `limit` in words, empty where it only informs."""

    name: str
    value: float
    limit: str = ""


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    detail: str
    measures: Tuple[Measure, ...] = ()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal {}".format(number)


def last_line(text: str) -> str:
    """The last line that says something, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def skipped(name: str, reason: str) -> Check:
    return Check(name, SKIP, reason)


def guard(ended: Ended) -> Check:
    """Python itself starts behind the image's entry point."""
    if ended.code == GUARD_EXIT:
        return Check("guard", FAIL, last_line(ended.stderr))
    if ended.why:
        return Check("guard", FAIL, "Python does not start: " + ended.why)
    return Check("guard", PASS, "the entry point finds all required features on this CPU and starts Python")


def importing(environment: Optional[Environment], tensorflow: Optional[TensorFlow], ended: Ended, plan: Plan) -> Check:
    """TensorFlow imports, runs an operation, and is the planned one."""
    if tensorflow is None or ended.why:
        told = "NumPy {}; ".format(environment.numpy) if environment and environment.numpy else ""
        return Check("import", FAIL, told + (ended.why or "the probe ended without a result"))
    wrong = list(_differences(environment, tensorflow, plan))
    measures = (Measure("import_s", tensorflow.seconds), Measure("peak_mib", tensorflow.peak_mib))
    if wrong:
        return Check("import", FAIL, "; ".join(wrong), measures)
    told = "TensorFlow {} ({})".format(tensorflow.version, tensorflow.compiler)
    return Check("import", PASS, told + (" on Python " + environment.python if environment else ""), measures)


def _differences(environment: Optional[Environment], tensorflow: TensorFlow, plan: Plan) -> Iterable[str]:
    if plan.release and tensorflow.version != plan.release:
        yield "TensorFlow is {}, not {}".format(tensorflow.version, plan.release)
    if plan.python and environment and ".".join(environment.python.split(".")[:2]) != plan.python:
        yield "Python is {}, not {}".format(environment.python, plan.python)
    if plan.target and tensorflow.cuda_build != ("cuda" in plan.checks):
        yield "it is {}built with CUDA, the target is {}".format("" if tensorflow.cuda_build else "not ", plan.target)


def message(stderr: str) -> Tuple[str, ...]:
    """The features that TensorFlow's own "rebuild TensorFlow" message names; empty where it printed none."""
    for pattern in MESSAGES:
        match = pattern.search(stderr)
        if match:
            return tuple(match.group(1).split())
    return ()


def tcmalloc(
    environment: Optional[Environment], faults: Optional[Faults], stderr: str, ended: Ended, plan: Plan
) -> Check:
    """malloc is TCMalloc's, the loader had no complaint, and it shows in what the kernel has to do."""
    if plan.allocator != "tcmalloc":
        return skipped("tcmalloc", "the plan names no TCMalloc (allocator: {})".format(plan.allocator or "unknown"))
    refused = NOT_PRELOADED.search(stderr)
    if refused:
        return Check("tcmalloc", FAIL, refused.group(0)[:300])
    if environment is None or "tcmalloc" not in environment.malloc.rsplit("/", 1)[-1]:
        return Check("tcmalloc", FAIL, "malloc is that of {}".format(environment.malloc if environment else "nobody"))
    if faults is None or ended.why:
        return Check("tcmalloc", FAIL, "page faults were not counted: " + (ended.why or "no result"))
    measures = (Measure("faults_per_40_mib_tensor", faults.per_tensor, "< {}".format(MOST_FAULTS)),)
    if faults.per_tensor >= MOST_FAULTS:
        told = "malloc is {}, but each 40 MiB tensor costs {:.0f} page faults".format(
            environment.malloc, faults.per_tensor
        )
        return Check("tcmalloc", FAIL, told, measures)
    told = "malloc is that of {}; {:.0f} page faults a 40 MiB tensor (glibc: 10,241)"
    return Check("tcmalloc", PASS, told.format(environment.malloc, faults.per_tensor), measures)


@dataclass(frozen=True)
class Primitives:
    """What ONEDNN_VERBOSE=1 told: the runtime ("threadpool", "openmp"), and which implementations convolved."""

    runtime: str
    isa: str
    convolutions: Tuple[str, ...]


def primitives(text: str) -> Primitives:
    """oneDNN's lines out of mixed output.

    `gemm_api` lines come with oneDNN off as well: TensorFlow's own contraction calls it. They prove nothing.
    """
    runtime, isa = "", ""
    found: List[str] = []
    for match in VERBOSE.finditer(text):
        fields = match.group(1).split(",")
        kind, implementation = executed(fields)
        if kind == "convolution":
            found.append(implementation)
        runtime = _told(fields, "runtime:").lower() or runtime
        isa = _told(fields, "isa:") or match.group(1).partition(DETECTED)[2] or isa
    return Primitives(runtime, isa, tuple(sorted(set(found))))


def executed(fields: Sequence[str]) -> Tuple[str, str]:
    """The kind of primitive that ran on the CPU by a line's fields, and its implementation; empty where none did.

    "[v1,primitive,]exec,cpu,KIND,IMPLEMENTATION,..." (1.x to 3.x; a time stamp may stand in front); MKL-DNN 0.x knows
    nothing but CPUs: "exec,KIND,IMPLEMENTATION,...".
    """
    ran = list(fields[fields.index("exec") + 1 :]) if "exec" in fields else []
    if ran[:1] == ["cpu"]:
        ran = ran[1:]
    return (ran[0], ran[1]) if len(ran) > 1 and ran[0] != "gpu" else ("", "")


def _told(fields: Sequence[str], what: str) -> str:
    """The value of "cpu,runtime:threadpool": lines about the GPU have the same fields."""
    if "cpu" not in fields:
        return ""
    return next((field[len(what) :] for field in fields if field.startswith(what)), "")


def expected_isa(flags: Sequence[str]) -> str:
    """What oneDNN's implementation must be written for on a CPU with these kernel flags; empty where it is not x86."""
    return next((name for name, needed in ONEDNN_ISAS if set(needed) <= set(flags)), "")


def onednn(output: str, environment: Optional[Environment], ran: Optional[OneDnn], ended: Ended, plan: Plan) -> Check:
    """A convolution ran in oneDNN, in an implementation for this CPU, on the planned threading runtime."""
    if "onednn" not in plan.checks:
        return skipped("onednn", "target {} promises nothing about oneDNN".format(plan.target or "unknown"))
    if ran is None or ended.why:
        return Check("onednn", FAIL, "the convolution did not run: " + (ended.why or "no result"))
    told = primitives(output)
    if not ran.finite:
        return Check("onednn", FAIL, "the convolution gave something that is not a number")
    # MKL-DNN does not say what it runs on.
    runtime = told.runtime or ("openmp" if ran.openmp else "")
    if not told.convolutions:
        return Check("onednn", FAIL, "no convolution ran in oneDNN" + (": it is off" if told.runtime else ""))
    isa = expected_isa(environment.cpu_flags if environment else ())
    bad = [name for name in told.convolutions if not _fits(name, isa)]
    if bad:
        return Check(
            "onednn", FAIL, "a convolution ran as {}, not as JIT code for {}".format(bad[0], isa or "this CPU")
        )
    if plan.threading and runtime != plan.threading:
        return Check("onednn", FAIL, "its threading is {}, not {}".format(runtime or "unknown", plan.threading))
    where = runtime if told.runtime else ran.openmp or "an unknown runtime"
    detail = "a convolution ran as {} on {} ({})".format(", ".join(told.convolutions), where, told.isa)
    return Check("onednn", PASS, detail)


def _fits(implementation: str, isa: str) -> bool:
    names = ALIASES.get(isa, (isa,))
    return bool(re.search(r"jit|brg|acl", implementation)) and any(name in implementation for name in names)


def numerics(parts: Sequence[Part], ended: Ended, plan: Plan) -> Check:
    """Every part is within its limit; a known defect of the release warns."""
    known = {part.name: part for part in parts}
    missing = [name for name in LIMITS if name not in known]
    if ended.why or missing:
        return Check("numerics", FAIL, "ended before {}: {}".format(missing[0] if missing else "its end", ended.why))
    wrong = [name for name in LIMITS if not within(known[name])]
    absent = [name for name in LIMITS if known[name].error is None and name not in wrong]
    measures = tuple(
        Measure(name, known[name].error or 0.0, "<= {:g}".format(limit))
        for name, limit in LIMITS.items()
        if known[name].error is not None
    )
    blamed = [name for name in wrong if name not in plan.known_defects]
    told = ["{} {}".format(name, _error(known[name])) for name in blamed or wrong]
    told += ["{}: {}".format(name, known[name].note or "absent") for name in absent]
    if blamed:
        return Check("numerics", FAIL, "; ".join(told), measures)
    if wrong:
        return Check("numerics", WARN, "a known defect of this release: " + "; ".join(told), measures)
    worst = "{} of {} parts within their limits".format(len(measures), len(LIMITS))
    return Check("numerics", PASS, "; ".join([worst, *told]), measures)


def within(part: Part) -> bool:
    if part.error is None:
        return bool(part.note) and part.name in OPTIONAL
    return 0.0 <= part.error <= LIMITS[part.name]


def _error(part: Part) -> str:
    if part.error is None:
        return part.note or "gave no finite number"
    return "is off by {:.2g} (limit {:g})".format(part.error, LIMITS[part.name])


def cuda(found: Optional[Cuda], ended: Ended, plan: Plan) -> Check:
    """An operation on the GPU gives what the CPU gives. Not run on a GPU so far."""
    if "cuda" not in plan.checks:
        return skipped("cuda", "target {}".format(plan.target or "unknown"))
    if found is None or ended.why:
        return Check("cuda", FAIL, "the GPU was not tried: " + (ended.why or "no result"))
    if not found.gpus:
        return skipped("cuda", "no GPU is visible in the container")
    if found.error is None or not found.error <= MOST_GPU_ERROR or "GPU" not in found.device:
        return Check("cuda", FAIL, "{} differs from the CPU by {}".format(found.device or "the GPU", found.error))
    measures = (Measure("gpu_error", found.error, "<= {:g}".format(MOST_GPU_ERROR)),)
    return Check("cuda", PASS, "{} agrees with the CPU".format(found.device), measures)


def verdict(checks: Sequence[Check]) -> str:
    """fail where any check fails, else warn where any warns, else pass; skipped ones alone prove nothing: fail."""
    held = [check.status for check in checks]
    if FAIL in held or not set(held) & {PASS, WARN}:
        return FAIL
    return WARN if WARN in held else PASS
