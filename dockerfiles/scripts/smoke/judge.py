"""Judge the results of probes by the plan: pass, warn, fail, or skip with a reason. Nothing runs here.

`warn` is a known defect of the release, listed in the facts: it is shown, but is not the image's fault.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Tuple

from .records import Bytecode, Environment, Faults, GpuConvolution, OneDnnConvolution, Part, TensorFlow

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"

GUARD_EXIT = 86
# glibc's malloc: 10,241 faults for a 40 MiB tensor (one per 4 KiB page); TCMalloc: 0. Load does not change a count.
MOST_FAULTS = 1000
MOST_GPU_ERROR = 1e-3
# The largest errors on seven wheels were 7e-7, exp 2e-7, gradient 1e-10, xla 3e-7, training 0.12.
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
# Parts that a build may lack.
OPTIONAL = ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc", "xla")
# What the name of oneDNN's implementation must contain on a CPU with all of these features, best first.
ONEDNN_ISAS = (
    ("avx512_core", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2", ("avx2",)),
    ("avx", ("avx",)),
    ("sse41", ("sse4_1",)),
)
# Other names for the same code: up to oneDNN 2 for convolutions in AVX-512, in MKL-DNN 0.x for SSE4.1.
ALIASES = {"avx512_core": ("avx512_core", "avx512_common"), "sse41": ("sse41", "sse42")}
# Switches oneDNN off in every release (up to 2.4, and in later builds with --config=mkl: TF_DISABLE_MKL).
NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DISABLE_MKL": "1"}
# The variables of oneDNN, DNNL and MKL-DNN.
TALKATIVE = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1", "MKLDNN_VERBOSE": "1"}
# MKL-DNN's line about the CPU.
DETECTED = "Detected ISA is "
# How `git describe` names the commit of a release: v2.14.0-rc1-21-g4dacf3f368e.
DESCRIBED = re.compile(r"v(\d{1,4})\.(\d{1,4})\.(\d{1,4})", re.ASCII)
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

    `checks`: those of its target, beside the ones that every image has to pass.
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
        """The reason of a failure; empty where it succeeded."""
        if self.timed_out:
            return "did not end in time"
        number = -self.code if self.code < 0 else self.code - 128 if self.code > 128 else 0
        if number == signal.SIGILL:
            return "killed by SIGILL (illegal instruction): it holds instructions that this CPU lacks"
        if number:
            return "killed by {}".format(_signal_name(number))
        return "exit code {}: {}".format(self.code, last_line(self.stderr)) if self.code else ""


@dataclass(frozen=True)
class Measurement:
    """One number behind a check; `limit` as text, empty where the number is only informative."""

    name: str
    value: float
    limit: str = ""


@dataclass(frozen=True)
class Judgement:
    name: str
    status: str
    detail: str
    measures: Tuple[Measurement, ...] = ()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal {}".format(number)


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def skipped(name: str, reason: str) -> Judgement:
    return Judgement(name, SKIP, reason)


def guard(ended: Ended) -> Judgement:
    """Judge whether Python starts behind the image's entry point."""
    if ended.code == GUARD_EXIT:
        return Judgement("guard", FAIL, last_line(ended.stderr))
    if ended.why:
        return Judgement("guard", FAIL, "Python does not start: " + ended.why)
    return Judgement("guard", PASS, "the entry point finds all required features on this CPU and starts Python")


def importing(
    environment: Optional[Environment], tensorflow: Optional[TensorFlow], ended: Ended, plan: Plan
) -> Judgement:
    """Judge whether TensorFlow imports, runs an operation, and is the planned one."""
    if tensorflow is None or ended.why:
        numpy = "NumPy {}; ".format(environment.numpy) if environment and environment.numpy else ""
        return Judgement("import", FAIL, numpy + (ended.why or "the probe ended without a result"))
    wrong = list(_differences(environment, tensorflow, plan))
    measures = (Measurement("import_s", tensorflow.seconds), Measurement("peak_mib", tensorflow.peak_mib))
    if wrong:
        return Judgement("import", FAIL, "; ".join(wrong), measures)
    detail = "TensorFlow {} ({})".format(tensorflow.version, tensorflow.compiler)
    return Judgement("import", PASS, detail + (" on Python " + environment.python if environment else ""), measures)


def _differences(environment: Optional[Environment], tensorflow: TensorFlow, plan: Plan) -> Iterable[str]:
    if plan.release and tensorflow.version != plan.release:
        yield "TensorFlow is {}, not {}".format(tensorflow.version, plan.release)
    if plan.python and environment and ".".join(environment.python.split(".")[:2]) != plan.python:
        yield "Python is {}, not {}".format(environment.python, plan.python)
    if plan.target and tensorflow.cuda_build != ("cuda" in plan.checks):
        yield "it is {}built with CUDA, the target is {}".format("" if tensorflow.cuda_build else "not ", plan.target)
    if tensorflow.version == plan.release and not _is_of(tensorflow.git, plan.release):
        yield "its GIT_VERSION is {}, but it is labelled {}".format(tensorflow.git[:80], plan.release)


