"""The rows of facts/features.toml against the compilers of Debian 12: flags, macros, levels and whole flag lists.

One container run per compiler compiles everything that the tests ask of it. On x86-64 the macros in the object tell
which features a compiler switched on; on aarch64 also the assembler, which takes no instruction of a feature that is
off. Rows about versions that Debian 12 lacks rest on what features.toml says of them.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import archspec.cpu
import pytest

from tests.cpu.machines import machines
from tests.with_engine.conftest import COMPILERS, FURTHER_COMPILERS, ROOT
from tfbuild import cpu, facts
from tfbuild.cpu import compilers as known_compilers
from tfbuild.cpu import isa, names
from tfbuild.cpu.isa import InstructionSet
from tfbuild.engine import Engine
from tfbuild.facts import Feature, Level

DATA = ROOT / "tests" / "data" / "compilers"
INSTRUCTIONS: dict[str, str] = tomllib.loads((DATA / "instructions.toml").read_text(encoding="utf-8"))
EIGEN = "/usr/include/eigen3/Eigen/Core"
# The command for aarch64; for x86-64 it is the compiler's own name.
CROSS = {"gcc": ("aarch64-linux-gnu-{}",), "clang": ("{}", "--target=aarch64-linux-gnu")}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a compiler made of some flags. `on`: the features that all proof shows, `traces`: those that any does."""

    taken: bool
    on: frozenset[str]
    traces: frozenset[str]
    said: str


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler for one architecture, with its answer to each list of flags that the tests ask for."""

    spelled: str
    arch: str
    answers: dict[str, Answer]

    def knows(self, row: Feature | Level) -> bool:
        """Whether the facts say so."""
        name, version = known_compilers.parse_compiler(self.spelled)
        return int(getattr(row, name)) <= version

    def takes(self, flags: str) -> Answer:
        found = self.answers[flags]
        assert found.taken, f"{self.spelled} {flags}: {found.said}"
        return found


def bare(row: Feature) -> str:
    """The flag of one feature alone, in front of the largest level that the feature needs."""
    if row.arch == "x86_64":
        return row.flag
    level = isa.largest_level(facts.closure([row.name]), row.arch).march
    return f"-march={level}+{row.flag}" if row.flag else f"-march={level}"


def command(name: str, arch: str) -> list[str]:
    if arch == "x86_64":
        return [name]
    return [word.format(name) for word in CROSS[name.partition("-")[0]]]


def whole_sets(arch: str) -> tuple[InstructionSet, ...]:
    """The instruction sets of archspec's microarchitectures, as far as they are known, and of the recorded machines.

    Those that tfbuild chooses, and those that `exact` keeps whole.
    """
    targets = (name for name, target in archspec.cpu.TARGETS.items() if target.family.name == arch)
    known = [name for name in targets if names.features(name, arch) is not None]
    recorded = [cpu.parse(row.cpuinfo()) for row in machines() if row.arch == arch]
    named = [isa.resolve(f"{name}{how}", arch=arch) for name in known for how in ("", f",{isa.EXACT}")]
    sets = [*named, *(isa.of_cpu(machine, exact=exact) for machine in recorded for exact in (False, True))]
    return tuple({one.features: one for one in sets}.values())


def asked(name: str, arch: str) -> list[str]:
    rows = [bare(row) for row in facts.features(arch)]
    levels = [f"-march={level.march}" for level in facts.levels(arch)]
    whole = [" ".join(known_compilers.flags(one, name).flags) for one in whole_sets(arch)]
    return list(dict.fromkeys([*rows, *levels, *whole]))


def source(arch: str) -> str:
    """The loops, and a text of the features' macros that are defined while they are compiled."""
    macros = sorted({row.macro for row in facts.features(arch) if row.macro})
    texts = "".join(f'#ifdef {macro}\n" {macro}"\n#endif\n' for macro in macros)
    return f'const char macros[] = "macros:"\n{texts}";";\n{(DATA / "loops.c").read_text(encoding="utf-8")}'


