"""Checks that start the image: an honest one passes each, and whoever changes one thing fails it.

The engine of these tests gives the right answers to every challenge, and a test spoils one of them.
"""

import json
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.context.test_planned import LABELS, planned
from tests.rows import each
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild import __version__
from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned
from tfbuild.engine import ContainerRun, Engine, Image, Process, Sandbox
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.in_container.smoke.records import ABSENT, Challenge, Faults, OneDnnConvolution, OperationAnswer, Part
from tfbuild.measure import probe
from tfbuild.verify import challenges
from tfbuild.verify.checks import guard, imports
from tfbuild.verify.checks.probes import NUMERICS, ONEDNN, TCMALLOC
from tfbuild.verify.verification import NO_START, Start, Verification, VerificationCheck

PROGRAM = "ab" * 32
CODE = frozenset({
    "/opt/tensorflow/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2",
    "/usr/local/lib/libtcmalloc_minimal.so.4",
})  # fmt: skip
PROCESS = Process(program=PROGRAM, code=CODE)
SANDBOX = Sandbox(processes=1, volume="v", source="/v", path=probe.ROOT)
STARTED = Start(
    outcome=probe.Outcome(
        records=(ENVIRONMENT, replace(TENSORFLOW, version="2.14.0", git="v2.14.0-rc1-21-g4dacf3f368e")),
        ended=judge.Ended(0, ""),
        output="",
    )
)
# A convolution as oneDNN of 2.14.0 prints it (tests/data/smoke/onednn-2.14.0.txt).
EXECUTED = (
    "onednn_verbose,info,cpu,runtime:threadpool,nthr:2\nonednn_verbose,info,cpu,isa:Intel AVX-512\n"
    "onednn_verbose,exec,cpu,convolution,{code},forward_training,src_f32,,alg:convolution_direct,"
    "mb{0}_ic{3}oc{4}_ih{1}oh{1}kh3sh1dh0ph1_iw{2}ow{2}kw3sw1dw0pw1,0.2\n"
)


@dataclass
class HonestEngine:
    """Answers each probe as TensorFlow would. `records`: by probe; `spoiled`: an answer that is off; `absent`: one that
    the build says it lacks; `stdout`, `code`: of a run in place of its own; `looked`: what the kernel shows; `asked`:
    the probes' environments."""

    records: Mapping[str, Sequence[object]]
    spoiled: str = ""
    absent: str = ""
    stdout: str | None = None
    code: int = 0
    hangs: bool = False
    looked: Process | None = PROCESS
    verbose: str = EXECUTED
    asked: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def run(
        self,
        ref: str,
        command: list[str],
        *,
        env: Mapping[str, str],
        stdin: bytes,
        look: Any,
        sandbox: Sandbox,
        **_: Any,
    ) -> ContainerRun:
        assert sandbox == SANDBOX
        if self.hangs:
            raise TimeoutError
        name = command[-1]
        self.asked[name] = env
        asked = json.loads(stdin)
        challenge = Challenge(asked["seed"], tuple(asked["sizes"]), tuple(asked["positions"]))
        sent = [*self.records[name], *self.answers(name, challenge)]
        if look:
            look(self.looked)
        stdout = "".join(f"{json.dumps(asdict(cast(Any, record)))}\n" for record in sent)
        stderr = self.verbose.format(*challenge.sizes, code="brgconv:avx512_core") if name == "onednn" else ""
        stdout = stdout if self.stdout is None else self.stdout
        return ContainerRun(exit_code=self.code, stdout=stdout, stderr=stderr, truncated=False)

    def answers(self, name: str, challenge: Challenge) -> Iterator[OperationAnswer]:
        for operation, row in challenges.OPERATIONS[name].items():
            values = [value * (1.01 if operation == self.spoiled else 1) for value in row.result(challenge)]
            lacks = operation == self.absent
            yield OperationAnswer(name=operation, values=() if lacks else tuple(values), note=ABSENT if lacks else "")


def engine(**more: Any) -> HonestEngine:
    records = {
        "start": STARTED.outcome.records,
        "faults": [Faults(per_tensor=3.0)],
        "onednn": [OneDnnConvolution(finite=True, openmp="")],
        "numerics": [Part(name=name, error=0.0) for name in judge.LIMITS],
    }
    return HonestEngine(**{"records": records, **more})


