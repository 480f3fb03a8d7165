"""Bazel's cache of a compile without a container, carried from machine to machine by a registry on loopback."""

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.oci.fake_registry import FakeRegistry
from tests.oci.fake_registry import fake as fake
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import RegistryRefused, TfbuildError
from tfbuild.oci.manifests import Forged, Mangled, Missing, digest_of
from tfbuild.oci.references import Repository
from tfbuild.pipeline import cache_layers
from tfbuild.pipeline.cache_layers import CacheLayers
from tfbuild.plan.remote_cache import CacheImages
from tfbuild.util.progress import Progress

BUILDER, OTHER = "a" * 64, "b" * 64
RECORD = "sittings/2.14.1-mkl.jsonl"


@dataclass
class Machine:
    """A machine that compiles below a folder of its own, and says what it does."""

    root: Path
    said: io.StringIO
    cache: CacheLayers

    def run(self, **compiled: str) -> None:
        """Restore, write these files of Bazel's disk cache and a line of the record, and save."""
        self.cache.restore(self.settings)
        self.write(**compiled)
        self.cache.save(self.settings)
        self.cache.remove()

    def write(self, builder: str = BUILDER, **compiled: str) -> None:
        """Write these files into Bazel's disk cache, and a line into the record."""
        (self.root / "opt/tfbuild").mkdir(parents=True, exist_ok=True)
        (self.root / "opt/tfbuild/builder").write_text(f"{builder}\n")
        for name, text in compiled.items():
            path = self.root / "cache" / builder / "disk/cas" / name[:2] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        record = self.root / "cache" / builder / RECORD
        record.parent.mkdir(exist_ok=True)
        with record.open("a") as file:
            file.write(f"{self.root.name}\n")

    @property
    def settings(self) -> BuildSettings:
        return BuildSettings(log=self.root / "log", progress=Progress(self.said))

    @property
    def files(self) -> dict[str, str]:
        """The texts of all files of its cache."""
        cache = self.root / "cache" / BUILDER
        paths = (path for path in cache.rglob("*") if path.is_file())
        return {path.relative_to(cache).as_posix(): path.read_text() for path in paths}


def machine(fake: type[FakeRegistry], root: Path, *, readonly: bool = False) -> Machine:
    root.mkdir()
    repository = Repository.parse(f"{fake.host}/us/x")
    images = CacheImages(repository=repository, readonly=readonly)
    return Machine(root, io.StringIO(), CacheLayers(images=images, build_id="2.14.1-mkl", root=root, ca=None))


def layers(fake: type[FakeRegistry]) -> list[list[str]]:
    """The names in each layer."""
    document = json.loads(fake.content["manifests/2.14.1-mkl-no-container"][1])
    blobs = [fake.content[f"blobs/{row['digest']}"][1] for row in document["layers"]]
    assert [row["size"] for row in document["layers"]] == [len(blob) for blob in blobs]
    return [tarfile.open(fileobj=io.BytesIO(blob)).getnames() for blob in blobs]


def test_each_machine_goes_on_where_the_last_one_stopped(fake: type[FakeRegistry], tmp_path: Path) -> None:
    first, second, third = (machine(fake, tmp_path / name) for name in ("first", "second", "third"))
    first.run(aa11="one", bb22="two")
    assert "2.14.1-mkl-no-container: no cache yet" in first.said.getvalue()
    second.run(cc33="three")
    assert second.files == {
        "disk/cas/aa/aa11": "one", "disk/cas/bb/bb22": "two", "disk/cas/cc/cc33": "three", RECORD: "first\nsecond\n",
    }  # fmt: skip
    assert layers(fake) == [["disk/cas/aa/aa11", "disk/cas/bb/bb22", RECORD], ["disk/cas/cc/cc33", RECORD]]
    third.cache.restore(third.settings)
    assert third.files == second.files
    assert "restore oci://" in third.said.getvalue()
    # What is there already is not written again.
    (third.root / "cache" / BUILDER / "disk/cas/aa/aa11").write_text("own")
    third.run()
    assert third.files["disk/cas/aa/aa11"] == "own"
    assert layers(fake)[2:] == [[RECORD]]


def test_much_is_divided_into_layers(fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_layers, "LAYER_BYTES", 1000)
    first, second = machine(fake, tmp_path / "first"), machine(fake, tmp_path / "second")
    first.run(aa="x" * 600, bb="y" * 600, cc="z" * 600, dd="")
    assert layers(fake) == [["disk/cas/aa/aa", "disk/cas/bb/bb"], ["disk/cas/cc/cc", "disk/cas/dd/dd", RECORD]]
    second.cache.restore(second.settings)
    assert second.files == first.files


def test_another_builder_s_cache_is_replaced_and_noted(fake: type[FakeRegistry], tmp_path: Path) -> None:
    first, second = machine(fake, tmp_path / "first"), machine(fake, tmp_path / "second")
    first.run(aa="old")
    second.cache.restore(second.settings)
    second.write(OTHER, bb="new")
    second.cache.save(second.settings)
    assert "made by another builder and could not be used" in second.said.getvalue()
    assert layers(fake) == [["disk/cas/bb/bb", RECORD]]


