"""A fleet stays on one set: what `pull --lock` writes and takes, `verify --lock` and `images --outdated`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commandline import answer
from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import demand_for, gather, image, push_newer, signed
from tests.publish.test_local_images import DIGESTS, Here
from tests.publish.test_local_images import image as local_image
from tests.publish.test_pulling import changed_configuration, manifest, without
from tfbuild import cpu
from tfbuild.context.labels import configured_labels
from tfbuild.errors import NothingFits, VerificationFailed
from tfbuild.oci import referrers
from tfbuild.publish import inventory, lock, pulling, yanking

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
HOSTS = {"x86-64-v4": "rocky9-zen5", "x86-64-v3": "rhel7-haswell"}
Answer = tuple[int, str, str]


@pytest.fixture
def names(fake: type[FakeRegistry]) -> dict[str, str]:
    """The identifiers of three images of one release, by their levels."""
    pushed = {level: image(fake, "2.14.1", cpu=level) for level in LEVELS}
    for name in pushed.values():
        gather(fake, name)
    return pushed


@pytest.fixture
def tfbuild(fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run the command, and return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFBUILD_REGISTRY", f"{fake.host}/us/x")

    def run(*words: str) -> Answer:
        done = answer(*words, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def pulled(tfbuild: Callable[..., Answer], level: str, *words: str, code: int = 0) -> str:
    """What a host of a level would pull with tfbuild.lock: the identifier, or why nothing."""
    Path("cpuinfo").write_text(machine(HOSTS[level]).cpuinfo())
    ended, output, errors = tfbuild("pull", "--dry-run", "--json", "--cpuinfo=cpuinfo", "--lock=tfbuild.lock", *words)
    assert ended == code, errors
    return str(json.loads(output)["id"]) if code == 0 else errors


def test_hosts_that_pull_on_different_days_run_the_same(
    fake: type[FakeRegistry], names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    assert pulled(tfbuild, "x86-64-v3") == names["x86-64-v3"]
    written = Path("tfbuild.lock").read_text()
    document = json.loads(written)
    assert (document["release"], document["target"]) == ("2.14.1", "mkl")
    assert document["index"] == f"any-mkl@{connect(fake).digest('any-mkl')}"
    assert {row["instruction-set"]: row["digest"] for row in document["images"]} == {
        level: manifest(fake, name) for level, name in names.items()
    }
    gather(fake, push_newer(fake, names["x86-64-v4"]))
    for level in HOSTS:
        assert pulled(tfbuild, level) == names[level]
    assert Path("tfbuild.lock").read_text() == written
    code, _, errors = tfbuild("pull", "--dry-run", "--cpuinfo=cpuinfo", "--lock=tfbuild.lock")
    assert (code, "the largest set that tfbuild.lock locks that this CPU runs" in errors) == (0, True)


def test_a_locked_image_has_no_substitute(
    fake: type[FakeRegistry], names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    pulled(tfbuild, "x86-64-v4")
    best = names["x86-64-v4"]
    sound = dict(fake.content)
    for change, code, reason in (
        (lambda: fake.content.pop(f"manifests/{manifest(fake, best)}"), 26, "it is missing in the registry"),
        (lambda: yanking.yank(connect(fake), best, "crashes"), 26, "it was yanked: crashes"),
        (lambda: changed_configuration(fake, best), 26, "sends something else"),
        (lambda: without(referrers.SBOM)(fake, best), 24, "is refused: the SBOM"),
    ):
        change()
        errors = pulled(tfbuild, "x86-64-v4", code=code)
        assert reason in errors
        assert ("remove tfbuild.lock, and lock what is published now" in errors) == (code == 26)
        assert pulled(tfbuild, "x86-64-v3") == names["x86-64-v3"]
        fake.content.clear()
        fake.content.update(sound)
    # Neither does what took its name: it is pulled by its digest.
    moved_and_indexed(fake, best)
    assert pulled(tfbuild, "x86-64-v4") == best
    assert manifest(fake, best) not in Path("tfbuild.lock").read_text()


def test_only_what_a_pull_would_take_is_locked(
    fake: type[FakeRegistry], names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    without(referrers.SBOM)(fake, names["x86-64-v2"])
    assert f"{names['x86-64-v2']} is refused" in pulled(tfbuild, "x86-64-v4", code=24)
    assert not Path("tfbuild.lock").exists()
    assert "is missing" not in pulled(tfbuild, "x86-64-v4", "--skip", names["x86-64-v4"], code=24)
    del fake.content[f"manifests/{manifest(fake, names['x86-64-v2'])}"]
    assert "it is missing in the registry" in pulled(tfbuild, "x86-64-v4", code=26)
    assert not Path("tfbuild.lock").exists()


def test_an_image_that_is_skipped_is_not_locked(names: dict[str, str], tfbuild: Callable[..., Answer]) -> None:
    skipped = [f"--skip={names[level]}" for level in ("x86-64-v4", "x86-64-v2")]
    assert pulled(tfbuild, "x86-64-v3", *skipped) == names["x86-64-v3"]
    assert [row["id"] for row in json.loads(Path("tfbuild.lock").read_text())["images"]] == [names["x86-64-v3"]]
    assert pulled(tfbuild, "x86-64-v4") == names["x86-64-v3"]


def test_sets_without_a_signed_image_are_not_locked(
    fake: type[FakeRegistry], names: dict[str, str], tmp_path: Path
) -> None:
    known = set[str]().union(*(signed(fake, names[level]) for level in ("x86-64-v2", "x86-64-v3")))
    demand = demand_for(known)

    host = cpu.parse(machine("rocky9-zen5").cpuinfo())
    choice = pulling.select(connect(fake), host, release="", target="mkl", python="")
    notes: list[str] = []
    locked = lock.write_lock(tmp_path / "lock", connect(fake), choice, notes.append, demand)
    assert {row.id for row in locked.images} == {names["x86-64-v2"], names["x86-64-v3"]}
    assert any(line.startswith("not locked: ") for line in notes)
    known.clear()
    with pytest.raises(NothingFits):
        lock.write_lock(tmp_path / "none", connect(fake), choice, demand=demand)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--release=2.20"], "leave out --release, or remove"),
        (["--python=3.9", "--skip=x"], "leave out --python and --skip, or remove"),
        (["--target=cuda"], "--target mkl, or remove"),
        (["--any-release"], "leave out --any-release"),
    ],
)
def test_options_that_contradict_a_lock_are_refused(
    words: list[str], reason: str, names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    pulled(tfbuild, "x86-64-v4")
    assert reason in pulled(tfbuild, "x86-64-v4", *words, code=2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"2.14.1"', '"2.20.0"'),
        ('digest": "sha256:', 'digest": "sha256:x'),
        ("avx2", "avx3\\u001b"),
        ("{", ""),
        ("id", "iD"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_lock_is_refused(
    old: str, new: str, names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    pulled(tfbuild, "x86-64-v4")
    path = Path("tfbuild.lock")
    path.write_text(path.read_text().replace(old, new, 1))
    assert "error: tfbuild.lock is not " in pulled(tfbuild, "x86-64-v4", code=2)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("folder", "cannot read folder: Is a directory"),
        ("no/where", "cannot write to no: No such file or directory"),
        ("cpuinfo/lock", "cannot read cpuinfo/lock: Not a directory"),
    ],
)
def test_a_place_for_a_lock_that_can_hold_none_is_refused_before_any_request(
    path: str, reason: str, fake: type[FakeRegistry], names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    Path("folder").mkdir()
    Path("cpuinfo").write_text(machine(HOSTS["x86-64-v4"]).cpuinfo())
    fake.requests.clear()
    code, _, errors = tfbuild("pull", "--dry-run", "--cpuinfo=cpuinfo", f"--lock={path}")
    assert (code, fake.requests) == (2, [])
    assert errors == f"error: {reason}\nhint: --lock names a file in a folder that exists and is writable\n"


def test_what_is_published_or_here_is_compared_with_a_lock(
    fake: type[FakeRegistry], names: dict[str, str], tfbuild: Callable[..., Answer]
) -> None:
    pulled(tfbuild, "x86-64-v4")
    best = names["x86-64-v4"]
    verify = ("verify", best, f"--registry={connect(fake).repository}", "--lock=tfbuild.lock")
    assert tfbuild(*verify)[0] == 0
    assert moved_and_indexed(fake, best) != best
    code, _, errors = tfbuild(*verify)
    assert (code, f"{best} is not the image that tfbuild.lock locks" in errors) == (24, True)
    code, _, errors = tfbuild(*verify[:-1], "--lock=none.lock")
    assert (code, "there is no none.lock" in errors) == (2, True)
    locked = lock.read_lock(Path("tfbuild.lock"))
    assert locked is not None
    own = next(row for row in locked.images if row.id == best)
    lock.refuse_other(locked, best, frozenset({own.digest, "sha256:x"}))
    for identifier, digests in ((best, frozenset({"sha256:x"})), ("2.20.0-mkl-py3.13-avx", frozenset({own.digest}))):
        with pytest.raises(VerificationFailed, match=r"tfbuild\.lock"):
            lock.refuse_other(locked, identifier, digests)


def moved_and_indexed(fake: type[FakeRegistry], name: str) -> str:
    """Push another image under this name, as with --force."""
    labels = {"io.tfbuild.version": "later"}
    image(fake, "2.14.1", labels, cpu="x86-64-v4")
    gather(fake, name)
    return manifest(fake, name)


def test_an_image_here_is_outdated_if_a_pull_would_bring_another(
    fake: type[FakeRegistry], names: dict[str, str], tmp_path: Path
) -> None:
    best, v3 = names["x86-64-v4"], names["x86-64-v3"]

    def reasons() -> dict[str, str]:
        published = inventory.remote(connect(fake), None)
        here = inventory.local(engine, tmp_path, None)
        return {entry.id: entry.outdated for entry in inventory.outdated(here, published)}

    repository = connect(fake).repository
    subjects = {name: connect(fake).manifest(name) for name in (best, v3)}
    images = [
        local_image(
            letter, f"{repository}:{name}", labels=configured_labels(connect(fake).config(subject)),
            digests=(f"{repository}@{subject.digest}",),
        )
        for letter, (name, subject) in zip("AB", subjects.items(), strict=True)
        if subject is not None
    ]  # fmt: skip
    engine = Here(*images, A=(), B=())
    assert set(DIGESTS) >= {"A", "B"}
    assert reasons() == {}
    moved_and_indexed(fake, best)
    assert reasons() == {best: "the registry has another image of that name, of 2026-11-01T00:00:00Z"}
    yanking.yank(connect(fake), v3, "crashes")
    assert reasons()[v3] == "it was yanked: crashes"
    newer = push_newer(fake, best)
    gather(fake, newer)
    assert reasons()[best] == f"{newer} is published"
