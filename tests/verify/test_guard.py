"""The entry point of an image is the one of its labels, and stops on a CPU that lacks any of its features."""

from dataclasses import replace

from tests.rows import each
from tests.verify.images import FILES, PLANNED, ImageEngine, run, verification
from tfbuild import __version__, plan
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.in_container.smoke.judge import GUARD_EXIT
from tfbuild.plan import Build, Request
from tfbuild.verify import NOT_STARTED, labelled_build
from tfbuild.verify.checks import CHECKS, guard
from tfbuild.verify.report import NO_START

REQUESTS = {
    "an official wheel": Request(release="2.21.0", target="mkl", wheel="official"),
    "a level": Request(release="2.14.1", target="mkl", cpu="x86-64-v4"),
    "CUDA": Request(release="2.16.2", target="cuda", cpu="x86-64-v3", compute_capabilities="8.0,9.0"),
    "features that no kernel prints": Request(release="2.20.0", target="cpu", cpu="graniterapids", compiler="clang-19"),
    "aarch64": Request(release="2.20.0", target="cpu", cpu="neoverse-v2", platform="linux/arm64"),
}
SCRIPT = FILES[guard.PATH].decode()  # type: ignore[union-attr]


def of(request: Request) -> tuple[str, Build]:
    """Return the entry point of a build, and its labels."""
    build = plan.select(request, None)
    labelled = labelled_build("x", labels_of(build), build.platform.removeprefix("linux/"))
    return dockerfile.files(build)["entrypoint.sh"], labelled


@each("request_", REQUESTS.values())
def test_the_labels_alone_tell_the_entry_point(request_: Request) -> None:
    script, labelled = of(request_)
    rendered = dockerfile.render_entrypoint(labelled, header="#")
    assert guard.same(script.encode(), rendered)
    assert not guard.same(script.encode(), rendered.replace(labelled.id, "2.0.0-x"))


@each(
    "old, new, same",
    [
        ("compare avx", "compare sse2 # avx", False),
        ("exit 86", "true", False),
        ("#!/bin/bash -p\n", "#!/bin/bash -p\nexec python; ", False),
        ("set -eu", "set -eu\n\n", False),
        ('exec "$@"\n', 'exec "$@"', False),
        # Only a comment may stand where the command is named that wrote it.
        (SCRIPT.split("\n")[1], "# any other command", True),
        (SCRIPT.split("\n")[1], 'exec "$@"', False),
    ],
)
def test_any_other_script_is_told_from_it(old: str, new: str, same: bool) -> None:
    assert old in SCRIPT
    assert guard.same(SCRIPT.replace(old, new, 1).encode(), SCRIPT) is same


# --- the check --------------------------------------------------------------------------------------------------------


def judged(script: str = SCRIPT, version: str = __version__, **more: object) -> tuple[str, str, str]:
    engine = ImageEngine(files={guard.PATH: script.encode()}, **more)  # type: ignore[arg-type]
    state = verification(engine, version=version)
    check = guard.CHECK.run(state)
    return check.status, check.detail, state.why


LAX = SCRIPT.replace(f" {guard.lacking(PLANNED)}", "")


@each(
    "script, version, status, told",
    [
        (SCRIPT, __version__, "pass", "starts Python"),
        (SCRIPT + "# more\n", __version__, "fail", f"{guard.PATH} does not match the image's labels"),
        (SCRIPT + "# more\n", "0.0.1", "warn", "tfbuild 0.0.1 made it, so it was judged only by what it does"),
        (LAX, "0.0.1", "fail", f"the entry point starts Python on a CPU that lacks {guard.lacking(PLANNED)}"),
        (SCRIPT.replace("exit 86", "exit 1"), "0.0.1", "fail", "the entry point exits with code 1 on a CPU"),
        (SCRIPT.replace("this CPU lacks$lacking", "no"), "0.0.1", "fail", "the entry point does not name"),
        ("#!/bin/sh\nexec true\n", "0.0.1", "fail", "does not start the command that it is given"),
    ],
)
def test_another_text_is_excused_only_by_another_version_and_by_what_it_does(
    script: str, version: str, status: str, told: str
) -> None:
    found, detail, why = judged(script, version)
    assert found == status
    assert told in detail
    assert why == (NO_START if "command" in told else "")


@each(
    "every, told",
    [
        (run(stderr="tfbuild: this CPU lacks avx512f, and ...", code=GUARD_EXIT), "tfbuild: this CPU lacks avx512f"),
        (run(code=139), "Python does not start: killed by SIGSEGV"),
        (run(truncated=True), "Python does not start: it printed more than 8 MiB"),
        (TimeoutError(), "Python does not start: did not end within 120 s"),
    ],
)
def test_an_image_that_does_not_start_is_a_reason_to_skip_what_needs_it(every: object, told: str) -> None:
    status, detail, why = judged(every=every)
    assert (status, why) == ("fail", NO_START)
    assert detail.startswith(told)


def test_an_image_that_hangs_is_started_once() -> None:
    """No other check starts it: each would wait again."""
    engine = ImageEngine(every=TimeoutError())
    state = verification(engine, start=NOT_STARTED)
    assert guard.CHECK.run(state).status == "fail"
    assert len(engine.asked) == 1
    assert {check.name for check in CHECKS if not check.skip(state)} == {"configuration", "guard", "isa", "code"}


def test_labels_for_which_nothing_can_be_rendered_are_a_reason() -> None:
    odd = replace(PLANNED.instruction_set, features=("nosuch",))
    state = verification(planned=replace(PLANNED, instruction_set=odd))
    check = guard.CHECK.run(state)
    assert check.status == "fail"
    assert "no entry point can be rendered for the image's labels" in check.detail