def test_who_may_only_read_writes_nothing(fake: type[FakeRegistry], tmp_path: Path) -> None:
    machine(fake, tmp_path / "first").run(aa="one")
    reader = machine(fake, tmp_path / "second", readonly=True)
    fake.requests.clear()
    reader.run(bb="two")
    assert reader.files["disk/cas/aa/aa"] == "one"
    assert {line.partition(" ")[0] for line in fake.requests} == {"GET"}


def test_a_registry_that_takes_nothing_is_known_before_the_compile_and_noted_after_it(
    fake: type[FakeRegistry], tmp_path: Path
) -> None:
    def refuse(self: FakeRegistry) -> None:
        self.answer(403, "application/json", b"{}")

    fake.do_POST = refuse  # type: ignore[method-assign]
    one = machine(fake, tmp_path / "one")
    with pytest.raises(RegistryRefused, match="403"):
        one.cache.restore(one.settings)
    one.write(aa="one")
    one.cache.save(one.settings)
    assert "2.14.1-mkl-no-container was not saved: " in one.said.getvalue()
    # Nothing was compiled: there is not even a builder.
    early = machine(fake, tmp_path / "early")
    early.cache.save(early.settings)
    assert "was not saved: [Errno 2] No such file" in early.said.getvalue()


def blob_of(fake: type[FakeRegistry]) -> str:
    (name,) = (name for name, (kind, _) in fake.content.items() if name.startswith("blobs/") and "octet" in kind
               and len(fake.content[name][1]) > 2)  # fmt: skip
    return name


def replace_layer(fake: type[FakeRegistry], content: bytes) -> None:
    """Put another layer in the place of the only one, as whoever may push can."""
    name = "manifests/2.14.1-mkl-no-container"
    kind, text = fake.content[name]
    document = json.loads(text)
    document["layers"] = [{**document["layers"][0], "digest": digest_of(content), "size": len(content)}]
    fake.content[name] = (kind, json.dumps(document).encode())
    fake.content[f"blobs/{digest_of(content)}"] = ("application/octet-stream", content)


def archive(*members: tuple[str, bytes, str]) -> bytes:
    """A layer with these members: name, kind of tar, and text or what a link leads to."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(text)
            else:
                member.linkname = text
            tar.addfile(member, io.BytesIO(text.encode()))
    return target.getvalue()


def test_what_is_no_file_of_a_cache_is_left_out(fake: type[FakeRegistry], tmp_path: Path) -> None:
    machine(fake, tmp_path / "first").run(aa="one")
    outside = tmp_path / "outside"
    outside.mkdir()
    replace_layer(
        fake,
        archive(
            ("../evil", tarfile.REGTYPE, "x"),
            ("/etc/evil", tarfile.REGTYPE, "x"),
            ("disk/../../evil", tarfile.REGTYPE, "x"),
            ("disk/cas/link", tarfile.SYMTYPE, str(outside)),
            ("disk/cas/link/evil", tarfile.REGTYPE, "x"),
            ("disk/cas/hard", tarfile.LNKTYPE, "/etc/passwd"),
            ("disk/cas/pipe", tarfile.FIFOTYPE, ""),
            ("other/file", tarfile.REGTYPE, "x"),
            ("disk/cas/aa/aa", tarfile.REGTYPE, "one"),
        ),
    )
    second = machine(fake, tmp_path / "second")
    second.cache.restore(second.settings)
    assert second.files == {"disk/cas/link/evil": "x", "disk/cas/aa/aa": "one"}
    assert not list(outside.iterdir())
    assert [path.parent.name for path in tmp_path.rglob("evil")] == ["link"]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("missing", Missing),
        ("changed", Mangled),
        ("longer", Forged),
        ("no archive", Forged),
        ("cut off", Forged),
        ("no builder", Forged),
    ],
)
def test_a_damaged_cache_ends_the_run_before_the_compile(
    damage: str, error: type[TfbuildError], fake: type[FakeRegistry], tmp_path: Path
) -> None:
    machine(fake, tmp_path / "first").run(aa="one" * 9999)
    name, manifest = blob_of(fake), "manifests/2.14.1-mkl-no-container"
    kind, content = fake.content[name]
    match damage:
        case "missing":
            del fake.content[name]
        case "changed":
            fake.content[name] = (kind, content[:-1] + b"x")
        case "longer":
            fake.content[name] = (kind, content + b"x")
        case "no archive":
            replace_layer(fake, b"<html>")
        case "cut off":
            replace_layer(fake, content[: len(content) // 2])
        case "no builder":
            document = json.loads(fake.content[manifest][1])
            document["annotations"] = {"io.tfbuild.builder": "../../etc"}
            fake.content[manifest] = (fake.content[manifest][0], json.dumps(document).encode())
    second = machine(fake, tmp_path / "second")
    with pytest.raises(error):
        second.cache.restore(second.settings)
    assert second.files == {}, "nothing half"
    assert not list(second.root.glob("tfbuild-*"))
