"""Proves that an image is what its labels claim: image -> Report.

planned.py       what the labels claim
probe.py         one probe in a container, its output read as untrusted
instructions.py  the isa check
throughput.py    the throughput check: one experiment of the benchmark, as verification's record
asking.py        questions to persistent workers, and the method's limits; paired.py its statistics
session.py       the order of the checks, and what depends on what
claims.py        what each check proves
"""
