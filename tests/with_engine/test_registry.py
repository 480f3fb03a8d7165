"""Push and pull through a real registry on loopback: the right image for each host, and nothing half-pushed.

The images here are small and carry the labels of real plans; that they are TensorFlow's plays no part in it.
"""

import json
import math
import os
import secrets
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests import debian, schemas
from tests.cpu.machines import machine, recording
from tests.verify.test_report import report
from tests.with_engine import registry as registries
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tfbuild import cpu, plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of, read_labels
from tfbuild.cpu import isa
from tfbuild.engine import Engine, connection
from tfbuild.engine.build import BuildSettings
from tfbuild.engine.transfer import TransferFailed
from tfbuild.errors import RegistryRefused, TfbuildError
from tfbuild.oci import client, manifests
from tfbuild.oci.client import Registry
from tfbuild.oci.references import Repository
from tfbuild.pipeline import build_context
from tfbuild.plan import Build, Request
from tfbuild.publish import indexes, pulling, pushing, sbom, signing
from tfbuild.publish.choose import Choice
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting

pytestmark = pytest.mark.engine
Run = subprocess.CompletedProcess[str]
INDEXES = ("2.20-mkl", "2.20.0-mkl", "latest-mkl")
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


def build(cpu_name: str, release: str = "2.20.0", python: str = "") -> Build:
    request = Request(target="mkl", release=release, cpu=cpu_name, platform="linux/amd64", python=python)
    return plan.select(request, None)


def label(
    engine: Engine, tmp_path: Path, of: Build, *, imported: bool = False, more: Mapping[str, str] = {}, name: str = ""
) -> str:
    """`imported`: no build, whose cache would keep the layers of an image that is removed."""
    folder = tmp_path / secrets.token_hex(4)
    folder.mkdir()
    (folder / "content").write_bytes(secrets.token_bytes(64))
    labels = {**labels_of(of), **more}
    pairs = [f"{name}={dockerfile.quoted(value)}" for name, value in labels.items() if "$" not in value]
    name = name or f"tfbuild-test:{secrets.token_hex(6)}"
    if imported:
        with tarfile.open(folder / "content.tar", "w") as tar:
            tar.add(folder / "content", "content")
        changes = [word for pair in pairs for word in ("--change", f"LABEL {pair}")]
        subprocess.run(["docker", "import", *changes, str(folder / "content.tar"), name], check=True)
    else:
        (folder / "Dockerfile").write_text(
            "\n".join(["FROM scratch", "COPY content /", f"LABEL {' '.join(pairs)}", ""])
        )
        engine.build(folder, BuildSettings(log=folder / "log", progress=Progress(), tag=name))
    passed = replace(report(), id=of.id)
    reporting.write_report(replace(passed, image=replace(passed.image, id=engine.image(name).id)), tmp_path / "reports")
    return name


