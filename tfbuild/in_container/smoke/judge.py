"""Judge the results of probes by the plan: pass, warn, fail, or skip with a reason. Nothing runs here.

`warn` is a known defect of the release, listed in the facts: it is shown, but is not the image's fault.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    "quantized": 0.0,
}
# Parts that a build may lack.
OPTIONAL = ("max_pool_nchw_after_nhwc", "avg_pool_nchw_after_nhwc", "quantized", "xla")
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
    checks: tuple[str, ...] = ()
    known_defects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a probe ended: `code` is negative (a child) or above 128 (a container) if a signal killed it."""

    code: int
    stderr: str
    timed_out: bool = False

    @property
    def why(self) -> str:
        """The reason of a failure; empty if it succeeded."""
        if self.timed_out:
            return "did not end in time"
        number = -self.code if self.code < 0 else self.code - 128 if self.code > 128 else 0
        if number == signal.SIGILL:
            return "killed by SIGILL (illegal instruction): it holds instructions that this CPU lacks"
        if number:
            known = {known.value: known.name for known in signal.Signals}
            return f"killed by {known.get(number, f'signal {number}')}"
        return f"exit code {self.code}: {last_line(self.stderr)}" if self.code else ""


@dataclass(frozen=True)
class Results:
    """What a probe sent, and how it ended, with all that it printed on stderr.

    `environment`, `printed`: what the first probe (`start`) sent of the container, and printed on stderr.
    """

    records: tuple[Any, ...]
    ended: Ended
    environment: Environment | None = None
    printed: str = ""

    @property
    def record(self) -> Any:
        """The first record; None if the probe sent none."""
        return self.records[0] if self.records else None

    @property
    def missing(self) -> str:
        """Why there is no whole result; empty if there is one."""
        return self.ended.why or ("" if self.records else "no result")


@dataclass(frozen=True)
class Measurement:
    """One number behind a check; `limit` as text, empty if the number is only informative."""

    name: str
    value: float
    limit: str = ""


@dataclass(frozen=True)
class Judgement:
    status: str
    detail: str
    measures: tuple[Measurement, ...] = ()


def last_line(text: str) -> str:
    """Return the last line that is not blank, cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def verdict(statuses: Iterable[str]) -> str:
    """Return fail if any check fails, else warn if any warns, else pass; if all were skipped, fail."""
    found = set(statuses)
    if FAIL in found or not found & {PASS, WARN}:
        return FAIL
    return WARN if WARN in found else PASS


def guard(ended: Ended) -> Judgement:
    """Judge whether Python starts behind the image's entry point."""
    if ended.code == GUARD_EXIT:
        return Judgement(FAIL, last_line(ended.stderr))
    if ended.why:
        return Judgement(FAIL, f"Python does not start: {ended.why}")
    return Judgement(PASS, "the entry point finds all required features on this CPU and starts Python")


def importing(results: Results, plan: Plan) -> Judgement:
    """Judge whether TensorFlow imports, runs an operation, and is the planned one."""
    environment: Environment | None = results.record
    tensorflow: TensorFlow | None = results.records[1] if len(results.records) > 1 else None
    if environment is None or tensorflow is None or results.ended.why:
        numpy = f"NumPy {environment.numpy}; " if environment and environment.numpy else ""
        return Judgement(FAIL, numpy + (results.ended.why or "the probe ended without a result"))
    wrong = list(_differences(environment, tensorflow, plan))
    measures = (Measurement("import_s", tensorflow.seconds), Measurement("peak_mib", tensorflow.peak_mib))
    if wrong:
        return Judgement(FAIL, "; ".join(wrong), measures)
    detail = f"TensorFlow {tensorflow.version} ({tensorflow.compiler}) on Python {environment.python}"
    return Judgement(PASS, detail, measures)


def _differences(environment: Environment, tensorflow: TensorFlow, plan: Plan) -> Iterable[str]:
    if plan.release and tensorflow.version != plan.release:
        yield f"TensorFlow is {tensorflow.version}, not {plan.release}"
    if plan.python and ".".join(environment.python.split(".")[:2]) != plan.python:
        yield f"Python is {environment.python}, not {plan.python}"
    if plan.target and tensorflow.cuda_build != ("cuda" in plan.checks):
        yield f"it is {'' if tensorflow.cuda_build else 'not '}built with CUDA, the target is {plan.target}"
    if tensorflow.version == plan.release and not _is_of(tensorflow.git, plan.release):
        yield f"its GIT_VERSION is {tensorflow.git[:80]}, but it is labelled {plan.release}"