def _is_of(commit: str, release: str) -> bool:
    """Return whether a commit may be a release's: it is described by its tag, or by that of an earlier patch release.

    Wheels that were built from an archive do not say, and nightlies name the tag of a release long ago.
    """
    described, tag = DESCRIBED.match(commit), DESCRIBED.match("v" + release)
    if not described or not tag or "dev" in release:
        return True
    return described.groups()[:2] == tag.groups()[:2] and int(described.group(3)) <= int(tag.group(3))


def message(stderr: str) -> Tuple[str, ...]:
    """Return the features in TensorFlow's own "rebuild TensorFlow" message; empty where it printed none."""
    for pattern in MESSAGES:
        match = pattern.search(stderr)
        if match:
            return tuple(match.group(1).split())
    return ()


def bytecode(record: Optional[Bytecode], ended: Ended) -> Judgement:
    """Judge whether all bytecode is a compile of its source."""
    if record is None or ended.why:
        return Judgement("bytecode", FAIL, "the bytecode was not compared: " + (ended.why or "no result"))
    if record.wrong:
        return Judgement("bytecode", FAIL, "not a compile of its source: {}".format(" ".join(record.wrong)[:500]))
    return Judgement("bytecode", PASS, "{} files, each a compile of its source".format(record.files))


def tcmalloc(
    environment: Optional[Environment], faults: Optional[Faults], stderr: str, ended: Ended, plan: Plan
) -> Judgement:
    """Judge whether malloc is TCMalloc's, the loader reported no error, and page faults are few enough."""
    if plan.allocator != "tcmalloc":
        return skipped("tcmalloc", "the plan names no TCMalloc (allocator: {})".format(plan.allocator or "unknown"))
    refused = NOT_PRELOADED.search(stderr)
    if refused:
        return Judgement("tcmalloc", FAIL, refused.group(0)[:300])
    if environment is None or "tcmalloc" not in environment.malloc.rsplit("/", 1)[-1]:
        return Judgement(
            "tcmalloc", FAIL, "malloc is that of {}".format(environment.malloc if environment else "nobody")
        )
    if faults is None or ended.why:
        return Judgement("tcmalloc", FAIL, "page faults were not counted: " + (ended.why or "no result"))
    measures = (Measurement("faults_per_40_mib_tensor", faults.per_tensor, "< {}".format(MOST_FAULTS)),)
    if faults.per_tensor >= MOST_FAULTS:
        detail = "malloc is {}, but each 40 MiB tensor costs {:.0f} page faults".format(
            environment.malloc, faults.per_tensor
        )
        return Judgement("tcmalloc", FAIL, detail, measures)
    detail = "malloc is that of {}; {:.0f} page faults a 40 MiB tensor (glibc: 10,241)"
    return Judgement("tcmalloc", PASS, detail.format(environment.malloc, faults.per_tensor), measures)


@dataclass(frozen=True)
class Primitives:
    """What ONEDNN_VERBOSE=1 printed: the runtime ("threadpool", "openmp"), and the implementations of convolutions."""

    runtime: str
    isa: str
    convolutions: Tuple[str, ...]


def primitives(text: str) -> Primitives:
    """Parse oneDNN's lines in mixed output.

    Lines about `gemm_api` prove nothing: TensorFlow's own contraction calls it even with oneDNN off.
    """
    runtime, isa = "", ""
    implementations: List[str] = []
    for match in VERBOSE.finditer(text):
        fields = match.group(1).split(",")
        kind, implementation = executed(fields)
        if kind == "convolution":
            implementations.append(implementation)
        runtime = _field(fields, "runtime:").lower() or runtime
        isa = _field(fields, "isa:") or match.group(1).partition(DETECTED)[2] or isa
    return Primitives(runtime, isa, tuple(sorted(set(implementations))))


def executed(fields: Sequence[str]) -> Tuple[str, str]:
    """Return the kind and implementation of the primitive that a line reports on the CPU; empty where there is none.

    "[v1,primitive,]exec,cpu,KIND,IMPLEMENTATION,..." (1.x to 3.x; a time stamp may come first); MKL-DNN 0.x supports
    only CPUs: "exec,KIND,IMPLEMENTATION,...".
    """
    primitive = list(fields[fields.index("exec") + 1 :]) if "exec" in fields else []
    if primitive[:1] == ["cpu"]:
        primitive = primitive[1:]
    return (primitive[0], primitive[1]) if len(primitive) > 1 and primitive[0] != "gpu" else ("", "")


def _field(fields: Sequence[str], prefix: str) -> str:
    """Return the value in "cpu,runtime:threadpool"; lines about the GPU, which have the same fields, do not count."""
    if "cpu" not in fields:
        return ""
    return next((field[len(prefix) :] for field in fields if field.startswith(prefix)), "")


def expected_isa(flags: Sequence[str]) -> str:
    """Return the instruction set that oneDNN must use on a CPU with these kernel flags; empty where it is not x86."""
    return next((name for name, needed in ONEDNN_ISAS if set(needed) <= set(flags)), "")


