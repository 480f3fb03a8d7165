"""What becomes of a build on an engine: its base, the builder's work, the names, and what the next run does again."""

import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import docker
import msgspec
import pytest
from docker.credentials.errors import StoreError

from tests.pipeline.memory_engine import BASE, COMPILED, OFFICIAL, MemoryEngine, chosen, digest, engine_at, maker, row
from tests.pipeline.memory_engine import engine as engine
from tests.rows import each
from tests.verify.test_report import report
from tfbuild import __version__
from tfbuild.context.labels import image_name, labels_of
from tfbuild.engine import transfer
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import (
    BadInput,
    BadMirror,
    BuildFailed,
    DiskFull,
    EngineMissing,
    RegistryRefused,
    Stale,
    TfbuildError,
    UnknownImage,
    Unsupported,
    UsageError,
)
from tfbuild.pipeline import base_image, bundle
from tfbuild.pipeline.build_context import Base
from tfbuild.pipeline.wheel import compiled
from tfbuild.plan import official_build
from tfbuild.plan.source import OwnFile
from tfbuild.util.files import locked
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting
from tfbuild.verify import session as verifying
from tfbuild.verify.report import Report

PYTHON = "python:3.13-slim-trixie"


# --- a build ----------------------------------------------------------------------------------------------------------