def verification(engine: object, plan: Planned | None = None, **more: Any) -> Verification:
    state: dict[str, Any] = {"start": STARTED, "process": PROCESS, "program": PROGRAM} | more
    return Verification(
        engine=cast(Engine, engine), ref="x", planned=plan or planned(), baseline="none", sandbox=SANDBOX, **state
    )


def judged(check: VerificationCheck, engine: HonestEngine, **more: Any) -> tuple[str, str]:
    result = check.run(verification(engine, **more))
    return result.status, result.detail


@pytest.mark.parametrize("check", [imports.CHECK, ONEDNN, TCMALLOC, NUMERICS], ids=lambda one: one.name)
def test_an_honest_image_passes(check: VerificationCheck) -> None:
    status, detail = judged(check, engine())
    assert status == "pass", detail


@pytest.mark.parametrize(
    ("check", "answer"),
    [(imports.CHECK, "product"), (ONEDNN, "convolution"), (TCMALLOC, "scale"), (NUMERICS, "softmax")],
    ids=lambda one: getattr(one, "name", one),
)
def test_a_wrong_answer_to_the_challenge_fails(check: VerificationCheck, answer: str) -> None:
    status, detail = judged(check, engine(spoiled=answer))
    assert status == "fail"
    assert detail.startswith(f"its answer to this run's challenge is wrong: {answer} is off by 0.01 (limit ")


@pytest.mark.parametrize("check", [imports.CHECK, ONEDNN, TCMALLOC, NUMERICS], ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stdout": "forged\n"}, "the probe's output cannot be trusted: "),
        ({"stdout": ""}, "the probe exited without output"),
        ({"stdout": "", "code": 139}, "killed by SIGSEGV"),
        ({"hangs": True}, "did not end"),
    ],
)
def test_a_probe_without_a_right_answer_fails(check: VerificationCheck, more: dict[str, Any], told: str) -> None:
    status, detail = judged(check, engine(**more))
    assert status == "fail"
    assert told in detail


@each("operation", ["quantized", "compiled"])
def test_a_build_of_somebody_s_may_lack_operations_and_the_official_wheel_may_not(operation: str) -> None:
    lacking, says = engine(absent=operation), f"it says that it has no {operation} operations"
    status, detail = judged(NUMERICS, lacking, plan=planned(wheel="source"))
    assert status == "pass"
    assert detail.endswith(f"parts within their limits; {says}")
    assert judged(NUMERICS, lacking) == ("fail", f"{says}, and the official wheel of 2.14.0 has them")
    assert judged(NUMERICS, engine(absent="softmax"))[0] == "fail"


# --- import -----------------------------------------------------------------------------------------------------------


def test_what_import_saw_is_there_for_later_checks() -> None:
    state = verification(engine(), start=Start(outcome=STARTED.outcome, why="not yet"), process=None)
    assert imports.CHECK.run(state).status == "pass"
    assert (state.start.why, state.process) == ("", PROCESS)
    assert state.start.environment == ENVIRONMENT
    assert state.start.tensorflow is not None
    assert state.start.tensorflow.version == "2.14.0"


@pytest.mark.parametrize(
    ("process", "told"),
    [
        (replace(PROCESS, program="cd" * 32), f"the process that answered does not run {probe.PYTHON}"),
        (
            replace(PROCESS, code=frozenset({"/lib/libc.so.6"})),
            "the process that answered has not loaded /opt/tensorflow",
        ),
    ],
)
def test_another_process_than_the_probe_says_fails(process: Process, told: str) -> None:
    status, detail = judged(imports.CHECK, engine(looked=process))
    assert status == "fail"
    assert detail.startswith(told)


def test_where_the_process_cannot_be_seen_the_report_says_so() -> None:
    status, detail = judged(imports.CHECK, engine(looked=None))
    assert status == "pass"
    assert detail.endswith("; its process cannot be inspected from here")


def test_without_tensorflow_later_checks_have_a_reason() -> None:
    only = engine(records={"start": [ENVIRONMENT]}, code=1)
    only.stdout = f"{json.dumps(asdict(ENVIRONMENT))}\n"
    state = verification(only)
    assert imports.CHECK.run(state).status == "fail"
    assert state.start.why == "TensorFlow does not import (see import)"
    assert NUMERICS.skip(state) == state.start.why
    other = verification(engine(), replace(planned(), python="3.12"))
    assert imports.CHECK.run(other).status == "fail"
    assert other.start.why == "", "it does import, though on another Python"


