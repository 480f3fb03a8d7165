"""What others wrote into a registry is checked, and an unfinished push hides no other image."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import empty_referrers, gather, image, labels_of_plan, offered, published, push_newer
from tfbuild import cpu, plan
from tfbuild.cli import publishing
from tfbuild.context.labels import labels_of
from tfbuild.engine import Engine
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage
from tfbuild.oci import client, manifests, references, transport
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.plan import Request
from tfbuild.publish import check, index_updates, indexes, pulling
from tfbuild.publish.choose import Choice
from tfbuild.util.progress import Progress


def test_an_unfinished_push_of_a_newer_release_does_not_empty_latest(fake: type[FakeRegistry]) -> None:
    old = image(fake, "2.14.1")
    empty_referrers(fake, image(fake, "2.20.0", whole=False))
    fake.content["manifests/9999-mkl-of-somebody"] = ("text/plain", b"{}")
    gather(fake, old)
    assert offered(fake, "latest-mkl") == [old]


def test_a_push_sends_one_request_for_each_image_in_an_index(fake: type[FakeRegistry]) -> None:
    names = [image(fake, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py3.13-avx-{number}"}) for number in range(30)]
    gather(fake, names[0])
    assert len(offered(fake, "2.20-mkl")) == 30
    new = image(fake, "2.20.0", {"io.tfbuild.id": "2.20.0-mkl-py3.13-avx-new"})
    fake.requests.clear()
    gather(fake, new)
    assert offered(fake, "latest-mkl").count(new) == 1
    # Once to read what is there, and once to check that nothing has changed since.
    assert len([request for request in fake.requests if request.startswith("HEAD ")]) == 2 * 31
    assert len([request for request in fake.requests if "/blobs/" in request]) == 1
    assert len(fake.requests) < 90


def test_a_registry_without_digest_headers_is_read_in_full(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = image(fake, "2.20.0")
    monkeypatch.setattr(client.Registry, "digest", lambda self, tag: "")
    gather(fake, name)
    assert offered(fake, "2.20-mkl") == [name]


def test_a_fixed_tag_that_moved_is_read_again(fake: type[FakeRegistry]) -> None:
    old, other = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    gather(fake, old)
    before = connect(fake).digest(old)
    image(fake, "2.20.0", {"io.tfbuild.version": "later"})
    assert connect(fake).digest(old) != before
    gather(fake, other)
    index = connect(fake).manifest("2.20-mkl")
    assert index is not None
    assert {image.digest for image in indexes.read_index(index)} == {
        connect(fake).digest(name) for name in (old, other)
    }


def test_an_image_is_not_offered_if_an_index_lacks_it_or_describes_it_differently(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.14.1")
    registry = connect(fake)
    pushed, manifest = published(registry, name), registry.manifest(name)
    assert manifest is not None
    tags = indexes.tags_of(pushed)
    assert tags == ("2.14-mkl", "2.14.1-mkl", "any-mkl", "latest-mkl")
    assert index_updates.compare(registry, pushed) == index_updates.IndexState(lacking=tags, named=False)
    gather(fake, name)
    assert index_updates.compare(registry, pushed) == index_updates.IndexState(lacking=(), named=True)
    del fake.content["manifests/2.14-mkl"]
    kind, content = fake.content["manifests/2.14.1-mkl"]
    fake.content["manifests/2.14.1-mkl"] = (kind, content.replace(b'"avx', b'"sse'))
    assert index_updates.compare(registry, pushed).lacking == ("2.14-mkl", "2.14.1-mkl")
    assert index_updates.compare(registry, pushed).contradicting == ("2.14.1-mkl",)
    # Neither of the two other indexes needs to name an image that exists for a newer release.
    gather(fake, push_newer(fake, name))
    assert index_updates.compare(registry, pushed).lacking == ("2.14-mkl", "2.14.1-mkl")
    assert name not in offered(fake, "latest-mkl")


def test_a_push_returns_only_the_indexes_that_offer_its_image(fake: type[FakeRegistry]) -> None:
    old, other = image(fake, "2.14.1"), image(fake, "2.14.1", cpu="x86-64-v3")
    assert gather(fake, push_newer(fake, old)) == ["2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl"]
    assert gather(fake, old) == ["2.14-mkl", "2.14.1-mkl"]
    assert gather(fake, other) == ["2.14-mkl", "2.14.1-mkl", "any-mkl"]


def test_a_push_fails_if_no_index_offers_its_image(fake: type[FakeRegistry]) -> None:
    """Because its fixed tag now names another image, or its SBOM and provenance are not listed."""
    name = image(fake, "2.20.0")
    first = published(connect(fake), name)
    image(fake, "2.20.0", {"io.tfbuild.version": "later"})
    with pytest.raises(RegistryRefused, match=f"no index of .* offers {first.digest}"):
        index_updates.gather(connect(fake), first)
    assert offered(fake, "2.20-mkl") == [name]
    empty_referrers(fake, name)
    with pytest.raises(RegistryRefused, match="its provenance are gone"):
        gather(fake, name)


def break_blob(fake: type[FakeRegistry], name: str, content: bytes | None) -> None:
    """Remove the configuration of an image, or put other bytes under its digest."""
    digest = json.loads(fake.content[f"manifests/{name}"][1])["config"]["digest"]
    kind, _ = fake.content.pop(f"blobs/{digest}")
    if content is not None:
        fake.content[f"blobs/{digest}"] = (kind, content)


@pytest.mark.parametrize("content", [None, b"{}", b"x" * (transport.MOST_BYTES + 1)])
def test_a_damaged_image_does_not_hide_other_images(fake: type[FakeRegistry], content: bytes | None) -> None:
    broken, sound = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    break_blob(fake, broken, content)
    notes: list[str] = []
    registry = connect(fake)
    listed = index_updates.images(registry, registry.tags(), notes.append)
    assert [image.id for image, _ in listed] == [sound]
    (note,) = notes
    assert f"{registry.repository}:{broken} is left out" in note
    notes.clear()
    assert index_updates.gather(connect(fake), published(connect(fake), sound), notes.append)[-1] == "latest-mkl"
    assert notes == [note]
    assert offered(fake, "latest-mkl") == [sound]


def test_an_invalid_configuration_only_damages_its_own_image(fake: type[FakeRegistry]) -> None:
    sound = image(fake, "2.20.0")
    for digest in ("", "../tags/list", digest_of(b"[]")):
        document = {"mediaType": manifests.IMAGES[0], "config": {"digest": digest}}
        fake.content[f"manifests/2.20.0-mkl-of-{len(digest)}"] = (manifests.IMAGES[0], json.dumps(document).encode())
    fake.content[f"blobs/{digest_of(b'[]')}"] = ("application/octet-stream", b"[]")
    notes: list[str] = []
    assert [image.id for image, _ in index_updates.images(connect(fake), connect(fake).tags(), notes.append)] == [sound]
    assert len(notes) == 3


def test_a_failing_registry_is_not_mistaken_for_damage(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise indexes would be written without the images that it cannot deliver right now."""
    monkeypatch.setattr(transport, "TRIES", 0)
    name, other = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    digest = json.loads(fake.content[f"manifests/{other}"][1])["config"]["digest"]
    healthy = fake.do_GET

    def do_get(self: FakeRegistry) -> None:
        if self.path.endswith(digest):
            self.answer(503, "application/json", b"{}")
        else:
            healthy(self)

    monkeypatch.setattr(fake, "do_GET", do_get)
    with pytest.raises(RegistryRefused, match="answers 503"):
        gather(fake, name)
    assert "manifests/latest-mkl" not in fake.content


