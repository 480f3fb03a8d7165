"""A build's names and baselines on an engine that other runs use too."""

import io
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.cpu.machines import machine
from tests.facts import newest
from tests.pipeline import test_wheel_audit as audited
from tests.pipeline.memory_engine import BASE, COMPILED, MemoryEngine, holding
from tests.pipeline.memory_engine import engine as engine
from tests.pipeline.memory_engine import maker as on_memory
from tests.rows import each
from tests.verify.test_report import report
from tfbuild import cpu, plan
from tfbuild.context.labels import image_name, labels_of
from tfbuild.errors import BuildFailed, EngineMissing, UsageError
from tfbuild.facts import release_table, releases
from tfbuild.pipeline import base_image
from tfbuild.pipeline import maker as making
from tfbuild.pipeline import wheel as wheels
from tfbuild.pipeline.build_context import Base
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Build, Request
from tfbuild.util.progress import Progress
from tfbuild.verify import Baseline
from tfbuild.verify import session as verifying


def verifier(engine: Any, folder: Path, **run: Any) -> Maker:
    made = Maker(run=Run(work=folder, reports=folder / "reports", **run), progress=Progress(io.StringIO()))
    made.__dict__["engine"] = engine
    return made


def baseline_of(build: Build, engine: Any, folder: Path) -> Baseline | str:
    return verifier(engine, folder).baseline("x", build, lambda wheel: pytest.fail(f"{wheel.id} is made"))


