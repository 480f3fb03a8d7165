"""Proves that an image is what its labels claim: image -> Report.

planned.py       what the labels claim
probe.py         one probe in a container, its output read as untrusted
instructions.py  the isa check
throughput.py    the throughput check, paired.py its statistics
session.py       the order of the checks, and what depends on what
claims.py        what each check proves
"""

from tfbuild.verify.session import verify
from tfbuild.verify.throughput import Baseline

__all__ = ["Baseline", "verify"]
