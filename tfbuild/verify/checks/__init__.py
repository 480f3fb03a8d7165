"""What an image has to pass: one file a check, each with its claim, when it applies, its probe and its judge."""

from tfbuild.verify.checks import code, cuda, guard, imports, isa, numerics, onednn, tcmalloc, throughput
from tfbuild.verify.verification import VerificationCheck

# In this order: a check may go by what those before it found.
CHECKS: tuple[VerificationCheck, ...] = (
    guard.CHECK,
    imports.CHECK,
    isa.CHECK,
    code.CHECK,
    onednn.CHECK,
    tcmalloc.CHECK,
    cuda.CHECK,
    numerics.CHECK,
    throughput.CHECK,
)
