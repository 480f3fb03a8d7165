"""The interpreter check: what answers as `python` is CPython, and nothing is loaded before it."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from tfbuild.binary.program import Program, python_version, read_program
from tfbuild.context.dockerfile import TCMALLOC
from tfbuild.context.labels import Planned
from tfbuild.in_container.smoke import judge
from tfbuild.measure import probe
from tfbuild.verify.verification import Claim, Verification, VerificationCheck

PROGRAM = probe.PYTHON
FOLDER = str(PurePosixPath(PROGRAM).parent)
PRELOAD_FILE = "/etc/ld.so.preload"
MOST_BYTES = 64 * 1024 * 1024
# Verification starts Python without these, and users with them.
DIVERTING = ("PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "LD_AUDIT")


def compare(planned: Planned, env: Iterable[str], files: Mapping[str, bytes]) -> judge.Judgement:
    """Judge the image's environment ("NAME=VALUE") and those of its files that come before any Python code."""
    faults = [*_environment(dict(line.partition("=")[::2] for line in env)), *_files(planned, files)]
    if faults:
        return judge.Judgement("interpreter", judge.FAIL, "; ".join(faults))
    digest = hashlib.sha256(files[PROGRAM]).hexdigest()
    return judge.Judgement("interpreter", judge.PASS, f"CPython {planned.python} (sha256:{digest[:12]})")


def _environment(env: Mapping[str, str]) -> list[str]:
    faults = [f"{name} is set ({env[name][:100]})" for name in DIVERTING if env.get(name)]
    if (first := env.get("PATH", "").split(":")[0]) != FOLDER:
        faults.append(f"PATH begins with {first[:100] or 'nothing'}, not with {FOLDER}")
    # An entry that is missing, or that is no TCMalloc, is for the tcmalloc check.
    preloaded = env.get("LD_PRELOAD", "").replace(":", " ").split()
    name = PurePosixPath(TCMALLOC).name
    return faults + [f"LD_PRELOAD loads {path[:100]}" for path in preloaded if PurePosixPath(path).name != name]


def _files(planned: Planned, files: Mapping[str, bytes]) -> list[str]:
    faults = [f"{PRELOAD_FILE} loads {files[PRELOAD_FILE][:100]!r}"] if files.get(PRELOAD_FILE, b"").strip() else []
    faults += _python(planned, files)
    if TCMALLOC in files and "tc_malloc" not in (_elf(files[TCMALLOC], planned) or _NOTHING).exports:
        faults.append(f"{TCMALLOC} is not TCMalloc")
    return faults


_NOTHING = Program(arch="", exports=frozenset(), needed=())


def _elf(content: bytes, planned: Planned) -> Program | None:
    """Return an ELF file of the planned architecture; None if it is none."""
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
        return [f"{PROGRAM} is no program for {planned.arch}: it begins with {files[PROGRAM][:20]!r}"]
    version = python_version(files[PROGRAM], program)
    wrong = f"{PROGRAM} is {f'CPython {version}' if version else 'no CPython'}, not CPython {planned.python}"
    return [] if version == planned.python else [wrong]


def _run(verification: Verification) -> judge.Judgement:
    engine, ref = verification.engine, verification.ref
    try:
        files = engine.read_contents(ref, (PROGRAM, PRELOAD_FILE, TCMALLOC), MOST_BYTES)
    except OSError as error:
        return judge.Judgement("interpreter", judge.FAIL, f"{error.filename} cannot be read: {error.strerror or error}")
    verification.program = hashlib.sha256(files.get(PROGRAM, b"")).hexdigest()
    return compare(verification.planned, engine.image(ref).env, files)


CHECK = VerificationCheck(
    name="interpreter",
    claim=Claim(
        proves="What starts as `python` is CPython of the planned version, and the image loads nothing else before it.",
        how="The program, the preloaded library and the image's environment were read without starting the image. "
        "While the probe of the check import ran, the kernel was asked for the digest of its program.",
        fix="build the image again; if the base image sets PYTHONPATH, PATH or LD_PRELOAD, take that out",
    ),
    run=_run,
)
