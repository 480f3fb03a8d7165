"""The checks that an image has to pass, each with what it proves, when it applies, its probe and its judge."""

from tfbuild.verify.checks import configuration, guard, isa, machine_code, probes, throughput
from tfbuild.verify.verification import VerificationCheck

# In this order: a check may use the results of earlier ones.
CHECKS: tuple[VerificationCheck, ...] = (
    configuration.CHECK,
    guard.CHECK,
    probes.IMPORT,
    isa.CHECK,
    machine_code.CHECK,
    probes.ONEDNN,
    probes.TCMALLOC,
    probes.CUDA,
    probes.NUMERICS,
    throughput.CHECK,
)
