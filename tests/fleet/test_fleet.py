"""Fleets: the common instruction set, the fewest images, what each host gives up, and rows that can be planned."""

import json
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import terminal
from tests.commandline import invoke
from tests.cpu.machines import machine, machines
from tfbuild import cpu, facts, fleet, plan
from tfbuild.cpu import Cpu, isa
from tfbuild.errors import Unsupported, UsageError
from tfbuild.fleet import Fleet, hosts
from tfbuild.fleet import fleet as estimates
from tfbuild.fleet.hosts import FleetHost
from tfbuild.plan import Request, gain

X86 = [row.name for row in facts.features("x86_64")]


def host(name: str, number: int = 0) -> FleetHost:
    return FleetHost(name=f"{name}-{number}", cpu=cpu.parse(machine(name).cpuinfo()))


def whole() -> list[FleetHost]:
    return [host(row.name) for row in machines()]


@st.composite
def cpus(draw: st.DrawFn, arch: str) -> Cpu:
    """A CPU like a real one: the features of a recorded machine, without a few."""
    row = draw(st.sampled_from([row for row in machines() if row.arch == arch]))
    needed = facts.levels(arch)[0].features
    dropped = draw(
        st.sets(st.sampled_from([row.name for row in facts.features(arch) if row.name not in needed]), max_size=3)
    )
    parsed = cpu.parse(row.cpuinfo())
    return Cpu(
        vendor=parsed.vendor,
        model=parsed.model,
        arch=arch,
        features=tuple(name for name in parsed.features if name not in dropped),
    )


@st.composite
def fleets(draw: st.DrawFn, archs: tuple[str, ...] = ("x86_64", "aarch64")) -> list[FleetHost]:
    kinds = draw(st.lists(st.sampled_from(archs).flatmap(cpus), min_size=1, max_size=6))
    copies = draw(st.lists(st.sampled_from(kinds), max_size=4))
    return [FleetHost(name=f"host-{number}", cpu=kind) for number, kind in enumerate([*kinds, *copies])]


def images_needed(members: list[FleetHost]) -> int:
    return len({member.cpu.arch for member in members})


def lost(chosen: Fleet) -> float:
    return sum(placed.loss or 0 for placed in chosen.hosts)


# --- properties ----------------------------------------------------------------------------------------------------


@given(fleets(), st.integers(2, 6))
def test_every_host_has_an_image_it_can_run_and_there_are_at_most_as_many_as_allowed(
    members: list[FleetHost], most: int
) -> None:
    chosen = fleet.choose(members, most)
    assert chosen.proved
    assert len(chosen.images) <= most
    assert [placed.name for placed in chosen.hosts] == [member.name for member in members]
    for member, placed in zip(members, chosen.hosts, strict=True):
        image = chosen.images[placed.image]
        own = isa.of_cpu(member.cpu)
        assert set(image.features) <= set(own.features)
        assert image.platform == placed.platform == plan.MACHINES[own.arch]
        assert set(placed.unused) == set(own.features) - set(image.features)
        assert member.name in image.hosts
    assert sum(len(image.hosts) for image in chosen.images) == len(members)
    for common in chosen.common:
        sets = [isa.of_cpu(member.cpu) for member in members if plan.MACHINES[member.cpu.arch] == common.platform]
        assert set(common.features) == set(isa.intersection(sets).features)


@given(fleets())
def test_one_more_image_is_never_worse_and_enough_images_lose_nothing(members: list[FleetHost]) -> None:
    least = images_needed(members)
    losses = [lost(fleet.choose(members, most)) for most in range(least, least + 4)]
    assert losses == sorted(losses, reverse=True)
    assert lost(fleet.choose(members, len(members) + least)) == 0


@given(fleets(), st.integers(2, 4), st.randoms())
def test_the_order_of_hosts_does_not_matter(members: list[FleetHost], most: int, random: Random) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)
    first, second = fleet.choose(members, most), fleet.choose(shuffled, most)
    assert (first.images, first.common, first.proved) == (second.images, second.common, second.proved)
    assert sorted(first.hosts, key=lambda row: row.name) == sorted(second.hosts, key=lambda row: row.name)


