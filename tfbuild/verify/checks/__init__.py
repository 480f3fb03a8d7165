"""The checks that an image has to pass: one file each, with its claim, when it applies, its probe and its judge."""

from tfbuild.verify.checks import (
    bytecode,
    configuration,
    cuda,
    files,
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
    configuration.CHECK,
    guard.CHECK,
    interpreter.CHECK,
    files.CHECK,
    bytecode.CHECK,
    imports.CHECK,
    isa.CHECK,
    machine_code.CHECK,
    onednn.CHECK,
    tcmalloc.CHECK,
    cuda.CHECK,
    numerics.CHECK,
    throughput.CHECK,
)