def _is_of(commit: str, release: str) -> bool:
    """Return whether a commit may be a release's: it is described by its tag, or by that of an earlier patch release.

    Wheels that were built from an archive do not say, and nightlies name the tag of a release long ago.
    """
    described, tag = DESCRIBED.match(commit), DESCRIBED.match("v" + release)
    if not described or not tag or "dev" in release:
        return True
    return described.groups()[:2] == tag.groups()[:2] and int(described.group(3)) <= int(tag.group(3))


def message(stderr: str) -> tuple[str, ...]:
    """Return the features in TensorFlow's own "rebuild TensorFlow" message; empty if it printed none."""
    for pattern in MESSAGES:
        match = pattern.search(stderr)
        if match:
            return tuple(match.group(1).split())
    return ()


def bytecode(results: Results, _: Plan) -> Judgement:
    """Judge whether all bytecode is compiled from its source."""
    record: Bytecode = results.record
    if results.missing:
        return Judgement(FAIL, f"the bytecode was not compared: {results.missing}")
    if record.wrong:
        return Judgement(FAIL, f"not compiled from its source: {' '.join(record.wrong)[:500]}")
    return Judgement(PASS, f"{record.files} files, each compiled from its source")


def tcmalloc(results: Results, _: Plan) -> Judgement:
    """Judge whether malloc is TCMalloc's, the loader reported no error, and page faults are few enough."""
    refused = NOT_PRELOADED.search(results.printed)
    if refused:
        return Judgement(FAIL, refused.group(0)[:300])
    malloc = results.environment.malloc if results.environment else "nobody"
    if "tcmalloc" not in malloc.rsplit("/", 1)[-1]:
        return Judgement(FAIL, f"malloc is that of {malloc}")
    if results.missing:
        return Judgement(FAIL, f"page faults were not counted: {results.missing}")
    faults = results.record.per_tensor
    measures = (Measurement("faults_per_40_mib_tensor", faults, f"< {MOST_FAULTS}"),)
    if faults >= MOST_FAULTS:
        return Judgement(FAIL, f"malloc is {malloc}, but each 40 MiB tensor costs {faults:.0f} page faults", measures)
    detail = f"malloc is that of {malloc}; {faults:.0f} page faults a 40 MiB tensor (glibc: 10,241)"
    return Judgement(PASS, detail, measures)


@dataclass(frozen=True)
class Primitives:
    """What ONEDNN_VERBOSE=1 printed: the runtime ("threadpool", "openmp"), and the implementations of convolutions."""

    runtime: str
    isa: str
    convolutions: tuple[str, ...]


def primitives(text: str) -> Primitives:
    """Parse oneDNN's lines in mixed output.

    Lines about `gemm_api` prove nothing: TensorFlow's own contraction calls it even with oneDNN off.
    """
    runtime, isa = "", ""
    implementations: list[str] = []
    for match in VERBOSE.finditer(text):
        fields = match.group(1).split(",")
        kind, implementation = executed(fields)
        if kind == "convolution":
            implementations.append(implementation)
        runtime = _field(fields, "runtime:").lower() or runtime
        isa = _field(fields, "isa:") or match.group(1).partition(DETECTED)[2] or isa
    return Primitives(runtime, isa, tuple(sorted(set(implementations))))