@given(fleets(), st.integers(2, 4), st.integers(2, 5))
def test_copies_of_a_fleet_need_the_same_images(members: list[FleetHost], most: int, times: int) -> None:
    copies = [
        FleetHost(name=f"{member.name}-{number}", cpu=member.cpu) for member in members for number in range(times)
    ]
    single, multiple = fleet.choose(members, most), fleet.choose(copies, most)
    assert [image.features for image in single.images] == [image.features for image in multiple.images]
    assert lost(multiple) == pytest.approx(times * lost(single))


@given(fleets(), st.integers(2, 4))
def test_every_image_can_be_planned(members: list[FleetHost], most: int) -> None:
    for image in fleet.choose(members, most).images:
        # A compiler that knows every feature, on an unknown base image, which may have that compiler.
        build = plan.select(
            Request(
                target="cpu", release="2.20.0", platform=image.platform, cpu=image.cpu, compiler="clang-19", base="mine"
            ),
            None,
        )
        assert isa.resolve(image.cpu, arch=plan.PLATFORMS[image.platform]).features == image.features
        assert set(build.instruction_set.features) <= set(image.features)
        if not any("is left out" in note for note in build.notes):
            assert build.instruction_set.name == image.instruction_set


@given(st.sets(st.sampled_from(X86)), st.sets(st.sampled_from(X86)))
def test_more_features_never_count_for_less(some: set[str], more: set[str]) -> None:
    own, image = facts.closure(some | more), facts.closure(some)
    share = estimates.speed_loss(own, image, "x86_64")
    assert share is None or 0 <= share < 1
    assert estimates.speed_loss(own, own, "x86_64") in (0, None)


# --- examples ------------------------------------------------------------------------------------------------------


SETS = ("x86-64-v3", "x86-64-v4-vnni-bf16")


def test_a_mixed_fleet() -> None:
    one = fleet.choose([host("rhel7-haswell"), host("rocky9-zen5"), host("rocky9-zen5", 1)], 1)
    (image,) = one.images
    assert image.level == "x86-64-v3"
    old, *new = one.hosts
    slow, fast = (gain.relative_speed(frozenset(isa.resolve(name, arch="x86_64").features), "x86_64") for name in SETS)
    assert slow is not None
    assert fast is not None
    assert 1 < slow < fast
    assert (old.loss, image.speed) == (0, slow)
    assert new[0].loss == pytest.approx(1 - slow / fast, abs=1e-4)
    two = fleet.choose([host("rhel7-haswell"), host("rocky9-zen5"), host("rocky9-zen5", 1)], 2)
    assert [row.level for row in two.images] == ["x86-64-v4", "x86-64-v3"]
    assert two.images[0].speed == fast
    assert lost(two) == 0


def test_an_image_without_an_estimated_gain_is_not_added() -> None:
    alike = [host("rhel7-haswell"), host("rhel7-broadwell"), host("ubuntu20.04-zen3")]
    assert len(fleet.choose(alike, 3).images) == 1


def test_on_aarch64_nothing_is_measured_and_features_count() -> None:
    members = [host("amazon-neoverse_n1"), host("amazon-neoverse_v1"), host("amazon-cortex_a72")]
    three = fleet.choose(members, 3)
    assert len(three.images) == 3
    assert all(placed.loss is None and not placed.unused for placed in three.hosts)
    assert not three.estimates
    # V1 gives up less with N1's image (sve) than N1 would with the A72's.
    two = {placed.name: placed for placed in fleet.choose(members, 2).hosts}
    assert two["amazon-neoverse_v1-0"].unused == ("sve",)
    assert two["amazon-neoverse_n1-0"].unused == two["amazon-cortex_a72-0"].unused == ()


def test_each_platform_needs_an_image_of_its_own() -> None:
    mixed = [host("amazon-neoverse_n1"), host("rhel7-haswell")]
    assert {image.platform for image in fleet.choose(mixed, 2).images} == {"linux/amd64", "linux/arm64"}
    with pytest.raises(UsageError, match="too few for 2 platforms") as refusal:
        fleet.choose(mixed, 1)
    assert "--images 2" in refusal.value.hint


def test_an_image_says_if_the_official_wheel_is_as_fast() -> None:
    chosen = fleet.choose([host("scientificfermi6-piledriver"), host("rocky9-zen5")], 2)
    assert [image.official_wheel for image in chosen.images] == [False, True]


