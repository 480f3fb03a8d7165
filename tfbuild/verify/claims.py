"""What each check proves, how it is found, and what to do where it fails: for the report's reader."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Claim:
    proves: str
    how: str
    fix: str


CLAIMS = {
    "guard": Claim(
        proves="This host has every feature that the image requires, and Python starts behind its entry point.",
        how="The image's own entry point was started with a one-line Python program.",
        fix="run the image that the message names, or build one for this CPU: invoke build --cpu host",
    ),
    "import": Claim(
        proves="TensorFlow imports and computes, and its version, Python and CUDA support are the plan's.",
        how="Imported in a process of its own, so that a death by signal is read as one; compared with the labels.",
        fix="read the message: SIGILL means a wrong instruction set, an error under NumPy 2 the need of numpy<2",
    ),
    "isa": Claim(
        proves="The instruction set compiled into TensorFlow is the plan's: none missing, none beyond it.",
        how="The calls of the CPU guard inside libtensorflow_framework.so.2 were disassembled on the host (nothing was "
        "executed), and compared with the labels and with TensorFlow's own message about unused instructions.",
        fix="rebuild with the copts of the plan, or give --cpu the instruction set that the wheel really has",
    ),
    "code": Claim(
        proves="The machine code of TensorFlow's libraries needs the labelled instruction set: nothing beyond it, and "
        "all of it that compilers use by themselves. The CPU guard knows a dozen features; this sees the others too.",
        how="Two million instructions of each library, in windows spread evenly over it, were decoded on the host. "
        "What is chosen at run time (oneDNN, XNNPACK, BoringSSL) does not count: it is told by its symbols or, where "
        "those were stripped, by lying in a few places, while a compiler uses a feature all over a library.",
        fix="see what the code needs (invoke inspect IMAGE), and give --cpu that, or build for the CPU that was meant",
    ),
    "onednn": Claim(
        proves="Convolutions run in oneDNN's code for this CPU, on the planned threading runtime.",
        how="ONEDNN_VERBOSE=1; only a convolution's implementation counts, since oneDNN's gemm runs with it off too.",
        fix="set TF_ENABLE_ONEDNN_OPTS=1 (images of target mkl do so from 2.5 on; before, it is always on); look for "
        "TF_DISABLE_MKL and ONEDNN_MAX_CPU_ISA in the environment",
    ),
    "tcmalloc": Claim(
        proves="TCMalloc is the allocator in use, and it takes the page faults out of large tensors.",
        how="The mapping that malloc resolves into, the loader's messages, and a count of page faults per 40 MiB "
        "tensor with oneDNN's pool out of the way (TF_ENABLE_ONEDNN_OPTS=0, TF_DISABLE_MKL=1). A count, not a time: no "
        "load changes it.",
        fix="LD_PRELOAD must name /usr/local/lib/libtcmalloc_minimal.so.4, and libtcmalloc-minimal4 must be installed",
    ),
    "cuda": Claim(
        proves="TensorFlow reaches the GPU, and a convolution there gives what the CPU gives.",
        how="The same convolution on both, TensorFloat-32 off.",
        fix="check the driver and the container toolkit on the host: docker run --gpus all IMAGE nvidia-smi",
    ),
    "numerics": Claim(
        proves="Results are right: products, convolution, pooling in both layouts, batch norm, exp, softmax, a "
        "gradient, XLA, and a small training converges.",
        how="Compared with float64 references in NumPy; limits are ten times what seven real wheels gave.",
        fix="do not use this build; where a row of tfbuild/facts/defects.toml names the release, take a newer one",
    ),
    "throughput": Claim(
        proves="The image is not slower than its baseline.",
        how="Three persistent containers (image, baseline, image again), idle ones stopped, interleaved in random "
        "order; per-round ratios of CPU time, their median and order-statistic interval, beside the image against "
        "itself. It fails only where the whole interval lies under 0.95. Absolute times are never judged.",
        fix="compare the environment and the threading with the baseline's; run again on a quiet machine",
    ),
}
