"""Processors' names: each is one CPU, as recorded machines of that name show, and none is a larger one than it is."""

import tomllib
from pathlib import Path

import pytest

from tests.cpu.machines import machine, machines, recordings
from tests.rows import each
from tfbuild import facts, plan
from tfbuild.cpu import isa, names
from tfbuild.cpu.isa import CpuEntry
from tfbuild.cpu.names import Product
from tfbuild.errors import Unsupported
from tfbuild.plan import PLATFORMS, Request

# Recorded names that are not one CPU's: the hypervisor made them.
MADE_UP = ("AMD EPYC", "Intel(R) Xeon(R) Processor")
RECORDED = [
    (row.model, row.microarchitecture.replace("x86_64_v3", "haswell"))
    for rows in (machines(), recordings())
    for row in rows
    if row.microarchitecture and row.model and row.model not in MADE_UP
]
TRIED = tomllib.loads((Path(__file__).parents[1] / "data" / "products.toml").read_text())


@each("model, microarchitecture", RECORDED)
def test_a_recorded_machine_s_model_name_is_its_microarchitecture(model: str, microarchitecture: str) -> None:
    product = names.find_product(model)
    assert product is not None
    assert isa.resolve(model, arch=product.arch) == isa.resolve(microarchitecture, arch=product.arch)


@each("cpu, name", [(cpu, name) for cpu, known in TRIED["cpu"].items() for name in known])
def test_a_processor_is_the_cpu_that_its_sources_say(cpu: str, name: str) -> None:
    product = names.find_product(name)
    assert product is not None, names.normalize(name)
    assert product.cpu == cpu
    assert isa.resolve(name, arch=product.arch) == isa.resolve(cpu, arch=product.arch)


@each("name", TRIED["refused"])
@each("arch", isa.MACHINES)
def test_a_processor_without_a_source_is_refused(name: str, arch: str) -> None:
    with pytest.raises(Unsupported, match="unknown CPU, level or feature"):
        isa.resolve(name, arch=arch)


@each("name", TRIED["several"])
def test_a_family_is_refused_with_some_of_its_models(name: str) -> None:
    with pytest.raises(Unsupported, match=" several CPUs, such as "):
        isa.resolve(name, arch="x86_64")


@each("row", names.products())
def test_every_row_fits_its_own_examples_and_names_a_known_cpu(row: Product) -> None:
    assert isa.resolve(row.cpu, arch=row.arch).arch == row.arch
    assert [name for name in (*row.examples, *row.names, *row.qemu) if names.find_product(name) != row] == []


@each("level, name", [(level, name) for level, known in TRIED["qemu"].items() for name in known])
def test_a_qemu_model_has_the_level_that_qemu_says(level: str, name: str) -> None:
    assert names.find_product(name) is not None
    assert isa.resolve(name, arch="x86_64").level == level


@each("name", ["Core i7-10510", "Phenom II X4 N970", "Xeon Gold 9148", "EPYC 7764", "i7-99", "M24", "Ryzen 3780", "v2"])
def test_a_number_beside_a_family_s_is_not_taken_for_one_with_avx512(name: str) -> None:
    product = names.find_product(name)
    assert product is None or "avx512f" not in isa.resolve(name, arch=product.arch).features
    assert "avx2" not in isa.resolve("Pentium Gold G6400", arch="x86_64").features


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("i5", ["broadwell", "skylake", "alderlake"]),
        ("Core i7", ["broadwell", "alderlake", "skylake", "nehalem"]),
        ("Core i7 12th gen", ["broadwell", "alderlake", "skylake", "nehalem"]),
        ("Xeon Gold", ["skylake_avx512", "cascadelake", "icelake-server", "sapphirerapids"]),
        ("AMD EPYC", ["zen", "zen2", "zen3", "zen4"]),
        ("graviton", ["cortex_a72", "neoverse_v2"]),
        ("neoverse", ["neoverse_n1", "neoverse_v1", "neoverse_v2", "neoverse_n2"]),
        ("Cortex", ["cortex_a72", "armv8.2-a,fphp,asimdhp"]),
        ("apple", ["m1", "m2", "m3", "m4"]),
        ("Ampere", ["neoverse_n1", "ampere1"]),
        ("atom", ["gracemont", "tremont", "goldmont", "silvermont"]),
        ("Snapdragon", ["armv8.2-a,fphp,asimdhp", "armv8.2-a,fphp,asimdhp"]),
        ("Intel(R) Xeon(R) Processor", ["skylake_avx512"]),
    ],
)
def test_a_name_of_several_cpus_is_refused_with_them(name: str, meant: list[str]) -> None:
    with pytest.raises(Unsupported, match=" several CPUs, such as ") as refusal:
        isa.resolve(name, arch="x86_64")
    assert refusal.value.hint == "name the whole model; or --cpu FILE, with that machine's lscpu"
    assert [cpu for cpu in meant if cpu in names.models_beginning(name)] == meant