# --- oneDNN and TCMalloc ----------------------------------------------------------------------------------------------


def test_onednn_has_to_run_the_convolution_that_the_host_chose() -> None:
    replayed = EXECUTED.replace("ih{1}oh{1}", "ih999oh999")
    assert judged(ONEDNN, engine(verbose=replayed)) == (
        "fail", "oneDNN printed no convolution of the sizes that the host chose",
    )  # fmt: skip
    assert judged(ONEDNN, engine(verbose="onednn_verbose,info,cpu,runtime:threadpool\n")) == (
        "fail", "no convolution ran in oneDNN: it is off",
    )  # fmt: skip
    talkative = engine()
    judged(ONEDNN, talkative)
    variables = {"ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKLDNN_VERBOSE"}
    assert dict.fromkeys(variables, "1").items() <= talkative.asked["onednn"].items()


def test_tcmalloc_has_to_be_in_the_process_and_to_save_page_faults() -> None:
    without = replace(PROCESS, code=CODE - {"/usr/local/lib/libtcmalloc_minimal.so.4"})
    assert judged(TCMALLOC, engine(), process=without) == (
        "fail", "the process that imported TensorFlow has not loaded TCMalloc",
    )  # fmt: skip
    assert judged(TCMALLOC, engine(), process=None)[0] == "pass", "nobody could look"
    many = engine(records={"faults": [Faults(per_tensor=10241.0)]})
    status, detail = judged(TCMALLOC, many)
    assert status == "fail"
    assert "costs 10241 page faults" in detail
    assert judged(TCMALLOC, many, process=without)[1] == detail, "the first reason"
    assert {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DISABLE_MKL": "1"}.items() <= many.asked["faults"].items()


# --- the entry point --------------------------------------------------------------------------------------------------


@dataclass
class GuardedEngine:
    """Runs an image's entry point under this machine's shell, on the CPUs that it is given."""

    folder: Path
    script: str
    files: dict[str, bytes] | None = None
    cannot_replace: bool = False
    started: ContainerRun | None = None
    hangs_on: str | None = None
    unreadable: OSError | None = None
    version: str = __version__

    def image(self, ref: str) -> Image:
        return Image(id="sha256:0a", labels=LABELS, size=1, env=(), architecture="amd64", repo_digests=())

    def read_contents(self, ref: str, paths: Sequence[str], limit: int) -> dict[str, bytes]:
        assert (paths, limit > 2 * len(self.script)) == ([guard.PATH], True)
        if self.unreadable:
            raise self.unreadable
        return {guard.PATH: self.script.encode()} if self.files is None else self.files

    @contextmanager
    def sandbox(self, ref: str, files: Mapping[str, bytes], path: str) -> Iterator[Sandbox]:
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        yield Sandbox(processes=1, volume="v", source=str(self.folder), path=path)

    def run(self, ref: str, command: list[str], *, sandbox: Sandbox, timeout: float) -> ContainerRun:
        replaced = sandbox.over.get("/proc/cpuinfo")
        assert command[:2] == ["python", "-c"]
        if self.hangs_on == ("a trial" if replaced else "start"):
            raise TimeoutError
        if not replaced and self.started:
            return self.started
        if self.cannot_replace and replaced:
            return ContainerRun(exit_code=125, stdout="", stderr="cannot mount", truncated=False)
        if not replaced:
            return ContainerRun(exit_code=0, stdout=command[-1][7:-2] + "\n", stderr="", truncated=False)
        path = self.folder / f"entrypoint-{replaced}"
        path.write_text(self.script.replace("/proc/cpuinfo", f"{sandbox.source}/{replaced}"))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        done = subprocess.run(["dash", path, "true"], capture_output=True, text=True, check=False)
        return ContainerRun(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr, truncated=False)


def guarded(tmp_path: Path, **more: Any) -> tuple[Judgement, Verification]:
    plan = more.pop("plan", None) or replace(planned(), version=more.pop("version", __version__))
    script = more.pop("script", None) or dockerfile.render_entrypoint(plan.check(), header="# made by a test")
    state = verification(GuardedEngine(tmp_path, script, **more), plan)
    check = guard.CHECK.run(state)
    return check, state


def test_the_entry_point_of_an_honest_image_stops_on_every_lesser_cpu(tmp_path: Path) -> None:
    check, state = guarded(tmp_path)
    assert (check.status, state.unstartable) == ("pass", False), check.detail
    assert "starts Python" in check.detail


def test_an_entry_point_that_forgets_a_feature_fails(tmp_path: Path) -> None:
    honest = dockerfile.render_entrypoint(planned().check(), header="# made by a test")
    lax = re.sub(r"\bavx\b", "sse4_2", honest)
    assert lax != honest
    check, state = guarded(tmp_path, script=lax)
    assert check.status == "fail"
    assert f"{guard.PATH} is not what its labels ask for" in check.detail
    assert not state.unstartable
    older, _ = guarded(tmp_path, script=lax, version="0.0.1")
    assert (older.status, older.detail) == ("fail", "the entry point starts Python on a CPU that lacks avx")


def test_another_text_of_an_older_version_is_judged_by_what_it_does(tmp_path: Path) -> None:
    other = dockerfile.render_entrypoint(planned().check(), header="# made by a test") + "# more\n"
    check, _ = guarded(tmp_path, script=other, version="0.0.1")
    assert check.status == "warn"
    assert "tfbuild 0.0.1 made it" in check.detail


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"files": {}}, f"{guard.PATH} is missing"),
        ({"files": {guard.PATH: b"#!/bin/sh\nexec true\n"}}, f"{guard.PATH} is not what its labels ask for"),
    ],
)
def test_another_entry_point_fails(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    check, _ = guarded(tmp_path, **more)
    assert check.status == "fail"
    assert check.detail.startswith(told)


def run_of(stdout: str, code: int = 0, stderr: str = "", *, truncated: bool = False) -> ContainerRun:
    return ContainerRun(exit_code=code, stdout=stdout, stderr=stderr, truncated=truncated)


@pytest.mark.parametrize(
    ("started", "told"),
    [
        (run_of("", 86, "tfbuild: this CPU lacks avx\n"), "tfbuild: this CPU lacks avx"),
        (run_of("", 132), "Python does not start: killed by SIGILL"),
        (run_of("something else\n"), "the entry point does not start the command that it is given"),
        (run_of("", truncated=True), f"Python does not start: {probe.FLOOD}"),
    ],
)
def test_an_image_that_does_not_start_here_is_not_asked_further(
    started: ContainerRun, told: str, tmp_path: Path
) -> None:
    check, state = guarded(tmp_path, started=started)
    assert check.status == "fail"
    assert check.detail.startswith(told)
    assert state.unstartable
    assert imports.CHECK.skip(state) == NO_START


def test_an_engine_that_cannot_replace_the_description_leaves_it_to_the_text(tmp_path: Path) -> None:
    check, _ = guarded(tmp_path, cannot_replace=True)
    assert check.status == "pass"
    assert check.detail.endswith("so it was not tried on lesser CPUs")
    replaced, _ = guarded(tmp_path, cannot_replace=True, version="0.0.1", files={})
    assert replaced.status == "fail", "neither its text nor what it does speaks for it"


def test_an_entry_point_that_hangs_fails(tmp_path: Path) -> None:
    check, state = guarded(tmp_path, hangs_on="a trial")
    assert (check.status, check.detail) == ("fail", "the entry point does not end in time")
    assert not state.unstartable
    check, state = guarded(tmp_path, hangs_on="start")
    assert (check.status, state.unstartable) == ("fail", True)
    assert "did not end" in check.detail


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(27, "File too large"), "File too large"), (OSError("gone"), "gone")]
)
def test_an_entry_point_that_cannot_be_read_fails(error: OSError, reason: str, tmp_path: Path) -> None:
    check, _ = guarded(tmp_path, unreadable=error)
    assert check.status == "fail"
    assert check.detail.startswith(f"{guard.PATH} cannot be read: {reason}; `invoke build` makes an image")


def test_labels_that_this_version_cannot_render_fail_with_the_reason(tmp_path: Path) -> None:
    script = dockerfile.render_entrypoint(planned().check(), header="# made by a test")
    odd = replace(planned(), features=frozenset({"nosuch"}), version=__version__)
    check, _ = guarded(tmp_path, script=script, plan=odd)
    assert check.status == "fail"
    assert check.detail.startswith("no entry point can be rendered for its labels: unknown CPU feature 'nosuch'")