def onednn(
    output: str, environment: Optional[Environment], record: Optional[OneDnnConvolution], ended: Ended, plan: Plan
) -> Judgement:
    """Judge whether a convolution ran in oneDNN, in an implementation for this CPU, on the planned runtime."""
    if "onednn" not in plan.checks:
        return skipped("onednn", "target {} promises nothing about oneDNN".format(plan.target or "unknown"))
    if record is None or ended.why:
        return Judgement("onednn", FAIL, "the convolution did not run: " + (ended.why or "no result"))
    verbose = primitives(output)
    if not record.finite:
        return Judgement("onednn", FAIL, "the convolution gave something that is not a number")
    # MKL-DNN does not print its runtime.
    runtime = verbose.runtime or ("openmp" if record.openmp else "")
    if not verbose.convolutions:
        return Judgement("onednn", FAIL, "no convolution ran in oneDNN" + (": it is off" if verbose.runtime else ""))
    isa = expected_isa(environment.cpu_flags if environment else ())
    bad = [name for name in verbose.convolutions if not _fits(name, isa)]
    if bad:
        return Judgement(
            "onednn", FAIL, "a convolution ran as {}, not as JIT code for {}".format(bad[0], isa or "this CPU")
        )
    if plan.threading and runtime != plan.threading:
        return Judgement("onednn", FAIL, "its threading is {}, not {}".format(runtime or "unknown", plan.threading))
    shown_runtime = runtime if verbose.runtime else record.openmp or "an unknown runtime"
    convolutions = ", ".join(verbose.convolutions)
    detail = "a convolution ran as {} on {} ({})".format(convolutions, shown_runtime, verbose.isa)
    return Judgement("onednn", PASS, detail)


def _fits(implementation: str, isa: str) -> bool:
    names = ALIASES.get(isa, (isa,))
    return bool(re.search(r"jit|brg|acl", implementation)) and any(name in implementation for name in names)


def numerics(parts: Sequence[Part], ended: Ended, plan: Plan) -> Judgement:
    """Judge whether every part is within its limit; a known defect of the release is a warning."""
    known = {part.name: part for part in parts}
    missing = [name for name in LIMITS if name not in known]
    if ended.why or missing:
        return Judgement(
            "numerics", FAIL, "ended before {}: {}".format(missing[0] if missing else "its end", ended.why)
        )
    wrong = [name for name in LIMITS if not within(known[name])]
    absent = [name for name in LIMITS if known[name].error is None and name not in wrong]
    measures = tuple(
        Measurement(name, known[name].error or 0.0, "<= {:g}".format(limit))
        for name, limit in LIMITS.items()
        if known[name].error is not None
    )
    blamed = [name for name in wrong if name not in plan.known_defects]
    details = ["{} {}".format(name, _error(known[name])) for name in blamed or wrong]
    details += ["{}: {}".format(name, known[name].note or "absent") for name in absent]
    if blamed:
        return Judgement("numerics", FAIL, "; ".join(details), measures)
    if wrong:
        return Judgement("numerics", WARN, "a known defect of this release: " + "; ".join(details), measures)
    summary = "{} of {} parts within their limits".format(len(measures), len(LIMITS))
    return Judgement("numerics", PASS, "; ".join([summary, *details]), measures)


def within(part: Part) -> bool:
    if part.error is None:
        return bool(part.note) and part.name in OPTIONAL
    return 0.0 <= part.error <= LIMITS[part.name]


def _error(part: Part) -> str:
    if part.error is None:
        return part.note or "gave no finite number"
    return "is off by {:.2g} (limit {:g})".format(part.error, LIMITS[part.name])


def cuda(record: Optional[GpuConvolution], ended: Ended, plan: Plan) -> Judgement:
    """Judge whether an operation on the GPU gives the CPU's result. Not run on a GPU so far."""
    if "cuda" not in plan.checks:
        return skipped("cuda", "target {}".format(plan.target or "unknown"))
    if record is None or ended.why:
        return Judgement("cuda", FAIL, "the GPU was not tried: " + (ended.why or "no result"))
    if not record.gpus:
        return skipped("cuda", "no GPU is visible in the container")
    if record.error is None or not record.error <= MOST_GPU_ERROR or "GPU" not in record.device:
        return Judgement("cuda", FAIL, "{} differs from the CPU by {}".format(record.device or "the GPU", record.error))
    measures = (Measurement("gpu_error", record.error, "<= {:g}".format(MOST_GPU_ERROR)),)
    return Judgement("cuda", PASS, "{} agrees with the CPU".format(record.device), measures)


def verdict(checks: Sequence[Judgement]) -> str:
    """Return fail where any check fails, else warn where any warns, else pass; only skipped checks are a fail."""
    statuses = {check.status for check in checks}
    if FAIL in statuses or not statuses & {PASS, WARN}:
        return FAIL
    return WARN if WARN in statuses else PASS