def test_what_was_built_and_verified_is_neither_built_nor_verified_again(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def verify(engine: MemoryEngine, ref: str, **_: Any) -> Report:
        calls.append(ref)
        return replace(report(image=engine.image(ref).id), id=OFFICIAL.id)

    monkeypatch.setattr(verifying, "verify", verify)
    unverified, name = image_name(OFFICIAL, "-unverified"), image_name(OFFICIAL)
    made, _ = maker(engine, tmp_path)
    engine.labels = labels_of(OFFICIAL)
    assert made.build(OFFICIAL).image == name
    ((stage, tag, settings, secrets),) = engine.jobs
    assert (stage, tag, secrets, engine.asked) == ("", unverified, {}, True)
    base = f"{OFFICIAL.base_image.rpartition(':')[0]}@{BASE}"
    assert settings.build_args["BASE"] == base
    assert (settings.build_args["BASE_NAME"], settings.build_args["BASE_DIGEST"]) == (OFFICIAL.base_image, BASE)
    assert settings.log == tmp_path / "build" / OFFICIAL.id / "build.log"
    assert {path.name for path in settings.log.parent.iterdir()} == {"context", "plan.json", ".lock"}
    assert (calls, engine.images.get(name).attrs["RepoTags"]) == ([unverified], [name])
    full = {"disk": 1 << 60}
    made, said = maker(engine, tmp_path, **full)
    result = made.build(OFFICIAL)
    assert (result.image, result.report is not None, len(engine.jobs), len(calls)) == (name, True, 1, 1)
    assert f"{name} is built and verified; nothing changed since" in said.getvalue()
    assert result.report is not None
    other = replace(result.report, image=replace(result.report.image, id="sha256:00"))
    for unproved in (replace(result.report, verdict="fail"), other):
        reporting.write_report(unproved, tmp_path / "reports")
        calls.clear()
        maker(engine, tmp_path)[0].build(OFFICIAL)
        assert (len(engine.jobs), calls) == (1, [name])
    maker(engine, tmp_path, reverify=True)[0].build(OFFICIAL)
    assert (len(engine.jobs), calls[1:]) == (1, [name])
    maker(engine, tmp_path, no_cache=True)[0].build(OFFICIAL)
    assert (len(engine.jobs), calls[2:], engine.jobs[1][2].no_cache) == (2, [unverified], True)
    # Another base makes another image.
    engine.images.registry = {OFFICIAL.base_image: digest("newer")}
    with pytest.raises(DiskFull):
        maker(engine, tmp_path, **full)[0].build(OFFICIAL)
    result = maker(engine, tmp_path, verify=False)[0].build(OFFICIAL)
    assert (result.image, result.report, len(engine.jobs), len(calls)) == (unverified, None, 3, 3)
    assert maker(engine, tmp_path)[0].verify(name).image.ref == name


@each(
    "change, error, message",
    [
        ({"disk": 1 << 60}, DiskFull, "GB are needed on"),
        ({"run": "linux/arm64"}, EngineMissing, "this engine builds for linux/arm64, but the plan is for linux/amd64"),
    ],
)
def test_what_cannot_be_built_is_refused_before_the_builder_runs(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("x")
    engine = engine_at(folder)
    run = dict(change)
    engine.platform = run.pop("run", engine.platform)
    made, _ = maker(engine, folder, **run)
    works: list[Any] = [made.build, lambda build: made.wheel(build, folder)]
    for work in [*works, lambda build: made.bundle([build], folder / "x")]:
        with pytest.raises(error, match=message):
            work(COMPILED)
    assert (engine.jobs, engine.images.rows) == ([], [])


def test_a_base_without_cuda_and_a_wheel_without_a_compile_are_refused(engine: MemoryEngine, tmp_path: Path) -> None:
    build = chosen(release="2.13.1", target="cuda")
    with pytest.raises(Unsupported, match=r"is compiled with the CUDA of its base image, and .* has none"):
        maker(engine, tmp_path)[0].build(build)
    with pytest.raises(UsageError, match="only a compiled wheel can be exported"):
        maker(engine, tmp_path)[0].wheel(OFFICIAL, tmp_path)
    assert not (tmp_path / "build").exists()


# --- the base ---------------------------------------------------------------------------------------------------------


def resolve(engine: MemoryEngine, mode: str, distribution: str = "", **more: Any) -> tuple[Base, str]:
    said = io.StringIO()
    base = base_image.resolve(
        engine, PYTHON, distribution, mode, progress=Progress(said), log=Path(engine.data_root or "", "log"), **more
    )
    return base, said.getvalue()


@each("mode", ["auto", "registry"])
def test_a_base_is_pulled_by_its_digest_or_is_the_copy_that_was_pulled_before(
    mode: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = MemoryEngine(tmp_path_factory.mktemp("x"))
    reference = f"python@{BASE}"
    engine.images.registry = None
    with pytest.raises(TfbuildError, match=rf"no registry provides {PYTHON} \(x\)") as error:
        resolve(engine, mode)
    with pytest.raises(Unsupported, match=f"^error: {PYTHON} cannot be made from packages"):
        resolve(engine, "bootstrap")
    engine.images.registry = {"other:1": BASE}
    with pytest.raises(RegistryRefused, match=r"\(manifest unknown\)"):
        resolve(engine, "registry")
    assert ("--base bootstrap" in error.value.hint) == (mode == "registry")
    engine.images.registry = {PYTHON: BASE}
    for _ in range(2):
        assert resolve(engine, mode)[0] == Base(reference=reference, name=PYTHON, digest=BASE)
    assert [image["RepoDigests"] for image in engine.images.rows] == [[reference]]
    engine.images.registry = None
    assert resolve(engine, mode)[0] == Base(reference=PYTHON, name=PYTHON, digest=BASE)
    # Its tag names another one by now, and no registry answers, or it has no layers for us.
    engine.images.rows = [row(PYTHON, RepoDigests=[f"a.site/x@{digest('x')}", f"python@{digest('old')}"])]
    engine.api.pull = lambda *_, **__: [{"error": "denied"}]  # type: ignore[method-assign]
    for engine.images.registry, why in ((None, "(x)"), ({PYTHON: BASE}, "(denied)")):
        base, said = resolve(engine, mode)
        assert base == Base(reference=PYTHON, name=PYTHON, digest=digest("old"))
        assert f"{why}; using the engine's copy" in said
    assert engine.api.timeout == 60
    # One that was never in a registry may be anything.
    engine.images.rows = [row(PYTHON)]
    with pytest.raises(TfbuildError):
        resolve(engine, mode)


def test_a_missing_credential_helper_is_why_no_registry_answers(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_helper(_: str) -> None:
        raise docker.errors.DockerException("x") from StoreError("docker-credential-nothere is not installed")

    monkeypatch.setattr(engine.images, "get_registry_data", without_helper)
    with pytest.raises(RegistryRefused, match="docker-credential-nothere"):
        resolve(engine, "registry")


def test_a_base_that_the_user_named_is_the_engine_s_or_pulled(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0)
    known, newer = {"mine:1": digest("1"), "host:5/mine:latest": digest("2")}, f"mine@{digest('newer')}"
    engine.images.registry = known
    assert resolve(engine, "mine:1")[0] == Base(reference="mine:1", name="mine:1", digest=digest("1"))
    # Without a tag the SDK would pull all.
    with pytest.raises(UnknownImage):
        resolve(engine, "host:5/mine")
    assert engine.images.rows[-1]["RepoTags"] == ["host:5/mine:latest"]
    by_digest = f"mine@{digest('1')}"
    assert resolve(engine, by_digest)[0] == Base(reference=by_digest, name=by_digest, digest=digest("1"))
    engine.images.registry = {"mine:1": digest("newer"), newer: digest("newer")}
    assert resolve(engine, "mine:1")[0].digest == digest("1")
    assert resolve(engine, by_digest, follow=True)[0].digest == digest("1")
    assert resolve(engine, "mine:1", follow=True)[0] == Base(reference=newer, name="mine:1", digest=digest("newer"))
    for name in ("docker.io/library/its:1", f"its:1@{digest('its')}"):
        engine.images.rows = [row(name, RepoDigests=[f"its@{digest('its')}"])]
        assert resolve(engine, name)[0].digest == digest("its")
    engine.images.rows.append(row("own:1"))
    own = Base(reference="own:1", name="own:1", digest=digest("id of own:1"))
    assert resolve(engine, "own:1", follow=True)[0] == own
    # Containerd's store gives what was made here a digest too, by which BuildKit would ask a registry.
    engine.images.rows[-1]["RepoDigests"] = [f"own@{own.digest}"]
    assert resolve(engine, "own:1", follow=True)[0] == own
    with pytest.raises(TfbuildError, match=r"image none:1 cannot be pulled \(none:1 not"):
        resolve(engine, "none:1")


MMDEBSTRAP = """#!/bin/sh
for word; do case "$word" in *.tar) echo made > "$word";; esac; done
printf '%s\\n' "$@" "$SOURCE_DATE_EPOCH" "$LC_ALL" "$DEBIAN_FRONTEND" "$http_proxy" > FOLDER/called
exit CODE
"""


def install_mmdebstrap(folder: Path, code: str = "0") -> None:
    (folder / "mmdebstrap").write_text(MMDEBSTRAP.replace("FOLDER", str(folder)).replace("CODE", code))
    (folder / "mmdebstrap").chmod(0o755)


def test_without_a_registry_a_base_is_made_of_debian_s_packages_and_kept_for_a_week(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(base_image, "MERGED_USR", tmp_path)
    monkeypatch.setattr(base_image, "sources", lambda name: [f"deb http://mirror {name} main"])
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    install_mmdebstrap(tmp_path)
    engine.images.registry = None
    base, said = resolve(engine, "auto", "trixie")
    name = "tfbuild-base:trixie"
    assert base == Base(reference=name, name=name, digest=digest(f"layer of {name}"))
    assert "; using Debian trixie made from its packages instead\n" in said
    words = (tmp_path / "called").read_text().splitlines()
    assert [words[0], words[1]] == ["--variant=minbase", "--architectures=amd64"]
    assert "--dpkgopt=path-exclude=/usr/share/man/*" in words
    assert "--dpkgopt=path-include=/usr/share/doc/*/copyright" in words
    assert words[-8:-6] == [f"--hook-dir={tmp_path}", "trixie"]
    assert words[-5:] == ["deb http://mirror trixie main", "315532800", "C.UTF-8", "noninteractive", "http://proxy"]
    assert engine.api.imported == [(b"made\n", ["LABEL io.tfbuild.base=trixie", 'CMD ["bash"]'])]
    now = datetime.now(UTC)
    ages = (timedelta(days=6, hours=23), timedelta(minutes=-5), timedelta(days=7, hours=1), timedelta(days=-400))
    # The engine's clock may be a little ahead of this one; one that was far ahead leaves a base that never gets old.
    for age, made in zip(ages, (1, 1, 2, 3), strict=True):
        engine.images.get(name).attrs["Created"] = (now - age).isoformat()
        resolve(engine, "bootstrap", "trixie")
        assert len(engine.api.imported) == made
    for code, error in (("1", RegistryRefused), ("1 $(echo No space left on device >&2)", DiskFull)):
        install_mmdebstrap(tmp_path, code)
        with pytest.raises(error, match="mmdebstrap failed"):
            resolve(engine, "bootstrap", "bookworm")


def test_certificates_for_apt_are_there_only_while_the_base_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, system, folder = (tmp_path / name for name in ("a company's.pem", "system", "a folder"))
    ca.write_text("company\n")
    system.write_text("system\n")
    folder.mkdir()
    monkeypatch.setattr(base_image, "OWN_CAS", (system, tmp_path / "none"))
    option, bundle = tmp_path / "etc/apt/apt.conf.d/99tfbuild-ca", tmp_path / "etc/apt/tfbuild-ca.pem"
    for hook in base_image._ca_hooks(ca, folder):
        kind, _, run = hook.partition("-hook=")
        if kind == "--customize":
            assert option.read_text() == f'Acquire::https::CAInfo "{bundle}";\n'
            assert bundle.read_text() == "system\n\ncompany\n"
        if run.startswith("upload "):  # mmdebstrap does it
            _, source, place = shlex.split(run)
            shutil.copy(source, f"{tmp_path}{place}")
        else:
            subprocess.run(["sh", "-euc", run, "sh", str(tmp_path)], check=True)
    assert (option.exists(), bundle.exists()) == (False, False)
    assert base_image._ca_hooks(None, folder) == []


def test_without_mmdebstrap_it_is_said_what_to_install(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        resolve(engine, "bootstrap", "trixie")
    assert "apt-get install mmdebstrap debian-archive-keyring" in error.value.hint


DEB822 = """Types: deb deb-src
URIs: http://mirror.site/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

# a comment
Types: deb
URIs: http://mirror.site/debian
Suites: trixie
Components: main

Enabled: no
Types: deb
URIs: http://off.site/debian
Suites: bookworm
Components: main

types: deb
uris:\thttp://inline.site/debian\t
SUITES: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 Suites: trixie
\tURIs: http://key.site/debian
"""
ONE_LINE = """deb [arch=amd64 signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main # site
deb-src https://mirror.site/debian bookworm main
deb https://robot:password@mirror.site/debian bookworm main
deb https://mirror.site/debian-security forky-security main
deb mirror+file:///etc/apt/mirrors/debian.list bookworm main
deb mirror+https://mirror.site/debian.list bookworm-updates main
deb tor+http://mirror.onion/debian bookworm main
deb https://packages.site/apt tool-bookworm main
deb https://download.site/linux/debian bookworm stable
"""


def test_the_site_s_own_mirror_is_used_and_third_parties_are_not(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "old.save").write_text("deb http://old.site/debian bookworm main\n")
    keyring = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert base_image.sources("bookworm", tmp_path) == [
        "deb [signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main",
        "deb mirror+https://mirror.site/debian.list bookworm-updates main",
        f"deb {keyring} http://mirror.site/debian bookworm main contrib",
        f"deb {keyring} http://mirror.site/debian bookworm-updates main contrib",
        "deb http://inline.site/debian bookworm main",
    ]
    assert base_image.sources("forky", tmp_path) == [], "without forky itself, Debian's own"


# --- an image in place of an installation -----------------------------------------------------------------------------


def test_an_image_of_the_same_context_is_reused_from_the_engine_or_a_registry(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    name = image_name(OFFICIAL, "-unverified")
    maker(engine, tmp_path, verify=False)[0].build(OFFICIAL)
    for given in (name, name.removeprefix("tfbuild:")):
        id = engine.images.get(name).id
        maker(engine, tmp_path, verify=False, reuse=given)[0].build(OFFICIAL)
        args = engine.jobs[-1][2].build_args
        assert args["INSTALLED"] == name
        assert args["REUSED"] == f"tfbuild:{OFFICIAL.id}@{id}"
    with pytest.raises(UnknownImage, match="no image 'gone' on this engine"):
        maker(engine, tmp_path, verify=False, reuse="gone")[0].build(OFFICIAL)
    pushed = f"host/us/x:{OFFICIAL.id}"
    engine.images.registry = {**(engine.images.registry or {}), pushed: digest("pushed")}
    with pytest.raises(Stale, match=f"{pushed} was not made from the build context of {OFFICIAL.id}"):
        maker(engine, tmp_path, verify=False, reuse=pushed)[0].build(OFFICIAL)
    pulled, own = engine.images.get(pushed).attrs, engine.images.get(name).attrs
    pulled["Config"] = own["Config"]
    maker(engine, tmp_path, verify=False, reuse=pushed)[0].build(OFFICIAL)
    args = engine.jobs[-1][2].build_args
    # By its name here: a store may have digests of local images, for which a builder would ask a registry.
    assert args["INSTALLED"] == f"host/us/x:{OFFICIAL.id}"
    assert args["REUSED"] == f"host/us/x:{OFFICIAL.id}@{digest('pushed')}"


def test_a_wheel_that_was_compiled_by_the_plan_takes_the_compile_s_place(engine: MemoryEngine, tmp_path: Path) -> None:
    """On a machine in the base's place, too, of which the plan names no base."""
    wheel = tmp_path / "tensorflow-2.20.0.whl"
    wheel.symlink_to("elsewhere")
    wheel.resolve().write_bytes(b"wheel")
    sha256 = hashlib.sha256(b"wheel").hexdigest()
    sidecar = {
        "tfbuild": __version__,
        "sha256": sha256,
        "plan": {**COMPILED.to_json(), "base_image": "", "notes": []},
        "records": {"build.txt": "builder=1", "packages.txt": "libc6"},
    }
    beside = tmp_path / f"{wheel.name}.json"
    beside.write_text(json.dumps(sidecar))
    made, _ = maker(engine, tmp_path, verify=False, reuse=str(wheel))
    # Somebody may prune it before this run removes it.
    engine.works = lambda settings: engine.untag(settings.build_args["COMPILED"])
    made.build(COMPILED)
    engine.works = lambda _: None
    made.build(COMPILED)
    _, (_, _, settings, secrets) = engine.jobs
    assert (name := settings.build_args["COMPILED"]) == f"tfbuild-base:wheel-{sha256[:12]}"
    assert settings.build_args["REUSED"] == f"{wheel.name}@sha256:{sha256}"
    assert ("machine" in secrets, engine.exists(name)) == (False, False)
    with tarfile.open(fileobj=io.BytesIO(engine.api.imported[0][0])) as archive:
        sizes = {member.name: member.size for member in archive}
    assert sizes == {f"wheel/{wheel.name}": 5, "wheel/build.txt": 9, "wheel/packages.txt": 5}
    # The same patch at another path is the same plan, and another patch is not; what a base's age asks for may differ.
    for path, sha256, stale in (("/mine/a.patch", "1", False), ("a.patch", "2", True)):
        patched = replace(COMPILED, patches=(OwnFile(path=Path("here/a.patch"), sha256="1"),))
        named = {**patched.to_json(), "patches": [{"path": path, "sha256": sha256}], "fixes": []}
        beside.write_text(json.dumps(sidecar | {"plan": named}))
        with pytest.raises(Stale) if stale else nullcontext():
            assert compiled(patched, wheel).sha256 == sidecar["sha256"]
    for change, error in (
        ({"plan": {**COMPILED.to_json(), "copts": ["-O3"]}}, Stale),
        ({"tfbuild": "0"}, Stale),
        ({"sha256": "0"}, BadInput),
        ({"records": {}}, BadInput),
        ({"plan": {"source": {"path": 5}}}, Stale),
        ({"plan": 1}, BadInput),
    ):
        beside.write_text(json.dumps(sidecar | change))
        with pytest.raises(error):
            made.build(COMPILED)
    beside.write_text(json.dumps(sidecar | {"plan": {**COMPILED.to_json(), "compiler": "gcc-13", "copts": []}}))
    with pytest.raises(Stale, match=": another compiler, copts") as caught:
        made.build(COMPILED)
    assert caught.value.hint.startswith("--compiler gcc-13, as it was compiled; or leave out --reuse")
    beside.unlink()
    with pytest.raises(BadInput):
        made.build(COMPILED)
    assert len(engine.jobs) == 2


# --- a bundle ---------------------------------------------------------------------------------------------------------


def test_a_bundle_has_the_stages_that_download_and_a_build_takes_them_from_there(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    output, left = tmp_path / "bundle.tar", tmp_path / ".bundle.tar.0a1b2c3d"
    left.touch()  # by a run that was killed
    made, _ = maker(engine, tmp_path)

    def save(names: Any, path: Path) -> None:
        with pytest.raises(IndexError), locked(tmp_path / "build" / COMPILED.id, list[None]().pop):
            pytest.fail("another bundle that has this build removes the names of its images")
        MemoryEngine.save(engine, names, path)

    engine.save = save  # type: ignore[method-assign]
    made.bundle((COMPILED, OFFICIAL), output)
    assert not left.exists()
    listing = bundle.read_bundle(output).listing
    stages = ["system", "fetch", "packages", "system", "packages"]
    assert [stage for stage, *_ in engine.jobs] == stages
    assert [row.id for row in listing.builds] == [COMPILED.id, OFFICIAL.id]
    # The engine keeps what is built, without the names.
    assert not any(name.startswith("tfbuild-bundle:") for name in engine.names)
    made.bundle((COMPILED,), tmp_path / "wheel.tar", wheel_only=True)
    assert [stage for stage, *_ in engine.jobs[5:]] == ["system", "fetch"]
    # On a machine without a network.
    engine.images.registry, engine.images.rows = None, []
    again = bundle.read_bundle(output)
    made, said = maker(engine, tmp_path, bundle=again, network="none", verify=False)
    for build in (COMPILED, OFFICIAL, COMPILED):
        made.build(build)
        _, _, settings, _ = next(job for job in reversed(engine.jobs) if job[0] == "")
        (row,) = (row for row in listing.builds if row.id == build.id)
        assert settings.build_args.items() >= row.images.items()
        assert (settings.build_args["BASE_NAME"], settings.build_args["BASE_DIGEST"]) == (build.base_image, BASE)
        assert settings.network == "none"
    assert said.getvalue().count(f"load {output} ...") == 1
    with pytest.raises(BadMirror, match=r"is not for .*, but for "):
        made.build(chosen(cpu="avx2,fma"))
    with pytest.raises(BadMirror, match="lacks what an image needs"):
        maker(engine, tmp_path, bundle=bundle.read_bundle(tmp_path / "wheel.tar"), verify=False)[0].build(COMPILED)
    # One for a wheel's file has no official image to compare it with.
    alone = replace(again, listing=msgspec.structs.replace(listing, builds=listing.builds[:1]))
    with pytest.MonkeyPatch.context() as patch:
        compared: list[Any] = []

        def verify(_: object, ref: str, *, baseline: Any, **__: object) -> Report:
            compared.append(baseline)
            return report(image=engine.image(ref).id)

        patch.setattr(verifying, "verify", verify)
        maker(engine, tmp_path, bundle=alone, throughput=True, no_cache=True)[0].build(COMPILED)
    assert [why.partition(",")[0] for why in compared] == [image_name(official_build(COMPILED))]
    other = {name: ["sha256:0"] for name in listing.layers}
    damaged = replace(again, listing=msgspec.structs.replace(listing, layers=other))
    with pytest.raises(BadMirror, match="than it lists"):
        maker(engine, tmp_path, bundle=damaged, verify=False, no_cache=True)[0].build(COMPILED)
    builds = [msgspec.structs.replace(row, context="sha256:0") for row in listing.builds]
    older = replace(again, listing=msgspec.structs.replace(listing, builds=builds))
    with pytest.raises(BadMirror, match="with other options, or by another tfbuild"):
        maker(engine, tmp_path, bundle=older, verify=False)[0].build(COMPILED)


def test_a_bundle_that_ends_early_leaves_no_name_and_one_that_cannot_be_written_does_not_begin(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    made, _ = maker(engine, tmp_path)
    with pytest.raises(UsageError):
        made.bundle((COMPILED,), tmp_path / "file" / "x")
    assert engine.jobs == []

    def end(settings: BuildSettings) -> None:
        if len(engine.jobs) > 1:
            raise BuildFailed("boom")

    engine.works = end
    with pytest.raises(BuildFailed):
        made.bundle((COMPILED,), tmp_path / "x")
    assert len(engine.jobs) == 2
    assert not any(name.startswith("tfbuild-bundle:") for name in engine.names)


@each("said, error", [("archive/tar: invalid tar header", BadMirror), ("write /x: no space left on device", DiskFull)])
def test_a_bundle_that_the_engine_cannot_load_is_not_an_engine_that_is_missing(
    said: str, error: type[Exception], engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: object) -> None:
        raise docker.errors.ImageLoadError(said)

    output = tmp_path / "x"
    maker(engine, tmp_path)[0].bundle((COMPILED,), output)
    monkeypatch.setattr(engine.images, "rows", [])
    monkeypatch.setattr(engine.images, "load", load)
    with pytest.raises(error, match=said):
        maker(engine, tmp_path, bundle=bundle.read_bundle(output), verify=False)[0].build(COMPILED)