@pytest.fixture(scope="module")
def image_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The image that has a compiler; the larger one is not made where no test asks for it."""
    return lambda name: request.getfixturevalue("compilers" if name in COMPILERS else "further_compilers")


@pytest.fixture(scope="module")
def compiler(engine: Engine, image_of: Callable[[str], str]) -> Callable[[str, str], Compiler]:
    @cache
    def run(name: str, arch: str) -> Compiler:
        files = {"/probe.c": source(arch).encode(), "/compile.sh": (DATA / "compile.sh").read_bytes()}
        if arch == "aarch64":
            files["/instructions.s"] = "".join(f"{text}\n" for text in INSTRUCTIONS.values()).encode()
        lines = asked(name, arch)
        text = "".join(f"{line}\n" for line in lines)
        done = engine.run(
            image_of(name), ["/compile.sh", *command(name, arch)], files=files, stdin=text.encode(), timeout=300
        )
        assert done.exit_code == 0, done.stderr
        answers = [answer(line, arch) for line in done.stdout.splitlines()]
        return Compiler(spelled=name, arch=arch, answers=dict(zip(lines, answers, strict=True)))

    return run


def answer(line: str, arch: str) -> Answer:
    code, macros, refused, said = line.split("\t")
    defined = set(macros.removeprefix("macros:").removesuffix(";").split())
    lines = {int(number) for number in refused.split()}
    assembled = {name for number, name in enumerate(INSTRUCTIONS, start=1) if number not in lines}
    proofs: dict[str, list[bool]] = {}
    for row in facts.features(arch):
        proofs[row.name] = [row.macro in defined] if row.macro else []
        proofs[row.name] += [row.name in assembled] if arch == "aarch64" else []
    return Answer(
        taken=code == "0",
        on=frozenset(name for name, shown in proofs.items() if code == "0" and all(shown)),
        traces=frozenset(name for name, shown in proofs.items() if code == "0" and any(shown)),
        said=said,
    )


def every(*more: str) -> list[Any]:
    """All compilers, as pytest's parameters, with these; the further ones at night."""
    marks = dict.fromkeys(FURTHER_COMPILERS, pytest.mark.nightly)
    names = (*COMPILERS, *FURTHER_COMPILERS)
    return [pytest.param(name, *more, marks=marks.get(name, ()), id="-".join((name, *more))) for name in names]


@pytest.fixture
def each(name: str, arch: str, compiler: Callable[[str, str], Compiler]) -> Compiler:
    return compiler(name, arch)


of_each = pytest.mark.parametrize(("name", "arch"), [*every("x86_64"), *every("aarch64")])


def brought(name: str) -> frozenset[str]:
    """What every compiler switches on with the feature's flag, and the feature itself."""
    return frozenset([name]).union(*(brought(needed) for needed in facts.feature(name).implies))


def test_every_feature_can_be_proven() -> None:
    assert list(INSTRUCTIONS) == [row.name for row in facts.features("aarch64")]
    assert [row for row in facts.features("x86_64") if not row.macro] == []


@of_each
def test_every_known_flag_switches_on_its_features_and_none_beyond(each: Compiler) -> None:
    smallest = facts.levels(each.arch)[0].features
    for row in facts.features(each.arch):
        if row.flag and each.knows(row):
            acceptance = each.takes(bare(row))
            assert brought(row.name) <= acceptance.on, row.name
            assert acceptance.traces <= facts.closure([row.name, *smallest]), row.name


@of_each
def test_an_older_compiler_than_a_rows_first_refuses_the_flag_or_does_nothing_with_it(each: Compiler) -> None:
    for row in facts.features(each.arch):
        if not each.knows(row):
            assert row.name not in each.answers[bare(row)].on, row.name


@of_each
def test_every_level_is_its_features(each: Compiler) -> None:
    for level in facts.levels(each.arch):
        assert each.knows(level)
        acceptance = each.takes(f"-march={level.march}")
        assert acceptance.on == acceptance.traces == level.features, level.name


@of_each
def test_every_cpus_flags_switch_on_what_the_plan_promises(each: Compiler) -> None:
    sets = whole_sets(each.arch)
    assert len(sets) > 8
    for wanted in sets:
        flags = known_compilers.flags(wanted, each.spelled)
        acceptance = each.takes(" ".join(flags.flags))
        assert acceptance.on == acceptance.traces == set(flags.instruction_set.features), wanted.name


@pytest.mark.parametrize("name", every())
def test_eigen_takes_the_smallest_set_with_avx512f(name: str, engine: Engine, image_of: Callable[[str], str]) -> None:
    """GCC's -mavx512f alone brings no fma, and Eigen refuses it so: why the row needs fma."""
    flags = known_compilers.flags(isa.resolve("avx512f", arch="x86_64"), name).flags
    command = [name, "-x", "c++", "-E", "-o", "/dev/null"]
    assert engine.run(image_of(name), [*command, *flags, EIGEN]).exit_code == 0
    alone = engine.run(image_of(name), [*command, "-mavx512f", EIGEN])
    assert alone.exit_code == (1 if name.startswith("gcc") else 0), alone.stderr