@pytest.fixture
def made(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes an image with a build's labels, and the report that it passed."""
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
    return pulling.choose_image(place, host, release=release, target="mkl", python="")


@cache
def parsed(recorded: str) -> cpu.Cpu:
    return cpu.parse(cpuinfo(recorded))


def cpuinfo(recorded: str) -> str:
    return recording(recorded).text if recorded == SSE else machine(recorded).cpuinfo()


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
        host = frozenset(isa.of_cpu(parsed(recorded), exact=True).features)
        assert set(pulled.labels["io.tfbuild.features"].split()) <= host
        engine.remove(name)
        assert shell(place, tmp_path / recorded) == name
        again = engine.image(name)
        assert (again.id, again.repo_digests) == (pulled.id, (document["reference"],))
        engine.remove(name)


def test_moving_tags_are_indexes_whose_first_image_runs_everywhere(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    for name in ("x86-64-v4", "x86-64-v2", "x86-64-v3"):
        push(engine, made(build(name)), place, tmp_path)
    older = push(engine, made(build("x86-64-v3", release="2.14.1")), place, tmp_path)
    assert older.moved == ("2.14-mkl", "2.14.1-mkl")
    assert [tag for tag in place.tags() if tag.count("-") == 1 and "sha256" not in tag] == [
        "2.14-mkl", "2.14.1-mkl", "2.20-mkl", "2.20.0-mkl", "latest-mkl"
    ]  # fmt: skip
    latest = place.manifest("latest-mkl")
    assert latest is not None
    assert latest.media_type == manifests.INDEX
    assert [(image.instruction_set, image.release) for image in indexes.read_index(latest)] == [
        ("x86-64-v2", "2.20.0"), ("x86-64-v3", "2.20.0"), ("x86-64-v4", "2.20.0")
    ]  # fmt: skip
    # What plain docker makes of it.
    ref = f"{place.repository}:latest-mkl"
    for platform, own in {"": "v2", "linux/amd64": "v2", "linux/amd64/v3": "v3", "linux/amd64/v4": "v4"}.items():
        option = [f"--platform={platform}"] if platform else []
        subprocess.run(["docker", "pull", "--quiet", *option, ref], check=True, capture_output=True)
        try:
            assert read_labels(engine.image(ref).labels).get("instruction-set") == f"x86-64-{own}"
        finally:
            engine.remove(ref)
    old = choose(place, "rocky9-zen5", release="2.14").best
    assert old is not None
    assert old.release == "2.14.1"
    pushing.yank(place, build("x86-64-v2").id, "crashes", str)
    offered = indexes.read_index(place.manifest("latest-mkl"))
    assert [image.instruction_set for image in offered] == ["x86-64-v3", "x86-64-v4"]


def test_eight_pushes_at_once_are_all_in_the_index(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path
) -> None:
    """Four sets, each for two Pythons; each push has a registry's eyes of its own."""
    builds = [build(name, python=python) for name in CPUS for python in ("3.12", "3.13")]
    images = [made(one) for one in builds]
    with ThreadPoolExecutor(len(images)) as pool:
        done = list(pool.map(lambda image: push(engine, image, Registry(place.repository), tmp_path), images))
    assert {one.moved for one in done} == {INDEXES}
    for tag in INDEXES:
        assert {image.id for image in indexes.read_index(place.manifest(tag))} == {one.id for one in builds}


def test_one_document_attached_by_many_at_once_is_attached_once(place: Registry) -> None:
    """The registry refuses about one in five of these, since it reads what another of them is just writing."""
    for number in range(10):
        config = json.dumps({"number": number}).encode()
        image = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "layers": []}
        image["config"] = {"mediaType": "application/json", "digest": place.upload(config), "size": len(config)}
        place.put("subject", json.dumps(image).encode(), manifests.IMAGES[0])
        subject = place.manifest("subject")
        assert subject is not None
        document = (client.SBOM, "sbom", "", config * 100)
        with ThreadPoolExecutor(6) as pool:
            here = Registry(place.repository)
            attached = [pool.submit(client.attach, here, subject, *document) for _ in range(6)]
        listed = place.manifest(client.fallback_tag(subject.digest))
        assert listed is not None
        assert [row["digest"] for row in listed.json()["manifests"]] == [*{one.result() for one in attached}]


# --- without Python -------------------------------------------------------------------------------------------------


def shell(place: Registry, cpuinfo: Path) -> str:
    env = {"PATH": f"/usr/bin:{os.environ['PATH']}", "TFBUILD_CPUINFO": str(cpuinfo)}
    command = ["dash", str(ROOT / "pull.sh"), str(place.repository)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    return done.stdout.strip()


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
    """Another repository in which the older image is whole, as the registry keeps it on its disk."""
    path = f"test/{secrets.token_hex(4)}"
    repositories = server.folder / "data/docker/registry/v2/repositories"
    shutil.copytree(repositories / "test/old", repositories / path)
    return path


def offers(direct: Registry) -> set[str]:
    """What a host is offered that could run both images, each of them whole."""
    releases = ("", "2.20", "2.20.0")
    accepted = [pulling.accept(direct, choose(direct, "rocky9-zen5", release)) for release in releases]
    assert not any(choice.passed_over and "missing" in choice.passed_over[0].reason for _, _, choice in accepted)
    return {image.id for image, *_ in accepted}


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
            offered = offers(direct)
        else:
            return None
        proxy.left = math.inf
        push(engine, new, Registry(place), folder)
        assert offers(direct) == ONLY_NEW
        pushing.refuse_unfinished(direct, pushing.find_published(direct, build("x86-64-v3").id), None)
    return offered


def test_a_push_that_dies_in_its_upload_or_its_indexes_offers_nothing_half_and_the_next_one_ends_it(
    engine: Engine, server: Server, old_and_new: tuple[str, Path]
) -> None:
    many = 10**6
    with registries.between(server, left=many) as (host, proxy):
        push(engine, old_and_new[0], Registry(Repository.parse(f"{host}/{copy_of_old(server)}")), old_and_new[1])
    steps = many - int(proxy.left)
    assert offered_after(3, engine, server, old_and_new) == ONLY_OLD
    # The last changes are the three indexes.
    assert offered_after(steps - 2, engine, server, old_and_new) == ONLY_OLD | ONLY_NEW


def test_a_helper_that_is_not_there_is_not_taken_for_an_engine_that_is_not(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = made(build("avx"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", connection.endpoint(engine.environ).address)
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "nobody-has-this"}))
    with pytest.raises(RegistryRefused, match=r"docker-credential-nobody-has-this not installed"):
        push(Engine.connect(), image, place, tmp_path)
    assert place.tags() == []
    (tmp_path / "config.json").write_text(json.dumps({"auths": {place.repository.host: {"auth": "no base64!"}}}))
    with pytest.raises(RegistryRefused, match="stored credentials cannot be read"):
        Engine.connect()


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_the_verbs_answer_by_their_codes_what_is_published(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, invoke: Callable[..., Any]
) -> None:
    """From a registry without the image to one that takes it out again, as CI asks."""
    one, context = build("avx"), f"sha256:{64 * '1'}"
    image = made(one, more={"io.tfbuild.context": build_context.image_digest(context, ""),
                            "org.opencontainers.image.base.digest": ""})  # fmt: skip
    asked = (one.id, f"--registry={place.repository}")
    name = f"{place.repository}:{one.id}"
    there = {"image": name, "there": None}
    assert json.loads(invoke("push", *asked, "--access", "--json").stdout) == there
    invoke("verify", *asked, code=25)
    assert place.tags() == []
    digest = push(engine, image, place, tmp_path).digest
    assert json.loads(invoke("push", name, "--access", "--json").stdout)["there"] == digest
    verify = ("verify", *asked, "--context")
    answer = json.loads(invoke(*verify, context, "--json").stdout)
    assert (answer["digest"], answer["rebuild_options"]) == (digest, f"--no-cache --reuse {answer['reference']}")
    invoke(*verify, f"sha256:{64 * '0'}", code=33)
    place.put("latest-mkl", b'{"schemaVersion": 2, "manifests": []}', manifests.INDEX)
    assert "latest-mkl in " in invoke("verify", *asked, code=30).stderr
    assert json.loads(invoke("push", *asked, "--indexes", "--json").stdout)["indexes"] == list(INDEXES)
    invoke("verify", *asked)
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    pull = ("pull", f"--registry={place.repository}", f"--cpuinfo={tmp_path}/cpuinfo", "--dry-run", "--json")
    assert json.loads(invoke(*pull).stdout)["id"] == one.id
    invoke("push", *asked, "--yank", "crashes in MatMul")
    assert "was yanked: crashes in MatMul" in invoke("verify", *asked, code=32).stderr
    invoke("push", *asked, "--indexes", code=32)
    invoke(*pull, code=27)
    assert place.digest(one.id) == digest


# --- attachments and signatures ---------------------------------------------------------------------------------------


def test_the_sbom_of_a_tensorflow_image_is_what_its_own_tools_list(engine: Engine, image: Callable[..., str]) -> None:
    ref = image("2.21.0")
    local = engine.image(ref)
    bill = sbom.document(local, sbom.read_contents(engine, ref))
    assert schemas.sbom().validate_str(bill.decode()) is None
    rows = json.loads(bill)["components"]
    script = "import importlib.metadata as m; print(*sorted({f'{d.name}=={d.version}' for d in m.distributions()}))"
    output = engine.run(ref, ["python", "-c", script], entrypoint=()).stdout.split()
    assert {f"{row['name']}=={row['version']}" for row in rows if ":pypi/" in row.get("purl", "")} == {
        f"{name.lower().replace('_', '-').replace('.', '-')}=={version}"
        for name, _, version in (line.partition("==") for line in output)
    }
    listed = engine.run(ref, ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"], entrypoint=())
    packages = {tuple(line.split()) for line in listed.stdout.splitlines()}
    assert len(packages) > 50
    assert {(row["name"], row["version"]) for row in rows if ":deb/" in row.get("purl", "")} == packages
    assert any(row.get("purl") == "pkg:pypi/tensorflow-cpu@2.21.0" for row in rows)


# A log of signatures in the web is none of a test's business.
UNLOGGED, UNLOGGED_CHECK = "--tlog-upload=false", "--insecure-ignore-tlog=true"


# cosign 3 attaches signatures as referrers, beside the SBOM and the provenance; cosign 2 does so where it is asked to.
@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.nightly), "oci-1-1"])
@pytest.mark.parametrize("api", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_signature_by_the_real_cosign_is_demanded_and_found(
    api: bool,
    mode: str,
    engine: Engine,
    made: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Callable[..., Any],
) -> None:
    """`api`: in a registry that lists referrers."""
    cosign = debian.cosign_keys(tmp_path, monkeypatch)
    monkeypatch.setenv("COSIGN_EXPERIMENTAL", "1" if mode == "oci-1-1" else "0")
    one = build("avx")
    image = made(one)
    key, public, other = (shlex.quote(str(cosign / name)) for name in ("ours.key", "ours.pub", "theirs.pub"))
    options = f"--key {key} {UNLOGGED} --registry-referrers-mode={mode}"
    look = f"{UNLOGGED_CHECK} --experimental-oci11={'true' if mode == 'oci-1-1' else 'false'}"
    signed, by_others = (f"--key {one} {look}" for one in (public, other))
    (tmp_path / "registry").mkdir()
    program = registries.with_referrers(tmp_path / "registry") if api else None
    with registries.serve(tmp_path / "registry", program) as server:
        place = server.place()
        arrive = partial(pushing.push, engine, image, place, tmp_path / "reports", force=False, progress=Progress())
        with pytest.raises(TfbuildError, match="cosign did not sign"):
            arrive(sign=signing.signer(f"--key {key}.none", place.ca))
        assert "latest-mkl" not in place.tags()
        arrive()
        assert (place.referrers(place.digest(one.id)) is not None) == api
        verify = partial(invoke, "verify", one.id, "--registry", str(place.repository), "--json")
        assert "has no signature that cosign accepts" in verify("--signed", signed, code=24).stderr
        assert json.loads(verify().stdout)["signed"] is None
        done = arrive(sign=signing.signer(options, place.ca))
        assert (done.signed, done.uploaded) == (True, False)
        assert json.loads(verify("--signed", signed).stdout)["signed"] is True
        verify("--signed", by_others, code=24)
        engine.remove(image)
        (tmp_path / "cpuinfo").write_text(cpuinfo("rhel7-haswell"))
        pull = partial(invoke, "pull", f"--registry={place.repository}", f"--cpuinfo={tmp_path}/cpuinfo", "--json")
        pull("--signed", by_others, code=24)
        assert not engine.exists(f"{place.repository}@{done.digest}")
        pulled = json.loads(pull("--signed", signed).stdout)
        assert (pulled["signed"], pulled["reference"]) == (True, f"{place.repository}@{done.digest}")
        engine.remove(pulled["image"])
