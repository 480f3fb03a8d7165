"""Fleets: the fewest images, what each host gives up, where hosts come from, and rows that can be planned."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import terminal
from tests.commandline import invoke
from tests.cpu.machines import machine, machines
from tfbuild import cpu, facts, fleet, plan
from tfbuild import fleet as covers
from tfbuild.bench import gain
from tfbuild.cpu import Cpu, isa
from tfbuild.errors import Unsupported, UsageError
from tfbuild.fleet import Features, Fleet, Loss, best, cover

Hosts = dict[str, Cpu]


def recorded(*names: str) -> Hosts:
    """Recorded machines; "NAME#2" is a second one of a kind."""
    return {name: cpu.parse(machine(name.partition("#")[0]).cpuinfo()) for name in names}


WHOLE = recorded(*(row.name for row in machines()))


@st.composite
def cpus(draw: st.DrawFn) -> Cpu:
    """A CPU like a real one: the features of a recorded machine, without a few."""
    parsed = WHOLE[draw(st.sampled_from(sorted(WHOLE)))]
    needed = facts.levels(parsed.arch)[0].features
    others = [row.name for row in facts.features(parsed.arch) if row.name not in needed]
    dropped = draw(st.sets(st.sampled_from(others), max_size=3))
    kept = tuple(name for name in parsed.features if name not in dropped)
    return Cpu(vendor=parsed.vendor, model=parsed.model, arch=parsed.arch, features=kept)


FLEETS = st.lists(cpus(), min_size=1, max_size=6).map(lambda kinds: {f"host-{n}": kind for n, kind in enumerate(kinds)})


def lost(chosen: Fleet) -> float:
    return sum(placed.loss or 0 for placed in chosen.hosts)


# --- properties -------------------------------------------------------------------------------------------------------


@given(FLEETS, st.integers(2, 6))
def test_every_host_has_an_image_it_can_run_and_there_are_at_most_as_many_as_allowed(hosts: Hosts, most: int) -> None:
    chosen = fleet.choose(hosts, most)
    assert chosen.proved
    assert len(chosen.images) <= most
    assert [placed.name for placed in chosen.hosts] == [*hosts]
    for placed in chosen.hosts:
        image, own = chosen.images[placed.image], isa.of_cpu(hosts[placed.name])
        assert set(image.features) <= set(hosts[placed.name].features)
        assert image.platform == plan.MACHINES[own.arch]
        assert set(placed.unused) == set(own.features) - set(image.features)
        assert placed.name in image.hosts
    assert sum(len(image.hosts) for image in chosen.images) == len(hosts)


@given(FLEETS)
def test_one_more_image_is_never_worse_and_enough_images_lose_nothing(hosts: Hosts) -> None:
    losses = [lost(fleet.choose(hosts, most)) for most in range(2, 5)]
    assert losses == sorted(losses, reverse=True)
    assert lost(fleet.choose(hosts, len(hosts) + 1)) == 0


@given(FLEETS, st.integers(2, 4), st.integers(2, 5), st.randoms())
def test_neither_the_order_of_hosts_nor_copies_of_all_change_the_images(
    hosts: Hosts, most: int, times: int, random: Random
) -> None:
    copies = [(f"{name}-{number}", kind) for name, kind in hosts.items() for number in range(times)]
    random.shuffle(copies)
    single, multiple = fleet.choose(hosts, most), fleet.choose(dict(copies), most)
    assert [image.features for image in single.images] == [image.features for image in multiple.images]
    assert lost(multiple) == pytest.approx(times * lost(single))


# --- examples ---------------------------------------------------------------------------------------------------------


def test_a_second_image_is_added_where_it_is_estimated_to_gain() -> None:
    names = ("x86-64-v3", "x86-64-v4-vnni-bf16")
    slow, fast = (gain.relative_speed(frozenset(isa.resolve(name, arch="x86_64").features), "x86_64") for name in names)
    assert slow is not None
    assert fast is not None
    hosts = recorded("rhel7-haswell", "rocky9-zen5", "rocky9-zen5#2")
    one, two = fleet.choose(hosts, 1), fleet.choose(hosts, 2)
    assert [(image.instruction_set, image.speed) for image in one.images] == [("x86-64-v3", slow)]
    assert [host.loss for host in one.hosts] == [0, *2 * [pytest.approx(1 - slow / fast, abs=1e-4)]]
    assert ([image.speed for image in two.images], lost(two)) == ([fast, slow], 0)
    assert len(fleet.choose(recorded("rhel7-haswell", "rhel7-broadwell", "ubuntu20.04-zen3"), 3).images) == 1
    old = fleet.choose(recorded("scientificfermi6-piledriver", "rocky9-zen5"), 2)
    assert [image.official_wheel for image in old.images] == [False, True]
    # What a CPU's own set leaves out beside another feature, such as AVX-VNNI, may be all that it shares with others.
    (shared,) = fleet.choose(recorded("ubuntu26.04-arrowlake_s", "unknown-sapphirerapids"), 1).images
    assert shared.cpu == "x86-64-v3,avx_vnni"


def test_on_aarch64_nothing_is_measured_and_features_count() -> None:
    hosts = recorded("amazon-neoverse_n1", "amazon-neoverse_v1", "amazon-cortex_a72")
    three = fleet.choose(hosts, 3)
    assert len(three.images) == 3
    assert [placed for placed in three.hosts if not (placed.loss is None and not placed.unused)] == []
    # V1 gives up less with N1's image (sve) than N1 would with the A72's.
    two = fleet.choose(hosts, 2)
    assert [placed.unused for placed in two.hosts] == [(), ("sve",), ()]


def test_each_platform_needs_an_image_of_its_own() -> None:
    mixed = recorded("amazon-neoverse_n1", "rhel7-haswell")
    assert {image.platform for image in fleet.choose(mixed, 2).images} == {"linux/amd64", "linux/arm64"}
    with pytest.raises(UsageError, match="too few for 2 platforms") as refusal:
        fleet.choose(mixed, 1)
    assert "--images 2" in refusal.value.hint


# --- the choice, compared with trying every partition of the CPUs into groups -----------------------------------------


NAMES = "abcdefg"
SETS = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=5, unique=True)
WEIGHTS = st.lists(st.integers(0, 9), min_size=len(NAMES), max_size=len(NAMES))


def weighing(weights: Sequence[int]) -> Callable[[Features, Features], Loss]:
    """Each feature that a CPU has and its image lacks costs its own weight."""
    return lambda own, image: (sum(weights[NAMES.index(name)] for name in own - image), 0, len(own - image))


def partitions(sets: list[Features]) -> Iterator[list[list[Features]]]:
    if not sets:
        yield []
        return
    first, *rest = sets
    for groups in partitions(rest):
        yield [[first], *groups]
        for position, group in enumerate(groups):
            yield [*groups[:position], [first, *group], *groups[position + 1 :]]


def cost(sets: list[Features], images: Sequence[Features], loss: Callable[[Features, Features], Loss]) -> Loss:
    """Return what is lost, and how many images it takes."""
    chosen = [(own, best(own, images, loss)) for own in sets]
    losses = [loss(own, image) for own, image in chosen if image is not None]
    assert len(losses) == len(sets)
    return sum(lost for lost, _, _ in losses), len(images), sum(unused for _, _, unused in losses)


@given(SETS, st.integers(1, 4), WEIGHTS)
def test_no_partition_is_cheaper(sets: list[Features], most: int, weights: list[int]) -> None:
    loss = weighing(weights)
    possible = [
        images
        for groups in partitions(sets)
        if len(images := {frozenset.intersection(*group) for group in groups}) <= most and all(images)
    ]
    if not possible:
        return
    chosen, proved = cover(sets, most, loss)
    assert proved
    assert cost(sets, chosen, loss) == min(cost(sets, tuple(images), loss) for images in possible)


@given(SETS, st.integers(2, 4), WEIGHTS)
def test_merging_covers_all_and_is_never_better_than_trying_all(
    sets: list[Features], most: int, weights: list[int]
) -> None:
    sets = [*(own | {"x"} for own in sets), frozenset("y")]  # the last one is of another architecture
    loss = weighing(weights)
    exact, _ = cover(sets, most, loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covers, "MOST_CHOICES", 0)
        merged, proved = cover(sets, most, loss)
    assert not proved
    assert len(merged) <= most
    assert cost(sets, merged, loss) >= cost(sets, exact, loss)


# --- where hosts come from --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "recorded"
    folder.mkdir()
    for name in ("rhel7-haswell", "rocky9-zen5"):
        (folder / name).write_text(machine(name).cpuinfo())
    (folder / ".hidden").write_text("nothing")
    return folder


def test_each_file_is_one_machine_and_equal_names_become_paths(folder: Path, tmp_path: Path) -> None:
    hosts = fleet.read_hosts([str(folder), os.path.relpath(folder / "rocky9-zen5")])
    assert [*hosts] == ["rhel7-haswell", "rocky9-zen5"]
    other = tmp_path / "rocky9-zen5"
    other.write_text(machine("rocky9-zen5").cpuinfo())
    hosts = fleet.read_hosts([str(folder), str(other)])
    assert [*hosts] == ["rhel7-haswell", str(folder / "rocky9-zen5"), str(other)]


def test_all_unreadable_machines_are_reported_together(folder: Path) -> None:
    (folder / "notes").write_text("buy milk")
    (folder / "old").write_text(machine("amazon-cortex_a72").core(without=("asimd",)))
    (folder / "k8").write_text("vendor_id : AuthenticAMD\nflags : fpu lm cx8 fxsr mmx cmov sse sse2 syscall\n")
    with pytest.raises(Unsupported, match=r"3 of the machines cannot be read\n  k8: .*\n  notes: .*\n  old: "):
        fleet.read_hosts([str(folder)])


@pytest.mark.parametrize("source", ["nowhere", "a b", "http://host", "\0", "a" * 300, ""])
def test_a_source_without_a_file_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file or a folder"):
        fleet.read_hosts([f"{tmp_path}/{source}"])


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_verb_s_images_are_rows_of_the_matrix(folder: Path, tmp_path: Path) -> None:
    graviton, file = tmp_path / os.fsdecode(b"graviton \xe9"), tmp_path / "fleet.json"
    graviton.write_text(machine("amazon-neoverse_n1").cpuinfo())
    file.write_text(invoke("fleet", str(folder), "--also", graviton, "--images", "3", "--json").stdout)
    chosen = fleet.read_fleet(file)
    assert chosen == fleet.choose(fleet.read_hosts([str(folder), str(graviton)]), 3)
    options = ("--release=2.20.0", "--target=cpu", "--python=3.13", f"--fleet={file}")
    rows = json.loads(invoke("matrix", *options, "--format=json").stdout)["rows"]
    assert {(row["platform"], *row["features"]) for row in rows} == {
        (image.platform, *image.features) for image in chosen.images
    }
    assert {row["wheel"] for row in rows} == {"source"}
    assert len(rows) == 3
    assert "leave out one of them" in invoke("matrix", *options, "--cpu=x86-64-v3", code=2).stderr


VALID = msgspec.to_builtins(fleet.choose(recorded("rhel7-haswell"), 1))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", json.dumps(VALID | {"schema": "tfbuild.fleet/2"}), json.dumps(VALID | {"images": []})]
)
def test_a_file_without_a_fleet_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="does not hold a fleet"):
        fleet.read_fleet(file)


def test_the_terminal_shows_options_and_one_line_for_equal_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = fleet.choose(WHOLE, 4)
    lines = terminal.lines(partial(fleet.show_fleet, chosen), monkeypatch)
    assert [image for image in chosen.images if f"  --platform {image.platform} --cpu {image.cpu}" not in lines] == []
    assert max(len(line) for line in lines if "--cpu" not in line) <= 80
    machines = recorded("rhel7-haswell", "rhel7-haswell#2", "amazon-neoverse_n1")
    hosts = {f"\x1b{name}": cpu for name, cpu in machines.items()}
    lines = terminal.lines(partial(fleet.show_fleet, fleet.choose(hosts, 2)), monkeypatch)
    assert [line.rpartition(": ")[2] for line in lines if "estimated speed" in line] == ["not measured", "1.09"]
    begin = next(number for number, line in enumerate(lines) if line.startswith("host "))
    assert [line.split() for line in lines[begin : begin + 3]] == [
        ["host", "image", "gives", "up", "unused", "features"],
        ["amazon-neoverse_n1", "1", "not", "measured", "none"],
        ["rhel7-haswell", "and", "1", "more", "2", "0%", "none"],
    ]
