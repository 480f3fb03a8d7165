"""The checks that judge one probe inside the image: bytecode, onednn, tcmalloc, cuda and numerics.

What the host can see for itself (oneDNN's lines, the loaded files) has to agree with the probe.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement, ProbeCheck
from tfbuild.verify import challenges
from tfbuild.verify.verification import Verification, VerificationCheck, fail_if, needs_start, needs_tensorflow

# No bytecode is there, so this Python compiles all sources that it imports.
FROM_SOURCE = ("-X", "pycache_prefix=/nowhere")


def _skip(check: ProbeCheck) -> Callable[[Verification], str]:
    return lambda verification: needs_tensorflow(verification) or check.skip(verification.planned.smoke())


def _bytecode(verification: Verification) -> Judgement:
    return verification.judge(judge.BYTECODE, verification.ask(judge.BYTECODE, options=FROM_SOURCE))


def _onednn(verification: Verification) -> Judgement:
    result = verification.ask(judge.ONEDNN)
    traced = challenges.is_traced(result.outcome.output, result.challenge)
    unseen = "" if traced else "oneDNN printed no convolution of the sizes that the host chose"
    return fail_if(unseen, verification.judge(judge.ONEDNN, result))


def _tcmalloc(verification: Verification) -> Judgement:
    process = verification.process
    loaded = process is None or any("tcmalloc" in PurePosixPath(path).name for path in process.code)
    unseen = "" if loaded else "the process that imported TensorFlow has not loaded TCMalloc"
    return fail_if(unseen, verification.judge(judge.TCMALLOC, verification.ask(judge.TCMALLOC)))


def _cuda(verification: Verification) -> Judgement:
    reason = verification.engine.lacks_gpus(verification.ref, verification.sandbox)
    judged = verification.judge(judge.CUDA, verification.ask(judge.CUDA, gpus=not reason))
    return Judgement(judge.SKIP, reason) if reason and judged.status == judge.SKIP else judged


def _numerics(verification: Verification) -> Judgement:
    result = verification.ask(judge.NUMERICS)
    judged = verification.judge(judge.NUMERICS, result)
    if not result.absent:
        return judged
    planned, says = verification.planned, f"it says that it has no {' and no '.join(result.absent)} operations"
    official = planned.wheel == "official"
    if official and releases.official_operations(planned.release, planned.arch).intersection(result.absent):
        return fail_if(f"{says}, and the official wheel of {planned.release} has them", judged)
    return replace(judged, detail=f"{judged.detail}; {says}")


BYTECODE = VerificationCheck(
    name="bytecode",
    proves="The bytecode of Python's library and of all packages comes from the sources beside it, so that reading the "
    "sources tells what runs.",
    how="The image's own Python, which loaded no bytecode itself, compiled each source and compared the results with "
    "the files in __pycache__.",
    fix="if you changed sources, compile them: python -m compileall -f FILE; otherwise build the image again",
    skip=needs_start,
    run=_bytecode,
)
ONEDNN = VerificationCheck(
    name="onednn",
    proves="Convolutions run in oneDNN's code for this CPU, on the planned threading runtime.",
    how="ONEDNN_VERBOSE=1, with sizes that the host chose for this run; only a convolution's implementation counts, "
    "since oneDNN's gemm runs with it off too.",
    fix="set TF_ENABLE_ONEDNN_OPTS=1 (images of target mkl do so from 2.5 on; before, it is always on); look for "
    "TF_DISABLE_MKL and ONEDNN_MAX_CPU_ISA in the environment",
    skip=_skip(judge.ONEDNN),
    run=_onednn,
)
TCMALLOC = VerificationCheck(
    name="tcmalloc",
    proves="TCMalloc is the allocator in use, and large tensors cause no page faults.",
    how="The mapping that malloc resolves into, the loader's messages, and a count of page faults per 40 MiB tensor "
    "with oneDNN's pool out of the way (TF_ENABLE_ONEDNN_OPTS=0, TF_DISABLE_MKL=1). A count, not a time: no load "
    "changes it.",
    fix="LD_PRELOAD must name /usr/local/lib/libtcmalloc_minimal.so.4, and libtcmalloc-minimal4 must be installed",
    skip=_skip(judge.TCMALLOC),
    run=_tcmalloc,
)
CUDA = VerificationCheck(
    name="cuda",
    proves="TensorFlow finds the GPU, and a convolution gives the same result there as on the CPU.",
    how="The same convolution on both, TensorFloat-32 off.",
    fix="check the driver and the container toolkit on the host: docker run --gpus all IMAGE nvidia-smi",
    skip=_skip(judge.CUDA),
    run=_cuda,
)
NUMERICS = VerificationCheck(
    name="numerics",
    proves="The results of products, convolution, pooling in both layouts, batch norm, exp, softmax, a gradient, a "
    "product of 8-bit numbers and XLA are right, and a small training converges.",
    how="Compared with float64 references in NumPy, and, on random numbers and sizes that the host chose for this run, "
    "with the host's own float64 results; limits are ten times what seven real wheels gave.",
    fix="do not use this build; if a row of tfbuild/facts/defects.toml names the release, take a newer one",
    skip=_skip(judge.NUMERICS),
    run=_numerics,
)