def test_a_processor_of_another_platform_is_planned_for_it_and_the_plan_says_so(tmp_path: Path) -> None:
    own = plan.choose_platform(Request())
    name, platform = ("graviton3", "linux/arm64") if own == "linux/amd64" else ("EPYC 7763", "linux/amd64")
    build = plan.select(Request(cpu=name), None)
    assert build.platform == platform
    assert build.notes[0] == f"planned for {platform}, the platform of {name}; this machine has another"
    (tmp_path / "web1").write_text(machine("rhel9-neoverse_v2" if name == "graviton3" else "rhel7-haswell").cpuinfo())
    assert plan.choose_platform(Request(cpu=f"{tmp_path / 'web1'},exact")) == platform
    with pytest.raises(Unsupported, match=f"unknown CPU, level or feature '{name}'"):
        plan.select(Request(cpu=name, platform=own), None)


def test_the_plan_says_which_cpu_a_processor_is() -> None:
    notes = plan.select(Request(cpu="m5", platform="linux/arm64"), None).notes
    assert "m5 is m1: Apple's M5; the m5 instances of AWS are Skylake or Cascade Lake" in notes
    build = plan.select(Request(cpu="Xeon E5-2680 v2, avx2", platform="linux/amd64"), None)
    assert "Xeon E5-2680 v2 is ivybridge" in build.notes
    assert not [note for note in plan.select(Request(cpu="haswell"), None).notes if note.startswith("haswell is")]
    assert facts.closure(["avx2"]) <= set(build.instruction_set.features)


# --- the list of them -------------------------------------------------------------------------------------------------


@each("entry", [entry for arch in isa.MACHINES for entry in isa.entries(arch)])
def test_every_entry_is_a_value_of_cpu_that_gives_what_it_says(entry: CpuEntry) -> None:
    resolved = isa.resolve(entry.name, arch=PLATFORMS[entry.platform])
    assert entry.compiled_for == (facts.feature(entry.name).flag if entry.kind == "feature" else resolved.name)
    assert [name for name in entry.processors if isa.resolve(name, arch=PLATFORMS[entry.platform]) != resolved] == []


def test_the_list_has_every_level_feature_and_processor() -> None:
    entries = isa.search("")
    listed = {name for entry in entries for name in (entry.name, *entry.processors)}
    known = {name for row in names.products() for name in (*row.examples, *row.names)}
    assert {*(row.name for row in facts.features()), *known} <= listed
    assert len({(entry.name, entry.kind) for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("EPYC 7543", ["zen3"]),
        ("epyc7763", ["zen3"]),
        ("X86_64-V3", ["x86-64-v3"]),
        ("Graviton", ["cortex_a72", "neoverse_n1", "neoverse_v1", "neoverse_v2"]),
        ("amx", ["amx_tile", "amx_int8", "amx_bf16", "amx_fp16"]),
        ("avx2,fma", ["avx2,fma"]),
        ("+graviton3,-sve,exact", ["+graviton3,-sve,exact"]),
        ("host,exact", ["host,exact"]),
        ("G640", ["x86-64-v2"]),
        ("Raspberry Pi 4", ["armv8-a,crc32"]),
        ("endocin", ["zen2"]),
    ],
)
def test_a_search_finds_names_processors_and_features(text: str, names: list[str]) -> None:
    assert [entry.name for entry in isa.search(text)] == names
    with pytest.raises(Unsupported, match="unknown CPU, level or feature 'haswelll'"):
        isa.search("haswelll")


@each("instance", ["c4", "x9y.large"])
def test_a_clouds_family_that_is_another_product_too_needs_a_size(instance: str) -> None:
    assert names.find_product(instance) is None
