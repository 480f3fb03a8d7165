"""Judge the results of probes by the plan: pass, warn, fail, or skip with a reason. Nothing runs here.

`warn` is a known defect of the release, listed in the facts: it is shown, but is not the image's fault.
"""

import math
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .probes import Computed, Environment, Faults, GpuConvolution, OneDnnConvolution, TensorFlow
from .references import PARTS

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"

GUARD_EXIT = 86
# What a probe says of such a result is that it has none.
UNUSABLE = "gave something that is not a number, or absurdly large"
# glibc's malloc: one fault for each page of a 40 MiB tensor, 10,241 of 4 KiB or 641 of 64 KiB; TCMalloc: 0. Load does
# not change a count.
MOST_FAULTS = 500
MOST_GPU_ERROR = 1e-3
# TensorFlow prints this only where it has found a GPU, which it then leaves unused.
NO_CUDA_LIBRARIES = "Cannot dlopen some GPU libraries"
# What the name of oneDNN's implementation must contain on a CPU with all of these features, best first.
ONEDNN_ISAS = (
    ("avx512_core", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2", ("avx2",)),
    ("avx", ("avx",)),
    ("sse41", ("sse4_1",)),
)
# Importing TensorFlow alone may take so long on a busy machine.
SECONDS = 120
TOO_LONG = f"did not end within {SECONDS} s"
# What follows the name of a signal that killed a process.
SIGNALS: Mapping[int, str] = {
    signal.SIGILL: " (illegal instruction): it holds instructions that this CPU lacks",
    signal.SIGKILL: ", which the kernel sends when memory runs out",
}
# What TensorFlow prints after the cause of an error: the place in a graph, or advice where its library does not load.
NO_CAUSE = re.compile(r"\[\[|Failed to load the native TensorFlow|See https?://|If you need help,")
# The most that a report keeps of a message of the entry point, which ends with what to do.
MOST_ADVICE = 600
# Switches oneDNN off, in builds with --config=mkl too (TF_DISABLE_MKL).
NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DISABLE_MKL": "1"}
ONEDNN_LOGGING = {"ONEDNN_VERBOSE": "1"}
NOT_PRELOADED = re.compile(r"ERROR: ld\.so: .*cannot be preloaded.*")
# TensorFlow's own contraction calls this primitive with oneDNN off too, so it proves nothing.
UNPROVEN = "gemm_api"
# "onednn_verbose,[TIME,][v1,primitive,]exec,cpu,KIND,IMPLEMENTATION,..." and "...cpu,runtime:threadpool,nthr:2". Lines
# about the GPU, which have the same fields, do not count.
ONEDNN_RAN = re.compile(r"^onednn_verbose,(?:.*?,)?exec,cpu,([^,\n]+),([^,\n]*)", re.MULTILINE)
ONEDNN_CPU = re.compile(r"^onednn_verbose,(?:.*?,)?cpu,(runtime|isa):([^,\n]+)", re.MULTILINE)
REBUILD_MESSAGE = re.compile(
    r"^To enable the following instructions:((?: [^\s,]+)+), in other operations, rebuild", re.MULTILINE
)


@dataclass(frozen=True)
class Plan:
    """What the image is planned to be, as far as it is known; an empty field is not compared.

    `checks`: those of its target, beside the ones that every image has to pass.
    """

    release: str = ""
    python: str = ""
    compiler: str = ""
    target: str = ""
    threading: str = ""
    allocator: str = ""
    checks: tuple[str, ...] = ()
    known_defects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a probe ended: `code` is negative (a child) or above 128 (a container) if a signal killed it.

    `broken`: why what it sent does not count, else empty.
    """

    code: int
    stderr: str
    broken: str = ""

    @property
    def why(self) -> str:
        """The reason of a failure; empty if it succeeded."""
        if self.broken:
            return self.broken
        # Linux has 64 signals: 255 is what a program returns for -1.
        number = -self.code if self.code < 0 else self.code - 128 if 128 < self.code <= 192 else 0
        if number:
            known = {known.value: known.name for known in signal.Signals}
            return f"killed by {known.get(number, f'signal {number}')}{SIGNALS.get(number, '')}"
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


def last_line(text: str, most: int = 300) -> str:
    """Return the last line that is neither blank nor TensorFlow's words after the cause, cut to `most` characters."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not NO_CAUSE.match(line)]
    return lines[-1][:most] if lines else "it printed nothing"


def verdict(statuses: Iterable[str]) -> str:
    """Return fail if any check fails, else warn if any warns, else pass; if all were skipped, fail."""
    found = set(statuses)
    if FAIL in found or not found & {PASS, WARN}:
        return FAIL
    return WARN if WARN in found else PASS


def guard(ended: Ended) -> Judgement:
    """Judge whether Python starts behind the image's entry point."""
    if ended.code == GUARD_EXIT:
        return Judgement(FAIL, last_line(ended.stderr, MOST_ADVICE))
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
    # A development tree's wheel adds a local part: 2.22.0-dev0+selfbuilt.
    if plan.release and tensorflow.version.partition("+")[0] != plan.release:
        yield f"TensorFlow is {tensorflow.version}, not {plan.release}"
    if plan.python and ".".join(environment.python.split(".")[:2]) != plan.python:
        yield f"Python is {environment.python}, not {plan.python}"
    # Since 2.23, the nightly wheel for CPUs is the one that is compiled with CUDA ([[nightly]] in facts/releases.toml).
    nightly = "-dev20" in plan.release and tensorflow.cuda_build
    if plan.target and tensorflow.cuda_build != ("cuda" in plan.checks) and not nightly:
        yield f"it is {'' if tensorflow.cuda_build else 'not '}built with CUDA, but the target is {plan.target}"
    compiler = _compiler(tensorflow.compiler)
    if plan.compiler and compiler not in ("", plan.compiler):
        yield f"TensorFlow was compiled by {compiler}, but its label says {plan.compiler}"


def _compiler(said: str) -> str:
    """Return the compiler in the text of its macro __VERSION__: "Ubuntu Clang 16.0.6 (++2023...)", "9.3.1" of GCC."""
    number = re.search(r"\d+", said, re.ASCII)
    return f"{'clang' if 'clang' in said.lower() else 'gcc'}-{number[0]}" if number else ""


def unused_features(stderr: str) -> tuple[str, ...]:
    """Return the features in TensorFlow's own "rebuild TensorFlow" message; empty if it printed none."""
    match = REBUILD_MESSAGE.search(stderr)
    return tuple(match[1].split()) if match else ()


def tcmalloc(results: Results, _: Plan) -> Judgement:
    """Judge whether malloc is TCMalloc's, the loader reported no error, and page faults are few enough."""
    refused = NOT_PRELOADED.search(results.printed)
    if refused:
        return Judgement(FAIL, refused.group(0)[:300])
    malloc = results.environment.malloc if results.environment else "an unknown library"
    if "tcmalloc" not in malloc.rsplit("/", 1)[-1]:
        return Judgement(FAIL, f"malloc is that of {malloc}")
    if results.missing:
        return Judgement(FAIL, f"page faults were not counted: {results.missing}")
    faults = results.record.per_tensor
    measures = (Measurement("faults_per_40_mib_tensor", faults, f"< {MOST_FAULTS}"),)
    if not 0 <= faults < MOST_FAULTS:
        return Judgement(FAIL, f"malloc is {malloc}, but each 40 MiB tensor costs {faults:.0f} page faults", measures)
    detail = f"malloc is that of {malloc}; {faults:.0f} page faults per 40 MiB tensor (glibc: one per page)"
    return Judgement(PASS, detail, measures)


def primitives(text: str) -> tuple[str, str, dict[str, tuple[str, ...]]]:
    """Return what ONEDNN_VERBOSE=1 printed: runtime ("threadpool", "openmp"), ISA, and what ran on the CPU.

    That is the implementations, the most frequent first, by kind of primitive ("convolution").
    """
    counts: dict[str, Counter[str]] = {}
    for kind, implementation in ONEDNN_RAN.findall(text):
        if kind != UNPROVEN:
            counts.setdefault(kind, Counter())[implementation] += 1
    kinds = {kind: tuple(sorted(ran, key=lambda name: (-ran[name], name))) for kind, ran in counts.items()}
    cpu = dict(ONEDNN_CPU.findall(text))
    return cpu.get("runtime", "").lower(), cpu.get("isa", ""), kinds


def expected_isa(flags: Sequence[str]) -> str:
    """Return the instruction set that oneDNN must use on a CPU with these kernel flags; empty if it is not x86."""
    return next((name for name, needed in ONEDNN_ISAS if set(needed) <= set(flags)), "")


def onednn(results: Results, plan: Plan) -> Judgement:
    """Judge whether a convolution ran in oneDNN, in an implementation for this CPU, on the planned runtime."""
    record: OneDnnConvolution = results.record
    if results.missing:
        return Judgement(FAIL, f"the convolution did not run: {results.missing}")
    runtime, used, ran = primitives(results.ended.stderr)
    convolutions = sorted(ran.get("convolution", ()))
    if not record.finite:
        return Judgement(FAIL, f"the convolution {UNUSABLE}")
    if not convolutions:
        return Judgement(FAIL, "no convolution ran in oneDNN" + (": it is off" if runtime else ""))
    isa = expected_isa(results.environment.cpu_flags if results.environment else ())
    bad = [name for name in convolutions if not (re.search(r"jit|brg|acl", name) and isa in name)]
    if not isa and {*bad} == {"gemm:ref"}:
        return Judgement(WARN, "a convolution ran as gemm:ref, as on Arm from 2.16 on: tensorflow issue 90784")
    if bad:
        return Judgement(FAIL, f"a convolution ran as {bad[0]}, not as JIT code for {isa or 'this CPU'}")
    if plan.threading and runtime != plan.threading:
        return Judgement(FAIL, f"oneDNN's threading is {runtime or 'unknown'}, not {plan.threading}")
    return Judgement(PASS, f"a convolution ran as {', '.join(convolutions)} on {runtime} ({used})")


def numerics(results: Results, plan: Plan) -> Judgement:
    """Judge whether every part is within its limit; a known defect of the release is a warning."""
    sent: dict[str, Computed] = {part.name: part for part in results.records}
    missing = [name for name in PARTS if name not in sent]
    if results.ended.why or missing:
        return Judgement(FAIL, f"ended before {[*missing, 'it finished'][0]}: {results.ended.why or 'no result'}")
    errors = {name: part.error(sent[name].values) for name, part in PARTS.items() if sent[name].values}
    absent = [name for name, part in PARTS.items() if part.optional and sent[name].note and name not in errors]
    wrong = [name for name in PARTS if name not in absent and not errors.get(name, math.inf) <= PARTS[name].limit]
    measures = tuple(
        Measurement(name, error, f"<= {PARTS[name].limit:g}") for name, error in errors.items() if error < math.inf
    )
    blamed = [name for name in wrong if name not in plan.known_defects]
    details = [
        f"{name} is off by {errors[name]:.2g} (limit {PARTS[name].limit:g})"
        if name in errors
        else f"{name} {sent[name].note or UNUSABLE}"
        for name in blamed or wrong
    ]
    details += [f"{name}: {sent[name].note}" for name in absent]
    if blamed:
        return Judgement(FAIL, "; ".join(details), measures)
    if wrong:
        return Judgement(WARN, "a known defect of this release: " + "; ".join(details), measures)
    return Judgement(PASS, "; ".join([f"{len(errors)} of {len(PARTS)} parts within their limits", *details]), measures)


def cuda(results: Results, _: Plan) -> Judgement:
    """Judge whether an operation on the GPU gives the CPU's result. Not run on a GPU so far."""
    record: GpuConvolution = results.record
    if results.ended.code == GUARD_EXIT:  # the entry point found no GPU that the kernels are compiled for
        return Judgement(SKIP, last_line(results.ended.stderr, MOST_ADVICE))
    if results.missing:
        return Judgement(FAIL, f"the GPU was not tried: {results.missing}")
    if not record.gpus and NO_CUDA_LIBRARIES in results.ended.stderr:
        return Judgement(FAIL, "libraries of CUDA or cuDNN do not load, so TensorFlow leaves the GPU unused")
    if not record.gpus:
        return Judgement(SKIP, "no GPU is visible in the container")
    if "GPU" not in record.device:
        return Judgement(FAIL, f"the convolution ran on {record.device or 'an unknown device'}, not on the GPU")
    if record.error is None or not record.error <= MOST_GPU_ERROR:
        wrong = UNUSABLE if record.error is None else f"differs from the CPU by {record.error:.2g}"
        return Judgement(FAIL, f"{record.device} {wrong}")
    measures = (Measurement("gpu_error", record.error, f"<= {MOST_GPU_ERROR:g}"),)
    return Judgement(PASS, f"{record.device} agrees with the CPU", measures)


@dataclass(frozen=True, kw_only=True)
class ProbeCheck:
    """A check that judges one probe. `kinds`: the records that the probe sends; `env`: changes of its environment.

    `skip`: why the plan does not ask for it, else "". For the reader of a report, `proves`: what a pass means, `how` it
    is tested, `fix`: what to do about a failure.
    """

    name: str
    probe: str
    kinds: tuple[type, ...]
    judge: Callable[[Results, Plan], Judgement]
    proves: str
    how: str
    fix: str
    skip: Callable[[Plan], str] = lambda _: ""
    env: Mapping[str, str] = field(default_factory=dict)


def _of_target(name: str) -> Callable[[Plan], str]:
    return lambda plan: "" if name in plan.checks else f"not a check of target {plan.target or 'unknown'}"


IMPORT = ProbeCheck(
    name="import",
    probe="start",
    kinds=(Environment, TensorFlow),
    judge=importing,
    proves="TensorFlow imports and computes, and its version, compiler, Python and CUDA support are the plan's.",
    how="Imported in a process of its own, so that a crash by a signal is recognised; compared with the labels.",
    fix="read the message: SIGILL means a wrong instruction set; an error with NumPy 2 means that this TensorFlow "
    "needs numpy<2",
)
ONEDNN = ProbeCheck(
    name="onednn",
    probe="onednn",
    kinds=(OneDnnConvolution,),
    judge=onednn,
    proves="Convolutions run in oneDNN's code for this CPU, on the planned threading runtime.",
    how="ONEDNN_VERBOSE=1; only a convolution's implementation counts, since oneDNN's gemm also runs with oneDNN off.",
    fix="set TF_ENABLE_ONEDNN_OPTS=1, as images of target mkl do; look for TF_DISABLE_MKL and ONEDNN_MAX_CPU_ISA in "
    "the environment",
    skip=_of_target("onednn"),
    env=ONEDNN_LOGGING,
)
TCMALLOC = ProbeCheck(
    name="tcmalloc",
    probe="faults",
    kinds=(Faults,),
    judge=tcmalloc,
    proves="TCMalloc is the allocator in use, and large tensors cause no page faults.",
    how="The mapping that malloc resolves into, the loader's messages, and a count of page faults per 40 MiB tensor "
    "with oneDNN's pool (TF_ENABLE_ONEDNN_OPTS=0, TF_DISABLE_MKL=1) and huge pages out of the way. A count, not a "
    "time: no load changes it.",
    fix="LD_PRELOAD must name /usr/local/lib/libtcmalloc_minimal.so.4, and libtcmalloc-minimal4 must be installed",
    skip=lambda plan: "" if plan.allocator == "tcmalloc" else f"the plan's allocator is {plan.allocator or 'unknown'}",
    env=NO_ONEDNN,
)
CUDA = ProbeCheck(
    name="cuda",
    probe="cuda",
    kinds=(GpuConvolution,),
    judge=cuda,
    proves="TensorFlow finds the GPU, and a convolution gives the same result there as on the CPU.",
    how="The same convolution on both, TensorFloat-32 off. Skipped where no GPU is visible, or none runs the image's "
    "kernels.",
    fix="check the driver and the container toolkit on the host: docker run --gpus all IMAGE nvidia-smi; if libraries "
    "do not load, build on an image that has this release's CUDA and cuDNN (--base)",
    skip=_of_target("cuda"),
)
NUMERICS = ProbeCheck(
    name="numerics",
    probe="numerics",
    kinds=(Computed,) * len(PARTS),
    judge=numerics,
    proves="The results of products, convolution, pooling in both layouts, batch norm, exp, softmax, a gradient, a "
    "product of 8-bit numbers and XLA are right, and a small training converges.",
    how="Computed from fixed inputs, and compared with the host's own float64 results; limits are ten times what real "
    "wheels gave.",
    fix="do not use this build; if a row of tfbuild/facts/defects.toml names the release, take a newer one",
)
# In the order in which they run.
PROBE_CHECKS = (IMPORT, ONEDNN, TCMALLOC, CUDA, NUMERICS)
