"""Every option of `build` is a field: no value breaks out, no two images share a name, and no command loses it."""

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.context.test_injection import PRINTABLE, shape
from tests.cpu.machines import machine
from tests.plan.test_source import DOUBLE, archive
from tests.rows import each
from tfbuild.cli import VERBS, command_line, planning
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.errors import TfbuildError
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run, run_of
from tfbuild.plan import Build, Request, RunRequest, source
from tfbuild.util import options
from tfbuild.util.options import declared
from tfbuild.verify import labelled_build
from tfbuild.verify.checks import configuration

USUAL: Mapping[str, Any] = {
    "target": "mkl", "release": "2.20.0", "cpu": "x86-64-v3", "compiler": "clang-18", "platform": "linux/amd64",
}  # fmt: skip
# Another value of each option, and what it needs beside it; any other option takes a word, or is a switch.
VALUES: Mapping[str, Any] = {
    "target": "cpu", "release": "2.19.1", "python": "3.12", "cpu": "sapphirerapids", "cpuinfo": "machine",
    "compiler": "gcc-13",
    "prefer_vector_width": "256", "platform": "linux/arm64", "wheel": "official", "threading": "openmp",
    "bazel": "7.4.2", "compute_capabilities": "8.0", "cuda": "12.8", "cudnn": "9.7",
    "bazel_flag": ("--copt=-O3",),
    "source": "tree", "source_sha256": "{SHA256}", "patch": ("fix.patch",), "override_repository": ("eigen=eigen",),
    "hermetic_python": "double.tar.gz", "base": "python:3.13-trixie", "system_lib": ("curl",),
    "configure": ("TF_ENABLE_XLA=0",), "without_fix": ("gcc12-avxvnniint8",),
}  # fmt: skip
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "cpuinfo": {"cpu": "host"}, "platform": {"cpu": "armv8.2-a"}, "base": {"python": "3.13"},
    "wheel": {"cpu": "", "compiler": ""}, "compute_capabilities": {"target": "cuda"}, "cuda": {"target": "cuda"},
    "cudnn": {"target": "cuda"}, "source": {"release": "2.20.0", "compiler": "gcc-12"},
    "source_sha256": {"release": "2.20.0", "compiler": "gcc-12", "source": "double.tar.gz"},
    "threading": {"release": "2.15.1", "compiler": "gcc-12"}, "without_fix": {"compiler": "gcc-12"},
}  # fmt: skip
# With which the plain build is made, where that needs a value too.
PLAIN: Mapping[str, Mapping[str, Any]] = {
    "cpuinfo": {"cpu": "x86-64-v3"},
    "platform": {"cpu": "x86-64-v3"},
    "wheel": {"cpu": "avx"},
    "source_sha256": {"source_sha256": "{sha256}"},
}
# What a value may have around it: an answer to configure.py, a tag, a package, a file or a folder of that name.
FORMS = ("{}", "A={}", "x:{}", "png=zlib1g{}", "./{}", "x=./{}")
HOSTILE = (
    "1; rm -rf /", "; touch x", " LD_PRELOAD=/tmp/evil.so", "$(touch x)", "a b", "'", '"', "\\", "--privileged",
    "{{ x }}", "x\nRUN touch x", "\x1b[2J",
)  # fmt: skip
# Valid values of the options of a run, and what they need beside them; a switch needs none.
RUN_VALUES: Mapping[str, str] = {
    "engine": "tcp://127.0.0.1:1", "ca_cert": "ca.pem", "mirror": "http://127.0.0.1:1/x", "network": "host",
    "jobs": "2", "time_limit": "1h", "need_disk": "5", "remote_cache": "grpc://127.0.0.1:1", "remote_executor": "grpc://127.0.0.1:1",
    "remote_instance": "main", "remote_header_file": "headers", "remote_client_cert": "ca.pem",
    "remote_client_key": "ca.pem", "remote_property": "a=b", "remote_fallback": "no", "reuse": "tfbuild:x",
}  # fmt: skip
REMOTE = {"remote_cache": "grpc://127.0.0.1:1"}
# Each needs the other.
CREDENTIALS = ("remote_client_cert", "remote_client_key")
RUN_BESIDE: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("remote_instance", "remote_header_file", "remote_property", "remote_readonly"), REMOTE),
    "remote_client_cert": {**REMOTE, "remote_client_key": "ca.pem"},
    "remote_client_key": {**REMOTE, "remote_client_cert": "ca.pem"},
    "remote_fallback": {"remote_executor": "grpc://127.0.0.1:1"},
}
OPTIONS = {name.replace("-", "_"): row for name, row in declared(Request).items()}
RUN_OPTIONS = {name.replace("-", "_"): row for name, row in declared(RunRequest).items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the files that the values name, and with files that have hostile names."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "machine").write_text(machine("unknown-sapphirerapids").cpuinfo())
    shutil.copytree(DOUBLE, folder / "tree")
    archive(folder)
    (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (folder / "headers").write_text("Authorization=x\n")
    (folder / "fix.patch").write_text("--- a/x\n+++ b/x\n")
    for name in ("eigen", "harmless", *PRINTABLE):
        if "/" not in name:
            (folder / name).mkdir()
            (folder / name / "WORKSPACE").touch()
            (folder / name / "BUILD").touch()
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def value_of(name: str) -> Any:
    """Another valid value of an option than its default one."""
    row = OPTIONS[name]
    return VALUES.get(name, True if row.switch else ("word",) if row.repeatable else "word")


def requested(**given: Any) -> Request:
    digest = source.digest(Path("double.tar.gz")) if "source_sha256" in given else ""
    texts = {"{sha256}": digest, "{SHA256}": digest.upper()}
    return Request(**{**USUAL, **{name: texts.get(str(value), value) for name, value in given.items()}})


def planned(**given: Any) -> Build:
    return planning.select(requested(**given))


def pair(name: str) -> tuple[Build, Build]:
    """Two builds that differ in this option alone."""
    beside = BESIDE.get(name, {})
    return planned(**{**beside, **PLAIN.get(name, {})}), planned(**{**beside, name: value_of(name)})


# --- hostile values ---------------------------------------------------------------------------------------------------


def texts_of(name: str, value: str) -> list[str]:
    """Texts with `value` in them: in the forms that some option takes, and behind the option's own valid value."""
    valid = value_of(name)
    text = valid[0] if isinstance(valid, tuple) else valid
    return [form.replace("{}", value) for form in (*FORMS, f"{text}{{}}", f"{text} {{}}")]


def made(name: str, text: str) -> Build | None:
    given: Any = (text,) if OPTIONS[name].repeatable else text
    try:
        return planned(**{**BESIDE.get(name, {}), name: given})
    except TfbuildError:
        return None


@cache
def plain_shape(name: str, harmless: str) -> list[tuple[str, ...]]:
    # Of some options no text with "harmless" in it is valid; a Bazel flag is one with two hyphens before it.
    return [*shape(made(name, harmless) or made(name, "--harmless") or pair(name)[1])]


@each("name", [name for name, row in OPTIONS.items() if not row.switch])
@each("value", HOSTILE)
def test_no_value_breaks_out_of_any_file(name: str, value: str) -> None:
    """It is refused, or stays one quoted word: the files have the structure that a harmless value gives them.

    tests/context/test_injection.py has more values.
    """
    for hostile, harmless in zip(texts_of(name, value), texts_of(name, "harmless"), strict=True):
        if (build := made(name, hostile)) is not None:
            assert [*shape(build)] == plain_shape(name, harmless), hostile


# --- identifiers ------------------------------------------------------------------------------------------------------


def without_heads(build: Build) -> dict[str, str]:
    """The files but for their comments, which name the command that wrote them."""
    files = dockerfile.files(build)
    return {name: re.sub(r"^#.*\n", "", text, flags=re.MULTILINE) for name, text in files.items()}


@each("name", OPTIONS)
def test_a_neutral_option_changes_no_file_and_any_other_one_the_identifier(name: str) -> None:
    (plain, other), row = pair(name), OPTIONS[name]
    if row.identifier != "neutral":
        assert plain.id != other.id
    elif name == "base":  # labels name it, and an image's key has its digest
        own, named = without_heads(plain), without_heads(other)
        for text, build in ((own, plain), (named, other)):
            text["Dockerfile"] = text["Dockerfile"].replace(build.base_image, "BASE")
            text["Dockerfile"] = re.sub(r"^LABEL (?:.*\\\n)*.*\n", "", text["Dockerfile"], flags=re.MULTILINE)
        assert (own, plain.id) == (named, other.id)
    else:
        assert (without_heads(plain), plain.id) == (without_heads(other), other.id)
    if row.identifier == "fingerprint" and not row.compiles:
        official = {"wheel": "official", "cpu": "", "compiler": ""}
        assert planned(**official).id != planned(**official, **{name: value_of(name)}).id


@each("name", OPTIONS)
def test_an_image_s_labels_agree_and_give_its_whole_environment_again(name: str) -> None:
    """Verification compares an image with what its labels give: a variable beside that would fail each image."""
    for build in pair(name):
        wanted, labels = dockerfile.environment(build), labels_of(build)
        labelled = labelled_build("x", labels, build.platform.partition("/")[2])
        assert [*configuration.contradictions(labels, labelled)] == []
        assert dockerfile.environment(labelled) == wanted
        stage = dockerfile.files(build)["Dockerfile"].rpartition("\nFROM ")[2]
        assert stage.count("\nENV ") == 1
        (variables,) = re.findall(r"^ENV PATH=.*\n((?:.*\\\n)*.*\n)", stage, re.MULTILINE)
        assert {line.strip().partition("=")[0] for line in variables.splitlines()} == {*wanted}


def test_the_same_text_in_two_options_makes_two_identifiers() -> None:
    assert planned(config=("--x",)).id != planned(bazel_flag=("--x",)).id


# --- the command that makes a build again -----------------------------------------------------------------------------


def read_again(words: list[str], kind: type[Request] | type[RunRequest]) -> Request | RunRequest:
    ((verb, values),) = command_line.calls(words, VERBS)
    return options.make(kind, verb.settled(values))


@each("name", OPTIONS)
def test_the_command_in_a_dockerfile_makes_the_same_build(name: str) -> None:
    for build in pair(name):
        command = dockerfile.command(build)
        again = read_again(shlex.split(command)[1:], Request)
        assert again == build.resolved()
        rebuilt = planning.select(options.make(Request, vars(again)))
        assert replace(rebuilt, request=build.request, notes=build.notes) == build
        assert dockerfile.files(rebuilt) == dockerfile.files(build)


def run_request(name: str, value: str) -> RunRequest:
    row = RUN_OPTIONS[name]
    return options.make(RunRequest, {name: True if row.switch else [value, value] if row.repeatable else value})


@each("name", RUN_OPTIONS)
@each("value", ("word", "-x", "1; rm -rf /", *PRINTABLE))
def test_the_options_of_a_run_are_read_again_as_they_were(name: str, value: str) -> None:
    request = run_request(name, value)
    assert read_again(["build", *options.words(request)], RunRequest) == request


# --- runs -------------------------------------------------------------------------------------------------------------


@cache
def digest_of(run: Run, folder: Path) -> str:
    return Maker(run=replace(run, work=folder / "work")).render(planned()).digest


@each("name", RUN_OPTIONS)
def test_no_option_of_a_run_reaches_an_image(name: str, folder: Path) -> None:
    """The files are the same: an option that changes them belongs to `Request`."""
    row = RUN_OPTIONS[name]
    value: Any = True if row.switch else (RUN_VALUES[name],) if row.repeatable else RUN_VALUES[name]
    run = run_of(RunRequest(**{**RUN_BESIDE.get(name, {}), name: value}), None)
    usual = run_of(RunRequest(**RUN_BESIDE.get(name, {})), None) if name not in CREDENTIALS else Run()
    assert name == "ca_cert" or replace(run, started=0) != replace(usual, started=0), "the value changes no run"
    assert digest_of(run, folder) == digest_of(Run(started=0), folder)


# --- what is declared -------------------------------------------------------------------------------------------------


# The options that say something of an official wheel's image too.
OF_OFFICIAL = ("target", "release", "python", "platform", "cpu", "cpuinfo", "wheel", "base", "with_headers")


def test_an_option_is_declared_once() -> None:
    names = [field.name for kind in (Request, RunRequest) for field in fields(kind)]
    assert len(names) == len(set(names))
    assert [name for name, row in OPTIONS.items() if not row.compiles] == [*OF_OFFICIAL]
    build = VERBS["build"]
    assert {name.replace("_", "-") for name in names} == set(build.settings)
    assert set(build.options) - set(build.settings) == {"options", "dry-run", "json"}
