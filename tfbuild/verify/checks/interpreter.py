"""The interpreter check: what answers as `python` is CPython, and nothing but TCMalloc is loaded before it."""

import hashlib
from collections.abc import Mapping

from tfbuild.binary.program import Program, python_version, read_program
from tfbuild.context.dockerfile import TCMALLOC
from tfbuild.context.labels import Planned
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import probe
from tfbuild.verify.verification import Verification, VerificationCheck

PROGRAM = probe.PYTHON
PRELOAD_FILE = "/etc/ld.so.preload"
MOST_BYTES = 64 * 1024 * 1024


def compare(planned: Planned, files: Mapping[str, bytes]) -> Judgement:
    """Judge those of an image's files that come before any Python code."""
    if faults := _files(planned, files):
        return Judgement(judge.FAIL, "; ".join(faults))
    digest = hashlib.sha256(files[PROGRAM]).hexdigest()
    return Judgement(judge.PASS, f"CPython {planned.python} (sha256:{digest[:12]})")


def _files(planned: Planned, files: Mapping[str, bytes]) -> list[str]:
    faults = [f"{PRELOAD_FILE} loads {files[PRELOAD_FILE][:100]!r}"] if files.get(PRELOAD_FILE, b"").strip() else []
    faults += _python(planned, files)
    library = _elf(files[TCMALLOC], planned) if TCMALLOC in files else None
    if TCMALLOC in files and not (library and "tc_malloc" in library.exports):
        faults.append(f"{TCMALLOC} is not TCMalloc")
    return faults


def _elf(content: bytes, planned: Planned) -> Program | None:
    """Return an ELF file of the planned architecture; None if it is not one."""
    try:
        program = read_program(content)
    except ValueError:
        return None
    return program if program.arch == planned.arch else None


def _python(planned: Planned, files: Mapping[str, bytes]) -> list[str]:
    if PROGRAM not in files:
        return [f"{PROGRAM} is missing"]
    program = _elf(files[PROGRAM], planned)
    if program is None:
        return [f"{PROGRAM} is not a program for {planned.arch}: it begins with {files[PROGRAM][:20]!r}"]
    version = python_version(files[PROGRAM], program)
    wrong = f"{PROGRAM} is {f'CPython {version}' if version else 'another program'}, not CPython {planned.python}"
    return [] if version == planned.python else [wrong]


def _run(verification: Verification) -> Judgement:
    engine, ref = verification.engine, verification.ref
    try:
        files = engine.read_contents(ref, (PROGRAM, PRELOAD_FILE, TCMALLOC), MOST_BYTES)
    except OSError as error:
        return Judgement(judge.FAIL, f"{error.filename} cannot be read: {error.strerror or error}")
    verification.program = hashlib.sha256(files.get(PROGRAM, b"")).hexdigest()
    return compare(verification.planned, files)


CHECK = VerificationCheck(
    name="interpreter",
    proves="`python` is CPython of the planned version, and the loader preloads only TCMalloc.",
    how="The program and the preloaded library were read without starting the image. While the probe of the check "
    "import ran, the kernel was asked for the digest of its program.",
    fix="build the image again",
    run=_run,
)
