"""The checks that an image has to pass: one file each, with its claim, when it applies, its probe and its judge."""

from tfbuild.verify.checks import (
    cuda,
    guard,
    imports,
    interpreter,
    isa,
    machine_code,
    numerics,
    onednn,
    tcmalloc,
    throughput,
)
from tfbuild.verify.verification import VerificationCheck

# In this order: a check may use the results of earlier ones.
CHECKS: tuple[VerificationCheck, ...] = (
    guard.CHECK,
    interpreter.CHECK,
    imports.CHECK,
    isa.CHECK,
    machine_code.CHECK,
    onednn.CHECK,
    tcmalloc.CHECK,
    cuda.CHECK,
    numerics.CHECK,
    throughput.CHECK,
)
