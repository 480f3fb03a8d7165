"""Processors' names: each is one CPU, as recorded machines of that name show, and none is a larger one than it is."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.cpu.machines import machines, recordings
from tests.rows import each
from tfbuild import facts, plan
from tfbuild.cpu import catalogue, isa, names
from tfbuild.cpu.catalogue import CpuEntry
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
SINCE_2023 = tomllib.loads((Path(__file__).parents[1] / "data" / "products.toml").read_text())


@each("model, microarchitecture", RECORDED)
def test_a_recorded_machine_s_model_name_is_its_microarchitecture(model: str, microarchitecture: str) -> None:
    product = names.find_product(model)
    assert product is not None
    assert isa.resolve(model, arch=product.arch) == isa.resolve(microarchitecture, arch=product.arch)


# Models that are no example of a row; by their makers' lists of products.
@pytest.mark.parametrize(
    ("model", "cpu"),
    [
        ("Intel(R) Pentium(R) CPU G640 @ 2.80GHz", "x86-64-v2"),
        ("Intel(R) Core(TM) i7 CPU         870  @ 2.93GHz", "nehalem"),
        ("Intel(R) Core(TM) i5-2557M CPU @ 1.70GHz", "sandybridge"),
        ("Intel(R) Core(TM) i5-4300U CPU @ 1.90GHz", "haswell"),
        ("Intel(R) Xeon(R) CPU E5-2676 v3 @ 2.40GHz", "haswell"),
        ("Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz", "sandybridge"),
        ("e5-2697 V2", "ivybridge"),
        ("E5-2697v2", "ivybridge"),
        ("Intel(R) Xeon(R) CPU E3-1285L v4 @ 3.40GHz", "broadwell"),
        ("Intel(R) Xeon(R) CPU X5675 @ 3.07GHz", "westmere"),
        ("i7-4930K", "ivybridge"),
        ("i7-5930K", "haswell"),
        ("i7-6900K", "broadwell"),
        ("i7-7740X", "skylake"),
        ("i7-7820X", "skylake_avx512"),
        ("i9-9900K", "skylake"),
        ("i9-9940X", "skylake_avx512"),
        ("i9-9980HK", "skylake"),
        ("i9-10920X", "cascadelake"),
        ("i3-10105F", "skylake"),
        ("10th Gen Intel(R) Core(TM) i5-1035G1 CPU @ 1.00GHz", "icelake-client"),
        ("i5-11400", "rocketlake"),
        ("i7 12700k", "alderlake"),
        ("13th Gen Intel(R) Core(TM) i5-1345U", "raptorlake"),
        ("Intel(R) Core(TM) Ultra 7 265K", "arrowlake-s"),
        ("Intel(R) Core(TM) Ultra 5 125U", "meteorlake"),
        ("Intel(R) Xeon(R) Platinum 8124M CPU @ 3.00GHz", "skylake_avx512"),
        ("Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz", "cascadelake"),
        ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", "icelake-server"),
        ("Intel(R) Xeon(R) Gold 6348H CPU @ 2.30GHz", "cooperlake"),
        ("Intel(R) Xeon(R) Platinum 8361HC CPU @ 2.60GHz", "cooperlake"),
        ("Intel(R) Xeon(R) Platinum 8369HB CPU @ 3.30GHz", "cooperlake"),
        ("Intel(R) Xeon(R) Gold 6348 CPU @ 2.60GHz", "icelake-server"),
        ("Intel(R) Xeon(R) Platinum 8488C", "sapphirerapids"),
        ("INTEL(R) XEON(R) PLATINUM 8581C CPU @ 2.30GHz", "emeraldrapids"),
        ("Intel Xeon Processor (Skylake, IBRS)", "skylake_avx512"),
        ("Intel Core Processor (Haswell, no TSX)", "haswell"),
        ("AMD EPYC-Milan Processor", "zen2"),
        ("AMD EPYC 7B12", "zen2"),
        ("AMD EPYC 7V73X 64-Core Processor", "zen3"),
        ("AMD EPYC 74F3 24-Core Processor", "zen3"),
        ("AMD EPYC 9R14", "zen4"),
        ("AMD EPYC 9V33X 96-Core Processor", "zen4"),
        ("AMD EPYC 9575F 64-Core Processor", "zen5"),
        ("AMD Ryzen 7 PRO 5850U with Radeon Graphics", "zen3"),
        ("AMD Ryzen 5 3400GE", "zen"),
        ("AMD Ryzen Threadripper PRO 3995WX 64-Cores", "zen2"),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", "zen3"),
        ("AMD Ryzen Threadripper 7970X 32-Cores", "zen4"),
        ("Ryzen 5 3600", "zen2"),
        ("ryzen 5700u", "zen2"),
        ("Ryzen 3000", "zen"),
        ("Ryzen 5000 Series", "zen2"),
        ("AMD Ryzen 7000 series", "zen2"),
        ("Ryzen 7 7000", "zen2"),
        ("Ryzen 7 8845HS w/ Radeon 780M Graphics", "zen4"),
        ("Ryzen 9 7945HX", "zen4"),
        ("Ryzen AI Max+ 395", "zen5"),
        ("AMD Opteron(tm) Processor 6274", "bulldozer"),
        ("AMD FX-8800P Radeon R7, 12 Compute Cores 4C+8G", "excavator"),
        ("AMD A10-9700 RADEON R7, 10 COMPUTE CORES 4C+6G", "excavator"),
        ("kaby lake", "skylake"),
        ("SPR", "sapphirerapids"),
        ("Zen+", "zen"),
        ("Altra Q64-22", "neoverse_n1"),
        ("Apple M2 Pro", "m2"),
        ("Raspberry Pi 4 Model B Rev 1.4", "armv8-a,crc32"),
        ("Raspberry Pi Zero 2 W Rev 1.0", "armv8-a,crc32"),
        ("NVIDIA Jetson AGX Orin Developer Kit", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc"),
        ("Jetson Orin Nano", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc"),
        ("NVIDIA Jetson Nano Developer Kit", "armv8-a,crc32"),
        ("TX2", "armv8-a"),
        ("Cortex-A55", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc"),
        ("Orange Pi 5", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc"),
        ("Intel(R) Pentium(R) CPU        G6950  @ 2.80GHz", "core2"),
        ("Intel(R) Pentium(R) CPU 4415U @ 2.30GHz", "x86-64-v2"),
        ("Intel(R) Celeron(R) CPU 5205U @ 1.90GHz", "x86-64-v2"),
        ("Intel(R) Celeron(R) CPU 847 @ 1.10GHz", "x86-64-v2"),
        ("11th Gen Intel(R) Celeron(R) 6305 @ 1.80GHz", "x86-64-v3"),
        ("Intel(R) Atom(TM) CPU C3758 @ 2.20GHz", "goldmont"),
        ("Intel(R) Atom(TM) CPU  C2758  @ 2.40GHz", "silvermont"),
        ("Intel Atom(R) x6425E Processor @ 2.00GHz", "tremont"),
        ("N5105", "x86-64-v2"),
        ("J4125", "x86-64-v2"),
        ("AMD A10-7850K Radeon R7, 12 Compute Cores 4C+8G", "steamroller"),
        ("AMD Athlon(tm) X4 860K Quad Core Processor", "steamroller"),
        ("AMD A4-5000 APU with Radeon(TM) HD Graphics", "btver2"),
        ("AMD GX-412TC SOC", "btver2"),
        ("AMD 3020e with Radeon Graphics", "zen"),
        ("AMD Ryzen Embedded V1605B with Radeon Vega Gfx", "zen"),
        ("AMD Ryzen Embedded R1505G with Radeon Vega Gfx", "zen"),
        ("AMD Ryzen Embedded V2718 with Radeon Graphics", "zen2"),
        ("AMD Opteron(tm) X3421 APU", "excavator"),
        ("Xeon Platinum 8300", "cascadelake"),
        ("Core Ultra 200V", "lunarlake"),
        ("E5-26xx v2", "ivybridge"),
        ("Xeon Gold 61xx", "skylake_avx512"),
        ("i7-12xxx", "alderlake"),
        ("7950X3D", "zen4"),
        ("13900K", "raptorlake"),
        ("7763", "zen3"),
        ("9800P", "excavator"),
        ("Xeon 8280", "cascadelake"),
        ("r9 7950x", "zen4"),
        ("TR 3970X", "zen2"),
        ("Opteron_G5", "bulldozer,f16c,fma"),
        ("Icelake-Server-noTSX", "cascadelake"),
        ("EPYC-Milan-v2", "zen2"),
    ],
)
def test_a_model_is_the_cpu_that_its_maker_says(model: str, cpu: str) -> None:
    product = names.find_product(model)
    assert product is not None, names.normalize(model)
    assert product.cpu == cpu
    assert isa.resolve(model, arch=product.arch) == isa.resolve(cpu, arch=product.arch)


@each("cpu, name", [(cpu, name) for cpu, known in SINCE_2023["cpu"].items() for name in known])
def test_a_processor_since_2023_is_the_cpu_that_its_sources_say(cpu: str, name: str) -> None:
    product = names.find_product(name)
    assert product is not None, names.normalize(name)
    assert product.cpu == cpu


@each("name", SINCE_2023["refused"])
@each("arch", isa.MACHINES)
def test_a_processor_without_a_source_is_refused(name: str, arch: str) -> None:
    with pytest.raises(Unsupported, match="unknown CPU, level or feature"):
        isa.resolve(name, arch=arch)


@each("name", SINCE_2023["several"])
def test_a_family_since_2023_is_refused_with_some_of_its_models(name: str) -> None:
    with pytest.raises(Unsupported, match=" several CPUs, such as "):
        isa.resolve(name, arch="x86_64")


@each("row", names.products())
def test_every_row_fits_its_own_examples_and_names_a_known_cpu(row: Product) -> None:
    assert isa.resolve(row.cpu, arch=row.arch).arch == row.arch
    assert all(names.find_product(name) == row for name in (*row.examples, *row.names, *row.qemu))


@each("level, name", [(level, name) for level, known in SINCE_2023["qemu"].items() for name in known])
def test_a_qemu_model_has_the_level_that_qemu_says(level: str, name: str) -> None:
    assert names.find_product(name) is not None
    assert isa.resolve(name, arch="x86_64").level == level


@pytest.mark.parametrize("name", ["bonnel", "amdd", "snowridges", "skylake-serverr"])
def test_a_suggestion_is_a_misspelling_and_no_other_cpu(name: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve(name, arch="x86_64")
    others = {"broadwell", "icelake-server", "xsave", "adx", "sandybridge"}
    assert others.isdisjoint(re.split("[ ,;]+", refusal.value.hint))


def test_bonnell_is_an_atom_without_sse4() -> None:
    assert "sse4_1" not in isa.resolve("bonnell,exact", arch="x86_64").features


def test_the_plan_says_whose_m5_it_is() -> None:
    notes = plan.select(Request(cpu="m5", platform="linux/arm64"), None).notes
    assert "m5 is m1: Apple's M5; the m5 instances of AWS are Skylake or Cascade Lake" in notes


@each("name", ["Core i7-10510", "Phenom II X4 N970", "Xeon Gold 9148", "EPYC 7764", "i7-99", "M24", "Ryzen 3780", "v2"])
def test_a_number_beside_a_family_s_is_not_taken_for_one_with_avx512(name: str) -> None:
    product = names.find_product(name)
    assert product is None or "avx512f" not in isa.resolve(name, arch=product.arch).features


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
        ("Cortex", ["cortex_a72", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc"]),
        ("apple", ["m1", "m2", "m3", "m4"]),
        ("Ampere", ["neoverse_n1", "ampere1"]),
        ("intel", ["skylake_avx512", "cascadelake", "cooperlake"]),
        ("amd", ["zen5", "zen4", "zen3"]),
        ("atom", ["gracemont", "tremont", "goldmont", "silvermont"]),
        ("EPYC 7xxx", ["zen", "zen2", "zen3"]),
        ("7950X", ["skylake", "zen4"]),
        ("Snapdragon", ["armv8.2-a,fphp,asimdhp,asimddp,lrcpc", "armv8.2-a,fphp,asimdhp,asimddp,lrcpc,bf16,i8mm"]),
        ("Intel(R) Xeon(R) Processor", ["skylake_avx512"]),
    ],
)
def test_a_name_of_several_cpus_is_refused_with_them(name: str, meant: list[str]) -> None:
    with pytest.raises(Unsupported, match=" several CPUs, such as ") as refusal:
        isa.resolve(name, arch="x86_64")
    assert refusal.value.hint == "name the whole model; or --cpu FILE, with that machine's lscpu"
    assert [cpu for cpu in meant if cpu in names.models_beginning(name)] == meant


def test_a_processor_of_another_platform_is_planned_for_it_and_the_plan_says_so() -> None:
    own = plan.choose_platform(Request())
    name, platform = ("graviton3", "linux/arm64") if own == "linux/amd64" else ("EPYC 7763", "linux/amd64")
    build = plan.select(Request(cpu=name), None)
    assert build.platform == platform
    assert build.notes[0] == f"planned for {platform}, the platform of {name}; this machine has another"
    with pytest.raises(Unsupported, match=f"unknown CPU, level or feature '{name}'"):
        plan.select(Request(cpu=name, platform=own), None)


def test_the_plan_says_which_cpu_a_processor_is() -> None:
    build = plan.select(Request(cpu="Xeon E5-2680 v2, avx2", platform="linux/amd64"), None)
    assert "Xeon E5-2680 v2 is ivybridge" in build.notes
    assert not [note for note in plan.select(Request(cpu="haswell"), None).notes if note.startswith("haswell is")]
    assert facts.closure(["avx2"]) <= set(build.instruction_set.features)


# --- the list of them -------------------------------------------------------------------------------------------------


@each("entry", catalogue.entries())
def test_every_entry_is_a_value_of_cpu_that_gives_what_it_says(entry: CpuEntry) -> None:
    resolved = isa.resolve(entry.name, arch=PLATFORMS[entry.platform])
    assert entry.compiled_for == (facts.feature(entry.name).flag if entry.kind == "feature" else resolved.name)
    assert all(isa.resolve(name, arch=PLATFORMS[entry.platform]) == resolved for name in entry.processors)


def test_the_list_has_every_level_feature_and_processor() -> None:
    entries = catalogue.search("")
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
        ("G640", ["x86-64-v2"]),
        ("Raspberry Pi 4", ["armv8-a,crc32"]),
        ("endocin", ["zen2"]),
    ],
)
def test_a_search_finds_names_processors_and_features(text: str, names: list[str]) -> None:
    assert [entry.name for entry in catalogue.search(text)] == names


def test_a_search_that_finds_nothing_has_the_nearest_names() -> None:
    with pytest.raises(Unsupported, match="unknown CPU, level or feature 'haswelll'") as refusal:
        catalogue.search("haswelll")
    assert "haswell" in refusal.value.hint


def test_a_search_does_not_match_the_end_of_a_word_and_the_next_one() -> None:
    assert {"Ryzen 9 7950X"} <= {name for entry in catalogue.entries() for name in entry.processors}
    with pytest.raises(Unsupported, match="unknown CPU, level or feature 'zen9'"):
        catalogue.search("zen9")


@pytest.mark.parametrize(
    ("instance", "cpu"),
    [
        ("c7i", "sapphirerapids"), ("c7i-flex.large", "sapphirerapids"), ("m8g.large", "neoverse_v2"),
        ("c4d", "zen5"), ("t2d", "zen3"), ("n2d", "zen2"), ("Dv6", "emeraldrapids"), ("Standard_D4as_v5", "zen3"),
        ("c4.large", "haswell"), ("c4-standard-8", "emeraldrapids"), ("m5.2xlarge", "skylake-avx512"),
        ("t4g.small", "neoverse_n1"), ("r5b.metal", "skylake-avx512"), ("m5", "m1"), ("c4", None), ("x9y.large", None),
    ],
)  # fmt: skip
def test_a_clouds_instance_type_is_its_familys_cpu(instance: str, cpu: str | None) -> None:
    """A family whose name is another product's (Apple's M5, Google's C4) needs a size."""
    assert getattr(names.find_product(instance), "cpu", None) == cpu


def test_pentium_gold_g7400_is_an_alder_lake_and_has_avx2() -> None:
    assert "avx2" in isa.resolve("Intel(R) Pentium(R) Gold G7400", arch="x86_64").features
    assert "avx2" not in isa.resolve("Pentium Gold G6400", arch="x86_64").features


@pytest.mark.parametrize("name", ["zen3", "znver3", "znver1", "znver5"])
def test_exact_keeps_what_all_zen_have(name: str) -> None:
    assert {"adx", "sha_ni"} <= set(isa.resolve(f"{name},exact", arch="x86_64").features)
    assert not {"adx", "sha_ni"} & set(isa.resolve(name, arch="x86_64").features)