def test_a_baseline_stays_valid_when_another_run_renames_it(tmp_path: Path) -> None:
    compiled = plan.select(Request(target="mkl", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
    official = plan.official_build(compiled)
    assert official is not None
    assert (official.release, official.python, official.wheel.kind) == ("2.20.0", compiled.python, "official")
    unverified = image_name(official, "-unverified")
    engine = holding({unverified: "sha256:1"})
    baseline = baseline_of(compiled, engine, tmp_path)
    assert isinstance(baseline, Baseline)
    engine.tag(unverified, image_name(official))
    engine.untag(unverified)
    # It is run by its id, which stays, and reported by the name that it had.
    assert (baseline.ref, baseline.id) == (unverified, "sha256:1")
    assert baseline.id in engine.names.values()


def test_a_release_without_an_official_wheel_yet_is_compared_with_the_newest_that_has_one(tmp_path: Path) -> None:
    name = f"tfbuild:{newest.official(python='3.13')}"
    baseline = baseline_of(replace(COMPILED, release="2.99.0", python="3.13"), holding({name: "sha256:1"}), tmp_path)
    assert isinstance(baseline, Baseline)
    assert baseline.ref == name
    # Of a newer Python, with that of another one.
    name = f"tfbuild:{newest.official()}"
    baseline = baseline_of(replace(COMPILED, release="2.99.0", python="3.14"), holding({name: "sha256:1"}), tmp_path)
    assert isinstance(baseline, Baseline)
    assert baseline.ref == name
    # With a candidate of its own, if there is one; no image of its official wheel is suggested, which may not exist.
    candidates = msgspec.structs.replace(release_table.table(), candidates=("2.98.0rc0", "2.99.0rc0"))
    with release_table.using(candidates):
        own = replace(COMPILED, release="2.99.0", python="3.13")
        candidate = holding({f"tfbuild:2.99.0rc0-mkl-py3.13-{newest.ISA}": "sha256:1"})
        assert isinstance(baseline_of(own, candidate, tmp_path), Baseline)
        assert plan.alternatives(own) == ()
    assert not [name for name in release_table.table().candidates if releases.known(str(release_table.base(name)))]
    # An image's labels say what they like.
    maker, said = on_memory(holding({name: "sha256:1"}), tmp_path, throughput=True)
    assert maker.baseline("x", replace(COMPILED, release="1.15.0"), str) == verifying.NO_BASELINE
    assert "1.15.0" in said.getvalue()


@each(
    "there, used",
    [
        # One of another platform does not run there.
        ({"tfbuild-base:bookworm": "arm64", "tfbuild-base:trixie": "amd64", "other:1": "amd64"}, "tfbuild-base:trixie"),
        ({"tfbuild-base:bookworm": "arm64"}, "made-now"),
    ],
)
def test_the_engine_s_cpu_is_read_in_a_base_that_it_has_else_in_a_new_one(there: dict[str, str], used: str) -> None:
    ran: list[str] = []

    def run(image: str, command: list[str], **_: object) -> Any:
        assert command[:2] == ["sh", "-c"]
        ran.append(image)
        return SimpleNamespace(stdout=machine("rhel7-haswell").cpuinfo())

    images = {name: SimpleNamespace(tags=(name,), architecture=architecture) for name, architecture in there.items()}
    engine = SimpleNamespace(
        platform="linux/amd64", labelled=lambda _: [*images.values()], image=images.__getitem__, run=run
    )
    with pytest.MonkeyPatch.context() as patch:
        new = Base(reference="made-now", name="x", digest="sha256:1")
        patch.setattr(base_image, "resolve", lambda *_, **__: new)
        assert "avx2" in verifier(engine, Path()).cpu().features
    assert ran == [used]


def test_a_missing_official_image_is_built_unverified_and_named(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was requested of the build itself."""
    monkeypatch.setattr(verifying, "verify", lambda engine, ref, **_: report(image=engine.image(ref).id))
    maker, said = on_memory(engine, tmp_path, throughput=True, reverify=True, no_cache=True)
    assert maker.build(COMPILED).image == image_name(COMPILED)
    official = plan.official_build(COMPILED)
    assert official is not None
    assert [(tag, settings.no_cache) for _, tag, settings, _ in engine.jobs] == [
        (image_name(COMPILED, "-unverified"), True),
        (image_name(official, "-unverified"), False),
    ]
    assert f"building {image_name(official)} to compare with\n" in said.getvalue()
    assert engine.exists(image_name(official, "-unverified"))
    assert not engine.exists(image_name(official))


def test_an_exported_wheel_is_this_compile_s_and_not_an_earlier_one_s(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"tensorflow_cpu-{COMPILED.release}-cp313-cp313-linux_x86_64.whl"
    engine.made["export"] = {name: b"new", "build.txt": b"builder=sha256:0\n", "packages.txt": b""}
    left = tmp_path / "build" / COMPILED.id / "wheel"
    left.mkdir(parents=True)
    (left / "old.whl").write_bytes(b"old")
    # It is not a real wheel, which is noticed once it is there.
    with pytest.raises(BuildFailed, match=f"auditwheel cannot read {name}"):
        on_memory(engine, tmp_path)[0].wheel(COMPILED, tmp_path / "dist")
    for other in (name.replace(COMPILED.release, "2.14.0"), name.replace("cp313", "cp312")):
        engine.made["export"] = {other: b"new"}
        with pytest.raises(BuildFailed, match=f"the compile made {other}, which is not TensorFlow") as refusal:
            on_memory(engine, tmp_path)[0].wheel(COMPILED, tmp_path / "other")
        assert Path(refusal.value.hint.rpartition(" ")[2]).read_bytes() == b"new"
    engine.made["export"] = {name: b"new", "build.txt": b"builder=sha256:0\n", "packages.txt": b""}
    recorded = json.loads(audited.RECORDED.read_text())
    monkeypatch.setattr(wheels, "audit_wheel", lambda path, *_: wheels.read_audit(recorded, path))
    made, said = on_memory(engine, tmp_path)
    exported = made.wheel(COMPILED, tmp_path / "again")
    sidecar = json.loads(exported.sidecar.read_text())
    assert (sidecar["base"], sidecar["host"], sidecar["bazel"], sidecar["libtensorflow"]) == (BASE, None, None, None)
    assert said.getvalue().endswith("\n".join(wheels.audit_wheel(exported.wheel).lines(exported.wheel)) + "\n")
    assert [file.name for file in (tmp_path / "dist").iterdir()] == [name]
    # Of another CPU's, it has the same name.
    wider = plan.select(replace(COMPILED.request, cpu="x86-64-v4"), None)
    before = exported.wheel.read_bytes(), len(engine.jobs)
    with pytest.raises(UsageError, match=f"{name} is the wheel of {COMPILED.id}"):
        made.wheel(wider, tmp_path / "again")
    assert (exported.wheel.read_bytes(), len(engine.jobs)) == before
    # Another run may write it during the compile.
    engine.works = lambda _: shutil.copytree(tmp_path / "again", tmp_path / "late", dirs_exist_ok=True)
    with pytest.raises(UsageError, match=f"{name} is the wheel of {COMPILED.id}"):
        made.wheel(wider, tmp_path / "late")
    engine.works = lambda _: None
    assert made.wheel(COMPILED, tmp_path / "again").wheel == exported.wheel
    for plan_of in ({}, {"release": COMPILED.release}):
        exported.sidecar.write_text(json.dumps(sidecar | {"plan": plan_of}))
        assert made.wheel(wider, tmp_path / "again").wheel == exported.wheel, "of nobody that is known"
    for release, replaced in (("2.15.1", True), ("2.16.1", False)):
        cuda, mkl = (
            plan.select(replace(wider.request, target=target, release=release, python="3.11"), None)
            for target in ("cuda", "mkl")
        )
        exported.sidecar.write_text(json.dumps(sidecar | {"plan": cuda.to_json()}))
        with pytest.raises(UsageError, match=f"the wheel of {cuda.id}") if replaced else nullcontext():
            wheels.check_output(tmp_path / "again", mkl)


def test_a_compile_needs_disk_for_itself_and_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("tfbuild.engine.faults.require_free", lambda _, needed, hint: asked.append(needed))
    maker = Maker(run=Run(work=tmp_path))
    monkeypatch.setitem(maker.__dict__, "engine", holding({}))
    maker.need_disk(plan.select(Request(target="mkl", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None))
    assert asked == [int(1.25 * 17.6e9) + (8 << 30)]


@pytest.mark.parametrize(
    ("wheel", "throughput", "there", "compared"),
    [
        ("official", True, False, "x"),  # without its tuning
        ("official", False, False, "it was left out (--no-throughput)"),
        ("source", True, False, "{official}, which it is compared with, is not on this engine: invoke build --"),
        # Where another run made it, it is used.
        ("source", True, True, "{official}"),
    ],
)
def test_a_verification_builds_nothing_and_says_what_it_compares_with_or_why_it_does_not(
    wheel: str, throughput: bool, there: bool, compared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = COMPILED if wheel == "source" else plan.official_build(COMPILED)
    image = SimpleNamespace(id="sha256:1", labels=labels_of(build), architecture="amd64")
    found: list[Any] = []
    monkeypatch.setattr(verifying, "verify", lambda *_, baseline, **__: found.append(baseline))
    monkeypatch.setattr(Maker, "_write", lambda *_: None)
    engine = SimpleNamespace(image=lambda _: image, exists=lambda _: there)
    verifier(engine, tmp_path, throughput=throughput).verify("x")
    (baseline,) = found
    said = baseline.ref if isinstance(baseline, Baseline) else baseline
    if said == "x":
        assert baseline.env == build.untuned
    assert said.startswith(compared.format(official=image_name(plan.official_build(COMPILED))))


@pytest.mark.parametrize(("verify", "local", "told"), [(True, True, 1), (False, True, 0), (True, False, 0)])
def test_a_build_for_a_cpu_that_this_machine_is_not_says_so_before_it_begins(
    verify: bool, local: bool, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "detect", lambda: cpu.parse(machine("rhel7-haswell").cpuinfo()))
    for step in ("_image", "_proven", "_verified"):
        monkeypatch.setattr(Maker, step, lambda *_, **__: None)
    stream = io.StringIO()
    for name in ("x86-64-v3", "x86-64-v4"):
        request = Request(target="mkl", release="2.20.0", cpu=name, platform="linux/amd64")
        run = Run(base="auto", work=tmp_path, reports=tmp_path, verify=verify)
        maker = Maker(run=run, progress=Progress(stream))
        maker.__dict__["engine"] = SimpleNamespace(local=local)
        maker.build(plan.select(request, None))
    said = [line for line in stream.getvalue().splitlines() if "this machine lacks" in line]
    assert len(said) == told
    for line in said:
        assert line.startswith("this machine lacks avx512bw avx512cd avx512dq avx512f avx512vl: ")
        assert "--no-verify" in line


def gone(*_: object) -> None:
    raise EngineMissing("no container engine answers")


@pytest.mark.parametrize("ends", ["tag", "image", "untag"])
@pytest.mark.parametrize(("verdict", "suffix"), [("pass", ""), ("fail", "-failed")])
def test_a_tagging_that_the_engine_s_end_broke_off_is_done_by_the_next_run(
    ends: str, verdict: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = plan.select(Request(wheel="official", release="2.20.0", platform="linux/amd64"), None)
    unverified, final = image_name(build, "-unverified"), image_name(build, suffix)
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: report(verdict, image="sha256:1"))
    engine = holding({unverified: "sha256:1", "mine:1": "sha256:1", "tfbuild:other": "sha256:2"})
    names = verifier(engine, tmp_path, throughput=False)
    with monkeypatch.context() as patch:
        patch.setattr(engine, ends, gone)
        with pytest.raises(EngineMissing):
            names._verified(build, unverified)
    assert not (tmp_path / "reports").exists(), "a report is that of a named image"
    assert engine.names[unverified] == "sha256:1"

    # As build() goes on: from the final name where the image has it, else from the one that the builder gives.
    found = final if final in engine.names and not suffix else unverified
    assert names._verified(build, found).image == final
    assert engine.names == {final: "sha256:1", "mine:1": "sha256:1", "tfbuild:other": "sha256:2"}
    assert len([*(tmp_path / "reports").iterdir()]) == 3
    # The unverified name of another image stays: that of a build with --no-verify, while --reverify proves this one.
    engine.tag("tfbuild:other", unverified)
    names._verified(build, final)
    assert engine.names[unverified] == "sha256:2"
    # A run in another folder gives it away during the verification: what was verified gets its name.
    assert names._verified(build, unverified).image == final
    assert (engine.names[final], engine.names[unverified]) == ("sha256:1", "sha256:2")


GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "fork/tfbuild"
}  # fmt: skip


@pytest.mark.parametrize(
    ("env", "source"),
    [
        ({}, ""),
        (GITHUB, "https://github.com/fork/tfbuild"),
        (GITHUB | {"TFBUILD_IMAGE_SOURCE": "https://github.com/us/other"}, "https://github.com/us/other"),
        (GITHUB | {"TFBUILD_IMAGE_SOURCE": ""}, "https://github.com/fork/tfbuild"),
        ({"GITHUB_REPOSITORY": "fork/tfbuild"}, ""),
    ],
)
def test_an_image_names_the_repository_that_builds_it(env: dict[str, str], source: str) -> None:
    expected = {"org.opencontainers.image.source": source} if source else {}
    assert making.given_at_build(env) == expected