def executed(fields: Sequence[str]) -> tuple[str, str]:
    """Return the kind and implementation of the primitive that a line reports on the CPU; empty if there is none.

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
    """Return the instruction set that oneDNN must use on a CPU with these kernel flags; empty if it is not x86."""
    return next((name for name, needed in ONEDNN_ISAS if set(needed) <= set(flags)), "")


def onednn(results: Results, plan: Plan) -> Judgement:
    """Judge whether a convolution ran in oneDNN, in an implementation for this CPU, on the planned runtime."""
    record: OneDnnConvolution = results.record
    if results.missing:
        return Judgement(FAIL, f"the convolution did not run: {results.missing}")
    verbose = primitives(results.ended.stderr)
    if not record.finite:
        return Judgement(FAIL, "the convolution gave something that is not a number")
    if not verbose.convolutions:
        return Judgement(FAIL, "no convolution ran in oneDNN" + (": it is off" if verbose.runtime else ""))
    isa = expected_isa(results.environment.cpu_flags if results.environment else ())
    bad = [name for name in verbose.convolutions if not _fits(name, isa)]
    if bad:
        return Judgement(FAIL, f"a convolution ran as {bad[0]}, not as JIT code for {isa or 'this CPU'}")
    # MKL-DNN does not print its runtime.
    runtime = verbose.runtime or ("openmp" if record.openmp else "")
    if plan.threading and runtime != plan.threading:
        return Judgement(FAIL, f"its threading is {runtime or 'unknown'}, not {plan.threading}")
    shown_runtime = verbose.runtime or record.openmp or "an unknown runtime"
    detail = f"a convolution ran as {', '.join(verbose.convolutions)} on {shown_runtime} ({verbose.isa})"
    return Judgement(PASS, detail)


def _fits(implementation: str, isa: str) -> bool:
    names = ALIASES.get(isa, (isa,))
    return bool(re.search(r"jit|brg|acl", implementation)) and any(name in implementation for name in names)


def numerics(results: Results, plan: Plan) -> Judgement:
    """Judge whether every part is within its limit; a known defect of the release is a warning."""
    known: dict[str, Part] = {part.name: part for part in results.records}
    missing = [name for name in LIMITS if name not in known]
    if results.ended.why or missing:
        return Judgement(FAIL, f"ended before {missing[0] if missing else 'its end'}: {results.ended.why}")
    wrong = [name for name in LIMITS if not within(known[name])]
    absent = [name for name in LIMITS if known[name].error is None and name not in wrong]
    measures = tuple(
        Measurement(name, known[name].error or 0.0, f"<= {limit:g}")
        for name, limit in LIMITS.items()
        if known[name].error is not None
    )
    blamed = [name for name in wrong if name not in plan.known_defects]
    details = [f"{name} {_error(known[name])}" for name in blamed or wrong]
    details += [f"{name}: {known[name].note or 'absent'}" for name in absent]
    if blamed:
        return Judgement(FAIL, "; ".join(details), measures)
    if wrong:
        return Judgement(WARN, "a known defect of this release: " + "; ".join(details), measures)
    summary = f"{len(measures)} of {len(LIMITS)} parts within their limits"
    return Judgement(PASS, "; ".join([summary, *details]), measures)


def within(part: Part) -> bool:
    """Return whether a part's error is within its limit, or the part is one that a build may lack."""
    if part.error is None:
        return bool(part.note) and part.name in OPTIONAL
    return 0.0 <= part.error <= LIMITS[part.name]


def _error(part: Part) -> str:
    if part.error is None:
        return part.note or "gave no finite number"
    return f"is off by {part.error:.2g} (limit {LIMITS[part.name]:g})"


def cuda(results: Results, _: Plan) -> Judgement:
    """Judge whether an operation on the GPU gives the CPU's result. Not run on a GPU so far."""
    record: GpuConvolution = results.record
    if results.missing:
        return Judgement(FAIL, f"the GPU was not tried: {results.missing}")
    if not record.gpus:
        return Judgement(SKIP, "no GPU is visible in the container")
    if record.error is None or not record.error <= MOST_GPU_ERROR or "GPU" not in record.device:
        return Judgement(FAIL, f"{record.device or 'the GPU'} differs from the CPU by {record.error}")
    measures = (Measurement("gpu_error", record.error, f"<= {MOST_GPU_ERROR:g}"),)
    return Judgement(PASS, f"{record.device} agrees with the CPU", measures)


@dataclass(frozen=True)
class ProbeCheck:
    """A check of one probe's results. `kinds`: the records that the probe sends; `env`: changes of its environment.

    `skip`: why the plan does not ask for it, else empty.
    """

    name: str
    probe: str
    kinds: tuple[type, ...]
    judge: Callable[[Results, Plan], Judgement]
    skip: Callable[[Plan], str] = lambda _: ""
    env: dict[str, str] = field(default_factory=dict)


def _of_target(name: str) -> Callable[[Plan], str]:
    return lambda plan: "" if name in plan.checks else f"not a check of target {plan.target or 'unknown'}"


def _no_tcmalloc(plan: Plan) -> str:
    return "" if plan.allocator == "tcmalloc" else f"the plan's allocator is {plan.allocator or 'unknown'}"


IMPORT = ProbeCheck("import", "start", (Environment, TensorFlow), importing)
BYTECODE = ProbeCheck("bytecode", "bytecode", (Bytecode,), bytecode)
ONEDNN = ProbeCheck("onednn", "onednn", (OneDnnConvolution,), onednn, _of_target("onednn"), TALKATIVE)
TCMALLOC = ProbeCheck("tcmalloc", "faults", (Faults,), tcmalloc, _no_tcmalloc, NO_ONEDNN)
CUDA = ProbeCheck("cuda", "cuda", (GpuConvolution,), cuda, _of_target("cuda"))
NUMERICS = ProbeCheck("numerics", "numerics", (Part,) * len(LIMITS), numerics)