def test_an_unpublished_python_is_not_reported_as_an_unsupported_cpu(fake: type[FakeRegistry]) -> None:
    for python in ("3.9", "3.13"):
        image(fake, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py{python}-avx", "io.tfbuild.python": python})
    gather(fake, "2.20.0-mkl-py3.9-avx")
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())

    def select(python: str) -> Choice:
        return pulling.select(connect(fake), host, release="2.20", target="mkl", python=python)

    with pytest.raises(NothingFits, match=r"(?s)2.20-mkl has no image with Python 3.10.*hint: it has: 3.9, 3.13"):
        select("3.10")
    choice = select("")
    assert choice.best is not None
    (other,) = choice.passed_over
    assert other.reason == "Python 3.13 is newer; --python 3.9 chooses among its images"


def test_json_names_the_nearest_image_and_its_missing_features_if_nothing_fits(
    fake: type[FakeRegistry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x86-64-v4", "x86-64-v3"):
        gather(fake, image(fake, "2.20.0", cpu=name))
    options: dict[str, Any] = {"release": "", "target": "mkl", "python": "", "ca_cert": "", "engine": "", "signed": ""}
    options |= {"lock": ""}
    options |= {"dry_run": True, "json": True, "any_release": False, "skip": []}
    options["registry"] = f"{fake.host}/us/x"

    (tmp_path / "cpuinfo").write_text("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse sse2 lm\n")
    with pytest.raises(NothingFits):
        publishing.pull(**options, cpuinfo=str(tmp_path / "cpuinfo"))
    output = json.loads(capsys.readouterr().out)
    assert (output["id"], output["reference"], output["image"]) == (None, None, None)
    assert output["nearest"].endswith("x86-64-v3")
    assert "avx2" in output["missing"]
    assert "avx512f" not in output["missing"]
    assert len(output["passed_over"]) == 2
    (tmp_path / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    publishing.pull(**options, cpuinfo=str(tmp_path / "cpuinfo"))
    output = json.loads(capsys.readouterr().out)
    assert output["id"].endswith("x86-64-v3")
    assert (output["image"], output["nearest"], output["missing"], len(output["passed_over"])) == (None, None, [], 1)


def test_arriving_tags_are_not_listed(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0")
    tag = references.arriving_tag(f"sha256:{64 * 'a'}")
    fake.content[f"manifests/{tag}"] = fake.content[f"manifests/{name}"]
    assert connect(fake).tags() == [name]
    assert references.TAG.fullmatch(tag)


def test_a_feature_without_a_kernel_name_keeps_its_own_in_cpuinfo(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0", {"io.tfbuild.features": "avx sse3 avx_ifma something_new"})
    gather(fake, name)
    annotations = json.loads(fake.content["manifests/latest-mkl"][1])["manifests"][0]["annotations"]
    assert annotations["io.tfbuild.cpuinfo"] == "avx avx_ifma pni something_new"


@pytest.mark.parametrize(
    "labels",
    [
        {"io.tfbuild.id": "2.20.0-mkl\x1b[31m"},
        {"io.tfbuild.id": "../x"},
        {"io.tfbuild.release": "2.99.0"},
        {"io.tfbuild.python": "3.14"},
        {"io.tfbuild.target": "cpu"},
        {"io.tfbuild.instruction-set": "[bold]avx\x07"},
        {"io.tfbuild.features": "avx\x1b]0;x"},
    ],
)
def test_labels_that_no_plan_writes_are_refused(labels: dict[str, str]) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    valid = labels_of(build)
    digest = digest_of(b"")
    own = {"os": "linux", "architecture": "amd64"}
    assert indexes.of_config({**own, "config": {"Labels": valid}}, digest) is not None
    assert indexes.of_config({**own, "config": {"Labels": valid | labels}}, digest) is None
    assert indexes.of_config({**own, "config": {"Labels": valid}}, "latest") is None
    for other in ({"os": "windows"}, {"architecture": "arm64"}, {"os": None}):
        assert indexes.of_config({**own, **other, "config": {"Labels": valid}}, digest) is None


def test_an_image_without_a_list_of_features_is_refused() -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    labels = {name: value for name, value in labels_of(build).items() if name != "io.tfbuild.features"}
    own = {"os": "linux", "architecture": "amd64"}
    assert indexes.of_config({**own, "config": {"Labels": labels}}, digest_of(b"")) is None


@pytest.mark.parametrize("config", [{"config": "x"}, {"config": {"Labels": ["x"]}}, {"config": []}, {"created": 1}])
def test_a_malformed_configuration_is_refused(config: dict[str, object]) -> None:
    assert indexes.of_config(config, digest_of(b"")) is None


def test_a_malformed_index_offers_nothing(fake: type[FakeRegistry]) -> None:
    rows = [{"annotations": ["x"]}, {"annotations": {"io.tfbuild.release": 1}, "digest": 2}, "x"]
    fake.content["manifests/latest-mkl"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    assert offered(fake, "latest-mkl") == []


def test_an_engine_may_know_an_image_by_either_of_its_digests(fake: type[FakeRegistry]) -> None:
    """An index has neither, because it does not identify one image."""
    manifest = connect(fake).manifest(image(fake, "2.20.0"))
    assert manifest is not None
    assert manifest.ids == (manifest.config, digest_of(manifest.content))
    assert Manifest(digest=manifest.digest, media_type=manifests.INDEX, content=b'{"manifests": []}').ids == ()


class Pulled(Engine):
    """An engine that knows the image it pulled by `id`, and says that it has these labels."""

    def __init__(self, id: str, labels: dict[str, str]) -> None:
        self.id, self.labels, self.names = id, labels, list[str]()

    def pull(self, ref: str, progress: Progress) -> None:
        pass

    def image(self, ref: str) -> Any:
        return type("Image", (), {"id": self.id, "labels": self.labels})

    def tag(self, ref: str, new: str) -> None:
        self.names.append(new)


def test_a_pulled_image_is_recognized_by_either_digest(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0")
    registry = connect(fake)
    best = published(registry, name)
    accepted = pulling.accept(registry, Choice(nearest=None, missing=(), passed_over=(), fitting=(best,)))
    for known in accepted.manifest.ids:
        engine = Pulled(known, labels_of_plan("2.20.0", "avx"))
        assert pulling.pull(engine, registry, accepted, Progress()) == f"{registry.repository}:{name}"
        assert engine.names == [f"{registry.repository}:{name}"]
    others = [
        Pulled(digest_of(b"other"), labels_of_plan("2.20.0", "avx")),
        # The engine reads other labels than tfbuild: one that knows images by their manifests would not notice.
        Pulled(accepted.image.digest, labels_of_plan("2.20.0", "x86-64-v4")),
    ]
    for other in others:
        with pytest.raises(RegistryRefused, match="is another image on this engine"):
            pulling.pull(other, registry, accepted, Progress())
        assert other.names == []


def test_an_identifier_that_is_not_a_tag_is_refused(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name = image(fake, "2.20.0", {"io.tfbuild.id": "../x\x1b[31m"})
    digest = digest_of(fake.content[f"manifests/{name}"][1])
    with pytest.raises(UnknownImage, match="was not made by tfbuild"):
        check.image(connect(fake), digest, tmp_path)


@pytest.mark.parametrize("config", [{"config": ["x"]}, {"config": {"Labels": ["x"]}}, {"config": 1}, {}])
def test_checking_an_image_with_a_malformed_configuration_is_refused(
    config: dict[str, object], fake: type[FakeRegistry], tmp_path: Path
) -> None:
    content = json.dumps(config).encode()
    fake.content[f"blobs/{digest_of(content)}"] = ("application/octet-stream", content)
    manifest = json.dumps({"mediaType": manifests.IMAGES[0], "config": {"digest": digest_of(content)}}).encode()
    fake.content["manifests/x"] = (manifests.IMAGES[0], manifest)
    with pytest.raises(UnknownImage, match="x was not made by tfbuild"):
        check.image(connect(fake), "x", tmp_path)
