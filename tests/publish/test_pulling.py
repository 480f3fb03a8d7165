"""What `pull` checks beside what the table of registry faults has: signatures, how many images, and what arrives."""

from dataclasses import replace

import pytest

from tests.cpu.machines import machine
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.pipeline.memory_engine import holding
from tests.publish.fake_images import digest, gather, image
from tests.rows import each
from tfbuild import cpu
from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.publish import pulling
from tfbuild.publish.choose import Choice
from tfbuild.util.progress import Progress

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


@pytest.fixture
def names(fake: type[FakeRegistry]) -> dict[str, str]:
    """The identifiers of three images of one release, by their levels."""
    pushed = {level: image(fake, "2.20.0", cpu=level) for level in LEVELS}
    gather(fake, pushed["x86-64-v4"])
    return pushed


def select(fake: type[FakeRegistry]) -> Choice:
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())
    return pulling.choose_image(connect(fake), host, release="", target="mkl", python="")


@pytest.mark.parametrize(("signed", "taken"), [(3, "x86-64-v4"), (2, "x86-64-v3"), (1, "x86-64-v2"), (0, "")])
def test_an_image_without_a_signature_is_passed_over_if_one_is_required(
    signed: int, taken: str, fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    known = {f"{connect(fake).repository}@{digest(fake, names[level])}" for level in LEVELS[:signed]}

    def demand(reference: str) -> None:
        if reference not in known:
            raise VerificationFailed(f"{reference} has no signature that cosign accepts")

    def unable(reference: str) -> None:
        raise RegistryRefused("cosign could not judge it")

    with pytest.raises(RegistryRefused, match="could not judge"):
        pulling.accept(connect(fake), select(fake), unable)
    if taken:
        assert pulling.accept(connect(fake), select(fake), demand)[0].id == names[taken]
        return
    with pytest.raises(VerificationFailed, match="has no signature that cosign accepts"):
        pulling.accept(connect(fake), select(fake), demand)


def test_a_hundred_images_are_tried(fake: type[FakeRegistry], names: dict[str, str]) -> None:
    choice = select(fake)
    gone = tuple(replace(choice.fitting[0], digest=f"sha256:{number:064}") for number in range(100))
    assert pulling.accept(connect(fake), choice.among((*gone[1:], *choice.fitting)))[0].id == names["x86-64-v4"]
    with pytest.raises(RegistryRefused, match="it is missing in the registry"):
        pulling.accept(connect(fake), choice.among((*gone, *choice.fitting)))


@each("level", LEVELS)
@each("known_by", ["config", "digest"])
def test_only_the_image_that_was_checked_gets_its_name(
    known_by: str, level: str, fake: type[FakeRegistry], names: dict[str, str]
) -> None:
    place, engine = connect(fake), holding({})
    best, manifest, _ = pulling.accept(place, select(fake))
    arriving = place.manifest(digest(fake, names[level]))
    engine.images.registry = {f"{place.repository}@{best.digest}": best.digest}
    engine.images.pulled = {"Id": getattr(arriving, known_by)}
    if arriving == manifest:
        assert pulling.pull(engine, place, best, manifest, Progress()) == f"{place.repository}:{best.id}"
        assert engine.names == {f"{place.repository}:{best.id}": getattr(manifest, known_by)}
    else:
        with pytest.raises(VerificationFailed) as refused:
            pulling.pull(engine, place, best, manifest, Progress())
        assert (refused.value.exit_code, engine.names) == (24, {})
