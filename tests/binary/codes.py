"""Scanned code with chosen features."""

from tfbuild.binary import scan
from tfbuild.binary.scan import ScannedCode


def code_with(*features: str) -> ScannedCode:
    """What a scan of code with these features says."""
    family = scan.Family
    rows = [family(feature=name, rate=1.0, share=0.1, compiled=True) for name in features]
    rows.append(family(feature="avx512f", rate=0.1, share=0.001, compiled=False))
    return ScannedCode(
        arch="x86_64", method="symbols", instructions=1000, regions=512, coverage=0.03, families=tuple(rows),
        dispatched={"oneDNN": 100},
    )  # fmt: skip
