"""The features that an instruction set keeps beyond its level: rows with reasons, confirmed by compiling."""

import json
from pathlib import Path

import pytest

from benchmarks import features
from benchmarks.harness import RESULTS
from tests.cpu.machines import machines
from tfbuild import cpu, facts
from tfbuild.cpu import isa, names

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((RESULTS / "features.json").read_text(encoding="utf-8"))["results"]


def test_rows_agree_with_the_levels_and_with_each_other() -> None:
    for row in facts.features():
        assert not (row.relevant and row.left_out)
        assert not row.unless or (row.relevant and facts.feature(row.unless).arch == row.arch)
    for level in (level for arch in facts.architectures() for level in facts.levels(arch)):
        if level.name not in ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a", "armv8.1-a", "armv8.2-a"):
            new = any(not facts.feature(name).relevant for name in level.features)
            assert new, f"{level.name} would rename images: its row in features.toml gets no `names = true`"


def test_relevant_are_the_features_that_changed_machine_code() -> None:
    """By the committed measurement, for the features in no level."""
    changed = {name for compiler in MEASURED.values() for name, change in compiler["features"].items() if change != {}}
    beyond = [row for row in facts.features() if row.name not in facts.levels(row.arch)[-1].features]
    # fphp has no flag of its own: it comes with asimdhp.
    assert {row.name for row in beyond if row.relevant} <= changed | {"fphp"}
    assert changed <= {row.name for row in beyond if row.relevant or row.left_out}


def test_code_that_a_compiler_refused_is_not_called_the_same() -> None:
    assert {*features.of_sets(["false"], "gcc-12").values()} == {None}


def named() -> dict[str, str]:
    """The name of the set of each CPU: recorded machines, and those that have names."""
    sets = {row.name: isa.of_cpu(cpu.parse(row.cpuinfo())) for row in machines()}
    sets |= {name: isa.resolve(name, arch=arch) for arch in facts.architectures() for name in names.known_names(arch)}
    return {name: row.name for name, row in sets.items() if facts.level(name, row.arch) is None}


BEYOND = {"avx512vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq", "avx512ifma", "gfni", "vaes"}


@pytest.mark.parametrize(
    ("more", "names_sets", "name"), [(BEYOND, True, "x86-64-v9"), (set(), False, "x86-64-v4-vnni-bf16")]
)
def test_a_new_level_renames_no_image(
    more: set[str], names_sets: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Zen 4, Ice Lake or Sapphire Rapids, which have its features. One of relevant features alone names no set."""
    before = named()
    newest, of = facts.levels("x86_64")[-1], facts.every_level
    level = facts.Level(
        name="x86-64-v9", arch="x86_64", march="x86-64-v9", gcc=17, clang=24, includes=newest.name, names=names_sets,
        features=newest.features | facts.closure(more | {"avx512_vnni", "avx512_bf16"}),
    )  # fmt: skip
    monkeypatch.setattr(facts, "every_level", lambda arch: (*of(arch), level) if arch == "x86_64" else of(arch))
    assert isa.resolve("x86-64-v9", arch="x86_64").name == name
    assert isa.resolve("x86-64-v9-fp16", arch="x86_64").name == f"{name}-fp16"
    assert level.features <= set(isa.resolve("zen4,exact", arch="x86_64").features)
    assert named() == before


# The CPUs of the table in docs/cpu-and-flags.md: as recorded (tests/data/machines.toml), or archspec's names.
DOCUMENTED = {
    "Haswell": "rhel7-haswell", "Broadwell": "rhel7-broadwell", "Zen 1": "rhel7-zen", "Zen 3": "ubuntu20.04-zen3",
    "Sapphire Rapids": "unknown-sapphirerapids", "Zen 5": "rocky9-zen5", "Graviton 2 (Neoverse N1)":
    "amazon-neoverse_n1", "Graviton 3 (Neoverse V1)": "amazon-neoverse_v1", "Graviton 4 (Neoverse V2)":
    "rhel9-neoverse_v2", "Alder Lake": "alderlake", "Skylake-SP": "skylake-avx512", "Cascade Lake": "cascadelake",
    "Ice Lake": "icelake", "Zen 4": "zen4",
}  # fmt: skip


def test_the_manuals_table_has_the_sets_of_these_cpus() -> None:
    page = (ROOT / "docs" / "cpu-and-flags.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("| CPU | `--cpu host` | `--cpu host,exact` |\n|---|---|---|\n")
    lines = [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()]
    recorded = {row.name: cpu.parse(row.cpuinfo()) for row in machines()}
    for label, *sets in lines:
        name = DOCUMENTED[label]
        host, asked = (recorded.get(name), "host" if name in recorded else name)
        arch = host.arch if host else "x86_64"
        own = [f"`{isa.resolve(f'{asked}{how}', arch=arch, host=host).name}`" for how in ("", ",exact")]
        assert sets == own, label
    assert len(lines) == len(DOCUMENTED)