def test_all_recorded_machines_are_covered() -> None:
    losses = []
    for most in range(2, 8):
        chosen = fleet.choose(whole(), most)
        assert len(chosen.images) <= most
        assert sum(len(image.hosts) for image in chosen.images) == len(chosen.hosts)
        losses.append(lost(chosen))
    assert losses == sorted(losses, reverse=True)
    assert {image.level for image in chosen.images} >= {"x86-64-v4", "x86-64-v3"}
    assert chosen.proved


def test_the_option_of_every_set_resolves_to_the_same_set() -> None:
    for row in machines():
        own = isa.of_cpu(cpu.parse(row.cpuinfo()))
        assert isa.resolve(own.option, arch=own.arch) == own


# --- where hosts come from -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "recorded"
    folder.mkdir()
    for name in ("rhel7-haswell", "rocky9-zen5"):
        (folder / name).write_text(machine(name).cpuinfo())
    (folder / ".hidden").write_text("nothing")
    return folder


def test_each_machine_of_files_and_folders_is_gathered_once(folder: Path) -> None:
    gathered = hosts.gather([str(folder), os.path.relpath(folder / "rocky9-zen5")])
    assert [host.name for host in gathered.hosts] == ["rhel7-haswell", "rocky9-zen5"]


def test_files_with_the_same_name_are_called_by_their_path(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "rocky9-zen5"
    other.write_text(machine("rocky9-zen5").cpuinfo())
    gathered = hosts.gather([str(folder), str(other)])
    assert [host.name for host in gathered.hosts] == ["rhel7-haswell", str(folder / "rocky9-zen5"), str(other)]


def test_all_unreadable_machines_are_reported_together_or_skipped(folder: Path) -> None:
    (folder / "notes").write_text("buy milk")
    (folder / "empty").write_text("")
    with pytest.raises(Unsupported) as refusal:
        hosts.gather([str(folder)])
    assert "2 of the machines cannot be read" in refusal.value.reason
    assert "notes does not describe a CPU" in refusal.value.reason.replace(str(folder) + "/", "")
    gathered = hosts.gather([str(folder)], skip=True)
    assert [member.name for member in gathered.skipped] == ["empty", "notes"]
    assert len(gathered.hosts) == 2


@pytest.mark.parametrize("source", ["nowhere", "a b", "http://host", "\0", "a" * 300])
def test_a_source_that_names_nothing_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"is not a file or a folder"):
        hosts.gather([f"/nowhere/{source}"])


def test_a_folder_that_cannot_be_listed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)  # the tests may run as root, who can read every folder
    with pytest.raises(UsageError, match=r"cannot read .*: Permission denied"):
        hosts.gather([str(folder)])


def test_a_cpu_below_the_smallest_level_has_no_image(tmp_path: Path) -> None:
    file = tmp_path / "old"
    file.write_text(machine("amazon-cortex_a72").core(without=("asimd",)))
    with pytest.raises(Unsupported, match=r"old: (its CPU is below armv8-a|old does not describe a CPU)"):
        hosts.gather([str(file)])


def test_a_folder_without_a_readable_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file in"):
        hosts.gather([str(tmp_path)])
    (tmp_path / "x").write_text("x")
    with pytest.raises(Unsupported, match="no machine could be read"):
        hosts.gather([str(tmp_path)], skip=True)


# --- the command line ----------------------------------------------------------------------------------------------


def test_the_verb_takes_more_hosts_and_its_json_is_read_back(folder: Path, tmp_path: Path) -> None:
    files = str(folder / "rhel7-haswell"), str(folder / "rocky9-zen5")
    done = invoke("fleet", files[0], "--images", "2", "--also", files[1], "--json")
    file = tmp_path / "fleet.json"
    file.write_text(done.stdout)
    chosen = fleet.read_fleet(file)
    assert chosen == fleet.choose(hosts.gather(files).hosts, 2)
    assert json.loads(done.stdout)["schema"] == "tfbuild.fleet/1"
    for image in chosen.images:
        assert plan.select(Request(release="2.20.0", platform=image.platform, cpu=image.cpu), None).platform


