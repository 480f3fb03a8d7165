"""Which CPU features beyond the levels change the machine code of TensorFlow's kinds of kernels, compiler by compiler.

    python -m benchmarks.features --include DIR [--compiler gcc-12=g++-12] [--compiler clang-16=clang++-16] ...

Each feature that is in no level is added to a level of CPUs that have it and to what it needs, and features.cc is
compiled to assembly with tfbuild's own flags for both sets. A feature changes something if the instructions differ,
which are counted by mnemonic. Then, with GCC, the seven kernels of eigen.cc: this machine's set against
`-march=native` with the same tuning, and x86-64-v4 against the same with every feature that a CPU's set leaves out. DIR
has Eigen's headers, such as the folder `tensorflow/include` of TensorFlow's wheel; nothing is run. `:aarch64` follows a
cross compiler's name.
"""

import argparse
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import record
from tfbuild import cpu, facts
from tfbuild.cpu import compilers, isa
from tfbuild.facts import Feature

HERE = Path(__file__).parent
COMPILE = ("-std=c++17", "-O2", "-DNDEBUG", "-S", "-o-")
NOT_CODE = re.compile(r"\s*[.#]|\S+:")
LEFT = "x86-64-v4 with every feature that is left out"


def assembly(command: list[str], source: str) -> list[str] | None:
    """The instructions; None if the headers refuse the feature."""
    done = subprocess.run([*command, str(HERE / source)], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    return [line.strip() for line in done.stdout.splitlines() if line and not NOT_CODE.match(line)]


def beyond(arch: str) -> list[Feature]:
    """The features in no level that have a flag, and code that a compiler could write."""
    top = facts.levels(arch)[-1].features
    return [row for row in facts.features(arch) if row.flag and row.use and row.name not in top]


def base(row: Feature) -> frozenset[str]:
    """What a feature is added to: a level of CPUs that have it, and what it needs. FMA4's CPUs have no FMA."""
    levels = {level.name: level.features for level in facts.levels(row.arch)}
    wide = row.arch == "aarch64" or row.name.startswith(("avx512", "amx"))
    level = [*levels.values()][-1] if wide else levels["x86-64-v2" if row.name in ("fma4", "xop") else "x86-64-v3"]
    return level | facts.closure([row.name]) - {row.name}


def changes(plain: list[str] | None, other: list[str] | None) -> object:
    """What a feature changes: nothing, the mnemonics that are new and gone, or None if it was refused."""
    if plain is None or other is None:
        return None
    one, two = (Counter(line.split()[0] for line in code) for code in (plain, other))
    if plain == other:
        return {}
    return {"new": dict((two - one).most_common(6)), "gone": dict((one - two).most_common(6))}


def of_features(program: list[str], compiler: str, arch: str) -> dict[str, object]:
    """What each feature changes in features.cc."""

    def compile_for(held: frozenset[str]) -> list[str] | None:
        return assembly([*program, *compilers.flags(isa.instruction_set(held, arch), compiler).flags], "features.cc")

    kind, version = compilers.parse_compiler(compiler)
    rows = [row for row in beyond(arch) if getattr(row, kind) <= version]
    sets = {base(row) for row in rows} | {base(row) | {row.name} for row in rows}
    with ThreadPoolExecutor(2) as pool:
        code = dict(zip(sets, pool.map(compile_for, sets), strict=True))
    return {row.name: changes(code[base(row)], code[base(row) | {row.name}]) for row in rows}


def of_sets(program: list[str], compiler: str) -> dict[str, object]:
    """Whether the kernels of eigen.cc are the same as with more features; None if a compile was refused."""
    largest = facts.levels("x86_64")[-1].features
    more = largest | {row.name for row in beyond("x86_64") if row.name not in ("fma4", "xop")}
    own = isa.of_cpu(cpu.detect())
    pairs = {
        f"-march=native -mtune=generic, {own.name}": (
            ("-march=native", "-mtune=generic"),
            compilers.flags(own, compiler).flags,
        ),
        LEFT: (
            compilers.flags(isa.instruction_set(more - isa.relevant(more) | largest, "x86_64"), compiler).flags,
            compilers.flags(isa.instruction_set(largest, "x86_64"), compiler).flags,
        ),
    }
    code = {name: [assembly([*program, *flags], "eigen.cc") for flags in pair] for name, pair in pairs.items()}
    return {name: None if None in both else both[0] == both[1] for name, both in code.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", required=True)
    parser.add_argument("--compiler", action="append", required=True, metavar="NAME[:aarch64]=PROGRAM")
    asked = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for word in asked.compiler:
        name, _, path = word.partition("=")
        compiler, _, arch = name.partition(":")
        program = [path, *COMPILE, f"-I{asked.include}"]
        found[name] = {"features": of_features(program, compiler, arch or "x86_64")}
        if compiler.startswith("gcc") and not arch:
            found[name]["same code"] = of_sets(program, compiler)
        print(name, found[name], flush=True)
    print(record("features", found))


if __name__ == "__main__":
    main()
