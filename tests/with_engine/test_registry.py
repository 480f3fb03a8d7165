"""Push and pull through a real registry on loopback: the right image for each host, and nothing half-pushed.

The images here are small and carry the labels of real plans; that they are TensorFlow's plays no part in it.
"""

import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.cpu.machines import machine, recording
from tests.servers import Handler, serving
from tests.verify.test_report import report
from tests.with_engine import registry as registries
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tfbuild import cpu, plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.cpu import isa
from tfbuild.engine import Engine, transfer
from tfbuild.engine.build import BuildSettings
from tfbuild.engine.transfer import TransferFailed
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage, VerificationFailed
from tfbuild.oci import manifests, references, referrers, transport
from tfbuild.oci.client import Registry
from tfbuild.oci.references import Repository
from tfbuild.plan import Build, Request
from tfbuild.publish import attachments, check, image_contents, index_updates, indexes, inventory, pulling, pushing
from tfbuild.publish.choose import Choice
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting

pytestmark = pytest.mark.engine
Run = subprocess.CompletedProcess[str]
CPUS = ("x86-64-v2", "avx", "x86-64-v3", "x86-64-v4")
# Recorded machines with AVX-512, AVX2, AVX and SSE4.2, and what each must get.
SSE = "py-cpuinfo-linux-ubuntu-16-04-x86-64"
HOSTS = {
    "rocky9-zen5": "x86-64-v4",
    "rhel7-haswell": "x86-64-v3",
    "scientificfermi6-bulldozer": "avx-source",
    SSE: "x86-64-v2",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with registries.serve(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def build(cpu_name: str, release: str = "2.20.0") -> Build:
    return plan.select(Request(target="mkl", release=release, cpu=cpu_name, platform="linux/amd64"), None)


def label(
    engine: Engine,
    tmp_path: Path,
    of: Build,
    *,
    verified: bool = True,
    megabytes: int = 0,
    imported: bool = False,
    more: Mapping[str, str] = {},
    name: str = "",
) -> str:
    """`imported`: no build, whose cache would keep the layers of an image that is removed."""
    folder = tmp_path / secrets.token_hex(4)
    folder.mkdir()
    (folder / "content").write_bytes(secrets.token_bytes(64) + os.urandom(megabytes << 20))
    labels = {**labels_of(of), **more}
    pairs = [f"{name}={dockerfile.quoted(value)}" for name, value in labels.items() if "$" not in value]
    name = name or f"tfbuild-test:{secrets.token_hex(6)}"
    if imported:
        with tarfile.open(folder / "content.tar", "w") as tar:
            tar.add(folder / "content", "content")
        changes = [word for pair in pairs for word in ("--change", f"LABEL {pair}")]
        subprocess.run(["docker", "import", *changes, str(folder / "content.tar"), name], check=True)
        image_id = engine.image(name).id
    else:
        (folder / "Dockerfile").write_text(
            "\n".join(["FROM scratch", "COPY content /", f"LABEL {' '.join(pairs)}", ""])
        )
        image_id = engine.build(folder, BuildSettings(log=folder / "log", progress=Progress()), tag=name)
    if verified:
        passed = replace(report(), id=of.id)
        reporting.write(replace(passed, image=replace(passed.image, id=image_id)), tmp_path / "reports")
    return name


@pytest.fixture
def made(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes an image with a build's labels and, unless `verified` is false, the report that it passed."""
    names: list[str] = []

    def make(of: Build, **options: Any) -> str:
        names.append(label(engine, tmp_path, of, **options))
        return names[-1]

    yield make
    for name in names:
        if engine.exists(name):
            engine.remove(name)


@pytest.fixture
def place(server: Server) -> Registry:
    """A repository of this test's own."""
    repository = Repository.parse(f"127.0.0.1:{server.port}/test/{secrets.token_hex(4)}")
    return Registry(repository)


def push(engine: Engine, image: str, place: Registry, tmp_path: Path, *, force: bool = False) -> pushing.Pushed:
    return pushing.push(engine, image, place, tmp_path / "reports", force=force, progress=Progress())


def choose(place: Registry, recorded: str, release: str = "") -> Choice:
    host = parsed(recorded)
    return pulling.select(place, host, release=release, target="mkl", python="")


@cache
def parsed(recorded: str) -> cpu.Cpu:
    return cpu.parse(cpuinfo(recorded))


def cpuinfo(recorded: str) -> str:
    return recording(recorded).text if recorded == SSE else machine(recorded).cpuinfo()


def test_each_host_gets_the_largest_set_that_it_can_run(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    ids = {}
    for name in CPUS:
        one = build(name)
        ids[one.id] = push(engine, made(one), place, tmp_path).digest
    for recorded, suffix in HOSTS.items():
        choice = choose(place, recorded)
        assert choice.best is not None
        assert choice.best.id.endswith(f"-{suffix}")
        assert choice.best.digest == ids[choice.best.id]
        assert {one.id for one in choice.passed_over} == set(ids) - {choice.best.id}


def test_each_host_pulls_the_image_that_it_can_run_by_the_verb_and_by_the_shell(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, invoke: Callable[..., Run]
) -> None:
    digests = {}
    for name in CPUS:
        image = made(build(name), imported=True)
        digests[build(name).id] = push(engine, image, place, tmp_path).digest
        # So that each layer has to be downloaded.
        engine.remove(image)
    for recorded, suffix in HOSTS.items():
        (tmp_path / recorded).write_text(cpuinfo(recorded))
        document = json.loads(
            invoke("pull", f"--registry={place.repository}", f"--cpuinfo={tmp_path / recorded}", "--json").stdout
        )
        name = document["image"]
        assert document["id"].endswith(f"-{suffix}")
        assert (name, document["reference"]) == (
            f"{place.repository}:{document['id']}", f"{place.repository}@{digests[document['id']]}"
        )  # fmt: skip
        assert len(document["passed_over"]) == len(CPUS) - 1
        pulled = engine.image(name)
        host = frozenset(isa.all_of_cpu(parsed(recorded)).features)
        assert set(pulled.labels["io.tfbuild.features"].split()) <= host
        engine.remove(name)
        assert shell(place, tmp_path / recorded).stdout.strip() == name
        again = engine.image(name)
        assert (again.id, again.repo_digests) == (pulled.id, (document["reference"],))
        engine.remove(name)


def test_a_host_that_nothing_fits_gets_the_nearest_and_what_is_missing(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    push(engine, made(build("x86-64-v4")), place, tmp_path)
    choice = choose(place, "rhel7-haswell")
    with pytest.raises(NothingFits, match=r"(?s)lacks avx512bw .*hint: build one here") as refusal:
        pulling.accept(place, choice)
    assert refusal.value.exit_code == 27


def test_moving_tags_are_indexes_whose_first_image_runs_everywhere(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    for name in ("x86-64-v4", "x86-64-v2", "x86-64-v3"):
        push(engine, made(build(name)), place, tmp_path)
    older = push(engine, made(build("x86-64-v3", release="2.14.1")), place, tmp_path)
    # It has another Python than the newer release's, for whose sake the index of any release gathers it too.
    assert older.moved == ("2.14-mkl", "2.14.1-mkl", "any-mkl")
    assert [tag for tag in place.tags() if tag.count("-") == 1] == [
        "2.14-mkl", "2.14.1-mkl", "2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl"
    ]  # fmt: skip
    latest, every = place.manifest("latest-mkl"), place.manifest("any-mkl")
    assert latest is not None
    assert every is not None
    assert latest.media_type == every.media_type == manifests.INDEX
    assert [(image.instruction_set, image.release) for image in indexes.read_index(every)] == [
        ("x86-64-v2", "2.20.0"), ("x86-64-v3", "2.20.0"), ("x86-64-v3", "2.14.1"), ("x86-64-v4", "2.20.0")
    ]  # fmt: skip
    assert {image.release for image in indexes.read_index(latest)} == {"2.20.0"}
    # What plain docker makes of it.
    ref = f"{place.repository}:latest-mkl"
    for platform, own in {"": "v2", "linux/amd64": "v2", "linux/amd64/v3": "v3", "linux/amd64/v4": "v4"}.items():
        option = [f"--platform={platform}"] if platform else []
        subprocess.run(["docker", "pull", "--quiet", *option, ref], check=True, capture_output=True)
        try:
            assert engine.image(ref).labels["io.tfbuild.instruction-set"] == f"x86-64-{own}"
        finally:
            engine.remove(ref)
    old = choose(place, "rocky9-zen5", release="2.14").best
    assert old is not None
    assert old.release == "2.14.1"


def test_a_second_push_uploads_nothing_and_another_image_is_refused(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    first = made(build("avx"))
    pushed = push(engine, first, place, tmp_path)
    assert pushed.uploaded
    again = push(engine, first, place, tmp_path)
    assert (again.uploaded, again.digest) == (False, pushed.digest)
    other = made(build("avx"))
    with pytest.raises(RegistryRefused, match=r"(?s)is another image there .*--force"):
        push(engine, other, place, tmp_path)
    assert push(engine, other, place, tmp_path, force=True).digest != pushed.digest


def test_only_what_is_verified_is_published(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    with pytest.raises(VerificationFailed, match="hint: invoke verify"):
        push(engine, made(build("avx"), verified=False), place, tmp_path)
    # A report that another image of the same identifier passed.
    made(build("avx"))
    with pytest.raises(VerificationFailed):
        push(engine, made(build("avx"), verified=False), place, tmp_path)
    assert place.tags() == []


def test_two_pushes_at_once_are_both_in_the_index(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    images = [made(build(name)) for name in CPUS]
    with ThreadPoolExecutor(len(images)) as pool:
        list(pool.map(lambda image: push(engine, image, Registry(place.repository), tmp_path), images))
    index = place.manifest("latest-mkl")
    assert index is not None
    assert len(indexes.read_index(index)) == len(CPUS)


def arriving(place: Registry) -> dict[str, bytes]:
    """The tags of images on their way, which tfbuild does not list, and what is under them."""
    tags = requests.get(f"{place.repository.url}tags/list", timeout=10).json()["tags"]
    results = {tag: place.manifest(tag) for tag in tags if references.ARRIVING_TAG.fullmatch(tag)}
    return {tag: manifest.content for tag, manifest in results.items() if manifest is not None}


def test_one_image_pushed_twice_at_once_arrives_once(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    image = made(build("avx"))
    names = engine.image(image).tags
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: push(engine, image, Registry(place.repository), tmp_path), range(2)))
    assert len({one.digest for one in done}) == 1
    assert engine.image(image).tags == names
    assert list(arriving(place).values()) == [manifests.EMPTY_INDEX]


def test_a_name_that_several_remove_at_once_is_removed(engine: Engine, made: Callable[..., str]) -> None:
    """The engine looks the name up first, and answers the last ones in words of their own."""

    def remove(name: str) -> None:
        with suppress(UnknownImage):
            engine.untag(name)

    image = made(build("avx"))
    names = engine.image(image).tags
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            engine.tag(image, f"removed-at-once:{number}")
            list(pool.map(remove, [f"removed-at-once:{number}"] * 8))
    assert engine.image(image).tags == names


def test_one_document_attached_by_many_at_once_is_attached_once(place: Registry) -> None:
    """The registry refuses about one in five of these, since it reads what another of them is just writing."""
    for number in range(10):
        config = json.dumps({"number": number}).encode()
        image = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "layers": []}
        image["config"] = {"mediaType": "application/json", "digest": place.upload(config), "size": len(config)}
        subject = place.manifest(place.put("subject", json.dumps(image).encode(), manifests.IMAGES[0]))
        assert subject is not None
        document = referrers.Attachment(media_type=referrers.SBOM, title="sbom", created="", content=config * 100)
        with ThreadPoolExecutor(6) as pool:
            here = Registry(place.repository)
            attached = [pool.submit(referrers.attach, here, document, subject) for _ in range(6)]
        listed = referrers.listed(place, subject.digest)
        assert [row["digest"] for row in listed] == [*{one.result() for one in attached}]


def test_a_fixed_tag_that_somebody_else_took_during_the_upload_is_theirs(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of one identifier, of which one overtakes the other when that has arrived and is not named yet."""
    one = build("avx")
    late, early = made(one), made(one)
    reports = {late: tmp_path / "late", early: tmp_path / "early"}
    for image, folder in reports.items():
        passed = replace(report(), id=one.id)
        reporting.write(replace(passed, image=replace(passed.image, id=engine.image(image).id)), folder / "reports")
    attach, overtaking = attachments.attach, list[pushing.Pushed]()

    def overtaken(*words: Any) -> attachments.AttachedDigests:
        if not overtaking:
            with monkeypatch.context() as patch:
                patch.setattr(attachments, "attach", attach)
                overtaking.append(push(engine, early, Registry(place.repository), reports[early]))
        return attach(*words)

    monkeypatch.setattr(attachments, "attach", overtaken)
    with pytest.raises(RegistryRefused, match=r"(?s)is another image there .*--force"):
        push(engine, late, place, reports[late])
    (won,) = overtaking
    assert place.digest(one.id) == won.digest
    best = choose(place, "rocky9-zen5").best
    assert best is not None
    assert best.digest == won.digest
    monkeypatch.setattr(attachments, "attach", attach)
    forced = push(engine, late, place, reports[late], force=True)
    assert place.digest(one.id) == forced.digest != won.digest
    assert list(arriving(place).values()) == [manifests.EMPTY_INDEX] * 2


def test_the_tag_of_an_image_on_its_way_goes_where_the_registry_deletes_tags_and_is_emptied_elsewhere(
    engine: Engine, made: Callable[..., str], place: Registry, server: Server, tmp_path: Path
) -> None:
    image, name = made(build("avx")), build("avx").id
    for uploaded in (True, False):
        assert push(engine, image, place, tmp_path).uploaded == uploaded
        assert arriving(place) == {references.arriving_tag(engine.image(image).id): manifests.EMPTY_INDEX}
    assert place.tags() == ["2.20-mkl", "2.20.0-mkl", name, "any-mkl", "latest-mkl"]
    with registries.between(server, deletes=server.folder) as (host, _):
        push(engine, image, Registry(Repository.parse(f"{host}/{place.repository.path}")), tmp_path)
    assert arriving(place) == {}
    assert place.tags() == ["2.20-mkl", "2.20.0-mkl", name, "any-mkl", "latest-mkl"]


def test_images_are_listed_here_and_in_the_registry(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    verified, unverified = made(build("x86-64-v3")), made(build("x86-64-v4"), verified=False)
    push(engine, verified, place, tmp_path)
    host = cpu.parse(machine("rhel7-haswell").cpuinfo())
    listed = {one.name: one for one in inventory.local(engine, tmp_path / "reports", host)}
    assert (listed[verified].verified, listed[verified].runs) == (True, True)
    assert (listed[unverified].verified, listed[unverified].runs) == (None, False)
    assert "avx512f" in listed[unverified].lacks
    (there,) = inventory.remote(place, host)
    assert (there.name, there.runs, there.offered) == (f"{place.repository}:{build('x86-64-v3').id}", True, True)
    assert 0 < there.size < listed[verified].size + 1000
    elsewhere = {one.name: one for one in inventory.local(engine, tmp_path, None)}
    assert elsewhere[verified].lacks == ("a linux/amd64 CPU",)


# --- without Python -------------------------------------------------------------------------------------------------


def shell(place: Registry, cpuinfo: Path, *, code: int = 0, words: tuple[str, ...] = (), **env: str) -> "Run":
    done = subprocess.run(
        ["dash", ROOT / "pull.sh", str(place.repository), *words],
        capture_output=True, text=True, check=False,
        env={"PATH": f"/usr/bin:{os.environ['PATH']}", "TFBUILD_CPUINFO": str(cpuinfo), **env},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def test_the_shell_form_chooses_as_the_verb_does(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    for name in CPUS:
        push(engine, made(build(name)), place, tmp_path)
    for recorded in HOSTS:
        (tmp_path / recorded).write_text(cpuinfo(recorded))
        best = choose(place, recorded).best
        assert best is not None
        output = shell(place, tmp_path / recorded, DRY_RUN="1").stdout.split()
        assert output == [f"{place.repository}@{best.digest}", best.id]
    pulled = shell(place, tmp_path / "rhel7-haswell", words=("2.20",))
    name = pulled.stdout.strip()
    try:
        assert engine.image(name).labels["io.tfbuild.instruction-set"] == "x86-64-v3"
        assert "x86-64-v4: this CPU lacks avx512bw" in pulled.stderr
    finally:
        engine.remove(name)
    (tmp_path / "none").write_text("flags\t\t: fpu sse sse2 lm\n")
    assert "nothing in" in shell(place, tmp_path / "none", code=27).stderr
    assert "has no 9.9-mkl" in shell(place, tmp_path / "none", code=26, words=("9.9",)).stderr
    assert "usage:" in shell(place, tmp_path / "none", code=2, words=("1", "2", "3", "4")).stderr
    assert shell(place, tmp_path / "rhel7-haswell", words=("2.20", "mkl", "3.13"), DRY_RUN="1").stdout.endswith("-v3\n")
    other = shell(place, tmp_path / "rhel7-haswell", code=27, words=("2.20", "mkl", "3.1"))
    assert "2.20-mkl with Python 3.1 runs on this host" in other.stderr


# --- a registry in trouble --------------------------------------------------------------------------------------------


def test_a_registry_killed_in_the_middle_of_a_push_offers_nothing_and_the_push_goes_on(
    engine: Engine, made: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    with registries.serve(folder) as server:
        place = server.place()
        image = made(build("avx"), megabytes=100)
        killer = threading.Thread(target=kill_when_bytes_arrive, args=(server,))
        killer.start()
        arguments = [sys.executable, "-m", "invoke", "push", image, "--registry", server.repository]
        done = run_push(arguments, tmp_path, server)
        killer.join()
        assert done.returncode == 0, done.stderr
        best = choose(place, "rocky9-zen5").best
        assert best is not None
        assert best.id == build("avx").id


@pytest.mark.nightly
def test_a_registry_killed_in_the_middle_of_a_pull(engine: Engine, made: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    with registries.serve(folder) as server, registries.narrow(server, megabytes=30) as (port, narrow):
        image = made(build("avx"), megabytes=100, imported=True)
        push(engine, image, server.place(), tmp_path)
        engine.remove(image)
        (tmp_path / "cpuinfo").write_text(machine("rocky9-zen5").cpuinfo())
        arguments = ["pull", f"--registry=127.0.0.1:{port}/us/tensorflow", f"--cpuinfo={tmp_path}/cpuinfo"]
        process = subprocess.Popen(
            [sys.executable, "-m", "invoke", *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        begun = process.stderr.readline()
        assert begun.startswith("pull "), begun
        assert narrow.held.wait(300), "nothing like a layer was asked for"
        server.kill()
        narrow.opened.set()
        assert process.poll() is None, "the pull ended before the registry was killed"
        time.sleep(1)
        server.start()
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        engine.remove(stdout.strip())


def run_push(words: list[str], tmp_path: Path, server: Server) -> "subprocess.CompletedProcess[str]":
    """In a folder whose reports/ is the test's; a half-pushed image is offered at no time."""
    (tmp_path / "tasks.py").symlink_to(ROOT / "tasks.py")
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while server.process is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.process is None, "the push ended before the registry was killed"
    assert process.poll() is None
    time.sleep(1)
    server.start()
    listed = requests.get(f"{server.url}/tags/list", timeout=10)
    assert listed.status_code == 404 or not listed.json()["tags"]
    stdout, stderr = process.communicate(timeout=180)
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def kill_when_bytes_arrive(server: Server) -> None:
    wait_for_bytes(server)
    server.kill()


def wait_for_bytes(server: Server) -> None:
    """Wait until a part of a large layer has arrived."""
    deadline = time.monotonic() + 60
    while sum(path.stat().st_size for path in (server.folder / "data").rglob("data") if path.is_file()) < 20 << 20:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- a push that dies at each of its steps ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old_and_new(engine: Engine, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An image that is to be pushed, and the reports; the repository test/old has an older one, which is whole."""
    folder = tmp_path_factory.mktemp("images")
    old, new = label(engine, folder, build("avx")), label(engine, folder, build("x86-64-v3"))
    push(engine, old, server.place("test/old"), folder)
    yield new, folder
    for name in (old, new):
        engine.remove(name)


def copy_of_old(server: Server) -> str:
    """A repository in which the older image is whole."""
    return copy_of("test/old", server)


def copy_of(old: str, server: Server) -> str:
    """Another repository with the same in it, as the registry keeps it on its disk."""
    path = f"test/{secrets.token_hex(4)}"
    repositories = server.folder / "data/docker/registry/v2/repositories"
    shutil.copytree(repositories / old, repositories / path)
    return path


def offers(direct: Registry, folder: Path) -> set[str]:
    """What a host is offered that could run both images, each proved to be whole and the one described."""
    results = {choose(direct, "rocky9-zen5", release).best for release in ("", "2.20", "2.20.0")}
    for best in results:
        assert best is not None
        whole = check.image(direct, best.digest, folder / "none")
        for layer in whole.manifest.json()["layers"]:
            assert requests.head(f"{direct.repository.url}blobs/{layer['digest']}", timeout=10).status_code == 200
    return {best.id for best in results if best is not None}


ONLY_OLD, ONLY_NEW = {build("avx").id}, {build("x86-64-v3").id}


def offered_after(steps: int, engine: Engine, server: Server, old_and_new: tuple[str, Path]) -> set[str] | None:
    """What is offered where a push died after so many changes, which the next one ends; None if it did not die."""
    new, folder = old_and_new
    path = copy_of_old(server)
    direct = server.place(path)
    with registries.between(server, left=steps) as (host, proxy):
        place = Repository.parse(f"{host}/{path}")
        try:
            push(engine, new, Registry(place), folder)
        except (RegistryRefused, TransferFailed):
            offered = offers(direct, folder)
        else:
            return None
        proxy.left = math.inf
        push(engine, new, Registry(place), folder)
        assert offers(direct, folder) == ONLY_NEW
        assert check.image(direct, build("x86-64-v3").id, folder / "reports").lacking == ()
        # What had arrived was not sent again.
        assert len(proxy.uploaded) == len(set(proxy.uploaded)) > 0
    return offered


def test_a_push_that_dies_in_its_upload_or_its_indexes_offers_nothing_half_and_the_next_one_ends_it(
    engine: Engine, server: Server, old_and_new: tuple[str, Path]
) -> None:
    many = 10**6
    with registries.between(server, left=many) as (host, proxy):
        push(engine, old_and_new[0], Registry(Repository.parse(f"{host}/{copy_of_old(server)}")), old_and_new[1])
    steps = many - int(proxy.left)
    assert offered_after(3, engine, server, old_and_new) == ONLY_OLD
    # The last five changes: two more indexes of four, and what ends the arriving tag.
    assert offered_after(steps - 5, engine, server, old_and_new) == ONLY_OLD | ONLY_NEW


@pytest.mark.nightly
def test_a_push_that_dies_at_any_of_its_steps_offers_nothing_half_and_the_next_one_ends_it(
    engine: Engine, server: Server, old_and_new: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_contents, "read_contents", cache(image_contents.read_contents))
    seen: list[set[str]] = []
    while (offered := offered_after(len(seen), engine, server, old_and_new)) is not None:
        seen.append(offered)
    # A layer and a configuration, the manifest, two attestations with what attaches them, two tags, and four indexes.
    assert len(seen) > 18
    assert seen[0] == ONLY_OLD
    # Of the indexes, the first two are those of the release. After the third, the arriving tag goes, in two requests.
    assert [one for one in seen if one != ONLY_OLD] == [*2 * [ONLY_OLD | ONLY_NEW], *3 * [ONLY_NEW]]


@pytest.mark.nightly
def test_a_replacement_that_dies_at_any_of_its_steps_leaves_a_whole_image(
    engine: Engine, server: Server, made: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixed tag names the one or the other, with its attestations, at any time.

    The upload's first steps, at which nothing is there yet that anybody reads, are left out.
    """
    one = build("avx")
    monkeypatch.setattr(image_contents, "read_contents", cache(image_contents.read_contents))
    old = server.place(f"test/{secrets.token_hex(4)}")
    first = push(engine, made(one), old, tmp_path).digest
    new = made(one)
    states = []
    for steps in range(5, 100):
        path = copy_of(old.repository.path, server)
        direct = server.place(path)
        with registries.between(server, left=steps) as (host, proxy):
            place = Repository.parse(f"{host}/{path}")
            try:
                second = push(engine, new, Registry(place), tmp_path, force=True).digest
                break
            except (RegistryRefused, TransferFailed):
                # Without a signature, a replacement whose indexes are not written looks altered.
                published = check.image(direct, one.id, tmp_path / "none", lambda _: None)
            assert offers(direct, tmp_path) == {one.id}
            states.append((published.manifest.digest, published.lacking))
            proxy.left = math.inf
            push(engine, new, Registry(place), tmp_path, force=True)
            assert check.image(direct, one.id, tmp_path / "reports").lacking == ()
            assert len(proxy.uploaded) == len(set(proxy.uploaded))
    tags = ("2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl")
    # When the tag was moved, after each of the four indexes, and at the arriving tag's end, which is two requests here.
    moved = [tags, tags[1:], tags[2:], tags[3:], (), ()]
    assert [lacking for digest, lacking in states if digest == second] == moved
    assert {state for state in states if state[0] != second} == {(first, ())}
    assert len(states) > 10


def pushed_through(
    engine: Engine, server: Server, old_and_new: tuple[str, Path], **trouble: Any
) -> type[registries.Between]:
    """What a proxy saw that made such trouble for a push, at whose end the image was whole and offered all the same."""
    new, folder = old_and_new
    path = copy_of_old(server)
    with registries.between(server, **trouble) as (host, proxy):
        push(engine, new, Registry(Repository.parse(f"{host}/{path}")), folder)
    direct = server.place(path)
    assert check.image(direct, build("x86-64-v3").id, folder / "reports").lacking == ()
    return proxy


def test_answers_that_are_lost_cost_nothing(
    engine: Engine, server: Server, old_and_new: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    proxy = pushed_through(engine, server, old_and_new, losing=True)
    # Three documents, what attaches two of them, the index of these, the fixed tag, the other's end, and three indexes.
    assert len(proxy.lost) >= 11


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_is_busy_in_the_middle_of_a_push_is_waited_for(
    status: int, engine: Engine, server: Server, old_and_new: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACKOFF", 0.01)
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.1)
    proxy = pushed_through(engine, server, old_and_new, busy=status)
    waited = dict(proxy.waited)
    assert set(waited.values()) == {2}
    for part in ("latest-mkl", "any-mkl", "arriving", "blobs/uploads/", build("x86-64-v3").id):
        assert any(part in what for what in waited), waited


def test_tokens_that_run_out_in_the_middle_of_a_push_are_bought_again(
    engine: Engine, server: Server, old_and_new: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.1)
    proxy = pushed_through(engine, server, old_and_new, expiring=True)
    assert len(proxy.late) == 1
    # Three requests each: a push has some thirty.
    assert len([left for left in proxy.sold.values() if left == 0]) >= 8


def test_a_push_without_its_indexes_is_finished_by_them(
    engine: Engine,
    server: Server,
    old_and_new: tuple[str, Path],
    invoke: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, folder = old_and_new
    path, name = copy_of_old(server), build("x86-64-v3").id
    place = server.place(path)
    monkeypatch.setattr(index_updates, "gather", ending)
    with pytest.raises(RegistryRefused, match="the test ends here"):
        push(engine, new, place, folder)
    arguments = (name, "--registry", str(place.repository))
    assert f"{name} is not offered by 2.20-mkl" in invoke("verify", *arguments, code=30).stderr
    assert json.loads(invoke("push", *arguments, "--indexes", "--json").stdout)["indexes"] == [
        "2.20-mkl", "2.20.0-mkl", "any-mkl", "latest-mkl"
    ]  # fmt: skip
    invoke("verify", *arguments)
    assert "leave out --force" in invoke("push", *arguments, "--indexes", "--force", code=2).stderr


def ending(*_: object) -> list[str]:
    raise RegistryRefused("the test ends here")


def test_a_registry_that_is_full_is_not_taken_for_one_that_wants_a_login(
    engine: Engine, server: Server, old_and_new: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    new, folder = old_and_new
    monkeypatch.setattr(registries, "ENDS", {"code": "DENIED", "message": "storage quota exceeded"})
    with registries.between(server, left=2) as (host, _), pytest.raises(TransferFailed) as refusal:
        push(engine, new, Registry(Repository.parse(f"{host}/{copy_of_old(server)}")), folder)
    assert "quota exceeded" in refusal.value.reason
    assert refusal.value.hint == "the registry's quota or size limit is reached: make room there"


class Trouble(Handler):
    status = 503

    def do_GET(self) -> None:
        body = json.dumps({"errors": [{"code": "X", "message": "as the test\x1b[31m wants"}]}).encode()
        self.say(self.status, body, {"Retry-After": "0"})

    do_HEAD = do_PUT = do_GET


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "docker login 127.0.0.1"),
        (403, "as a user with the permission"),
        (429, "too many requests"),
        (503, "the registry has an internal error"),
    ],
)
def test_each_refusal_says_what_to_do(status: int, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TRIES", 1)
    handler = type("Here", (Trouble,), {"status": status})
    with serving(handler) as host, pytest.raises(RegistryRefused) as refusal:
        Registry(Repository.parse(f"{host}/us/x")).manifest("latest-mkl")
    assert f"answers {status}" in str(refusal.value)
    assert hint in refusal.value.hint
    assert "\x1b" not in str(refusal.value)


class Tampering(Handler):
    """Hands on what a registry says, but for the manifests, in which it changes `old` to `new`."""

    origin = ""
    old, new = b"", b""

    def do_GET(self) -> None:
        answer = requests.get(f"{self.origin}{self.path}", headers={"Accept": self.headers["Accept"]}, timeout=10)
        names = ("Content-Type", "Docker-Content-Digest")
        headers = {name: answer.headers[name] for name in names if name in answer.headers}
        self.say(answer.status_code, answer.content.replace(self.old, self.new), headers)


def test_a_tampered_manifest_is_refused(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    push(engine, made(build("avx")), place, tmp_path)
    origin = f"http://{place.repository.host}"
    handler = type("Here", (Tampering,), {"origin": origin, "old": b"avx", "new": b"sse"})
    with serving(handler) as host:
        between = Registry(Repository.parse(f"{host}/{place.repository.path}"))
        with pytest.raises(RegistryRefused, match=r"sent a manifest for .* that does not match its digest"):
            choose(between, "rocky9-zen5")


def test_an_index_that_says_other_things_than_the_labels_is_refused(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    push(engine, made(build("x86-64-v4")), place, tmp_path)
    index = place.manifest("any-mkl")
    assert index is not None
    lying = json.loads(index.content)
    lying["manifests"][0]["annotations"]["io.tfbuild.features"] = "avx"
    place.put("any-mkl", json.dumps(lying).encode(), manifests.INDEX)
    choice = choose(place, "rhel7-haswell")
    assert choice.best is not None
    with pytest.raises(VerificationFailed, match="has other labels than its index says") as refusal:
        pulling.accept(place, choice)
    assert refusal.value.exit_code == 24


def test_a_registry_that_takes_nothing_is_known_before_there_is_an_image(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    one = build("avx")
    ask, name = ("push", "--access", "--json"), f"{place.repository}:{one.id}"
    there = {"image": name, "there": None, "uploads": None}
    assert json.loads(invoke(*ask, one.id, f"--registry={place.repository}").stdout) == there
    assert place.tags() == []
    digest = push(engine, made(one), place, tmp_path).digest
    assert json.loads(invoke(*ask, name).stdout)["there"] == digest
    with serving(Denied) as host:
        arguments = ("push", "--access", one.id, "--registry", f"{host}/us/x")
        assert "answers 403" in invoke(*arguments, code=26).stderr


class Denied(Handler):
    """Lets everybody read, and nobody write."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        self.send_error(403)