def test_two_verbs_on_one_command_line_each_take_their_own_words(folder: Path) -> None:
    first, second = folder / "rhel7-haswell", folder / "rocky9-zen5"
    done = invoke("fleet", first, "--images=1", "fleet", second, "--images=1")
    assert done.stdout.count("1 host,") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--images", "0"), 2, "must be a positive integer"),
        (("--images", "many"), 2, "must be a positive integer"),
        (("--also=/nowhere",), 2, "is not a file or a folder"),
        (("--also=README.md",), 12, "does not describe a CPU"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[str, ...], code: int, message: str, folder: Path) -> None:
    done = invoke("fleet", str(folder), *arguments, code=code)
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert not done.stdout


def test_skipped_machines_are_reported_and_in_the_json(folder: Path) -> None:
    done = invoke("fleet", str(folder), "--also=README.md", "--skip-unreadable", "--json")
    assert done.stderr.startswith("skipped README.md: ")
    assert [row["name"] for row in json.loads(done.stdout)["skipped"]] == ["README.md"]


def test_its_images_are_rows_of_the_matrix(folder: Path, tmp_path: Path) -> None:
    (folder / "graviton").write_text(machine("amazon-neoverse_n1").cpuinfo())
    file = tmp_path / "fleet.json"
    file.write_text(invoke("fleet", str(folder), "--images", "3", "--json").stdout)
    images = fleet.read_fleet(file).images
    options = ("--release=2.20.0", "--target=cpu", "--python=3.13", f"--fleet={file}")
    rows = json.loads(invoke("matrix", *options, "--format=json").stdout)["rows"]
    assert len(rows) == len(images) == 3
    for image in images:
        (row,) = (
            row for row in rows if (row["platform"], set(row["features"])) == (image.platform, set(image.features))
        )
        assert (row["wheel"], row["instruction_set"]) == ("source", image.instruction_set)
    assert "leave out one of them" in invoke("matrix", *options, "--cpu=x86-64-v3", code=2).stderr


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "tfbuild.report/1"}'])
def test_a_file_without_a_fleet_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="does not hold a fleet"):
        fleet.read_fleet(file)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"schema": "tfbuild.fleet/2"}, "has schema 'tfbuild.fleet/2'"), ({"images": []}, "no images")],
)
def test_a_fleet_of_another_version_or_without_images_is_refused(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.json"
    chosen = json.loads(fleet.to_json(fleet.choose([host("rhel7-haswell")], 1)))
    file.write_text(json.dumps(chosen | change))
    with pytest.raises(UsageError) as refusal:
        fleet.read_fleet(file)
    assert reason in refusal.value.reason


def test_what_was_not_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = terminal.lines(partial(fleet.show, fleet.choose([host("rhel7-haswell")], 1)), monkeypatch)
    assert "  estimated speed, official wheel = 1: 1.09" in lines
    lines = terminal.lines(partial(fleet.show, fleet.choose([host("amazon-neoverse_n1")], 1)), monkeypatch)
    assert "  estimated speed, official wheel = 1: not measured" in lines


def test_hosts_of_one_instruction_set_share_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [host("rhel7-haswell"), host("rhel7-haswell", 1), host("amazon-neoverse_n1")]
    lines = terminal.lines(partial(fleet.show, fleet.choose(names, 2)), monkeypatch)
    begin = next(number for number, line in enumerate(lines) if line.startswith("host "))
    assert [line.split() for line in lines[begin : begin + 3]] == [
        ["host", "image", "gives", "up", "unused", "features"],
        ["amazon-neoverse_n1-0", "1", "not", "measured", "none"],
        ["rhel7-haswell-0", "and", "1", "more", "2", "0%", "none"],
    ]


def test_eighty_columns_wrap_tables_but_not_options(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fleet.choose(whole(), 4)
    lines = terminal.lines(partial(fleet.show, chosen), monkeypatch)
    for number, image in enumerate(chosen.images, 1):
        place = lines.index(f"  --platform {image.platform} --cpu {image.cpu}")
        assert lines[place - 1].startswith(f"image {number}: ")
    assert max(len(line) for line in lines if "--cpu" not in line) <= 80
    assert not any("…" in line for line in lines)
