"""Verification on real images: the true ones pass, and each false one fails its own check and no other."""

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tfbuild import cpu, plan
from tfbuild.cpu import isa
from tfbuild.engine import Engine
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.records import Report
from tfbuild.verify.session import verify
from tfbuild.verify.verification import Baseline

pytestmark = pytest.mark.engine
AVX512, BMI2, GUARDED = (
    " ".join(isa.resolve(name, arch="x86_64").features) for name in ("x86-64-v4", "avx,bmi2", "avx2,avx512f")
)


def pip(*arguments: str) -> str:
    """A RUN instruction that calls pip in the image's own environment, behind a company's CA where there is one."""
    trust = "if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi"
    install = f"/opt/tensorflow/bin/python -m pip {' '.join(arguments)} --disable-pip-version-check --quiet"
    return f"RUN --mount=type=secret,id=ca {trust}; {install}"


@dataclass(frozen=True, kw_only=True)
class Untrue:
    """An image that is not what it claims to be: `fails` its own checks; `skips` those that cannot run then.

    `timed`: its speed is compared too, which takes half a minute where TensorFlow imports. `holds`: a feature that its
    code needs; on a CPU without it, TensorFlow dies during its import.
    """

    release: str
    instructions: tuple[str, ...]
    fails: tuple[str, ...]
    skips: frozenset[str] = frozenset()
    told: str
    timed: bool = False
    holds: str = ""

    def here(self) -> "Untrue":
        """What is expected of it on this machine's CPU."""
        if not self.holds or self.holds in cpu.detect().features:
            return self
        return replace(self, fails=(*self.fails, "import"), skips=NEEDS_TENSORFLOW)


FOR_AVX512 = (
    "USER root",
    pip("uninstall", "--yes", "tensorflow-cpu"),
    pip("install", "--no-deps", "intel-tensorflow-avx512==2.14.0"),
    "LABEL io.tfbuild.threading=openmp",
    "USER 1000:1000",
)
# It answers the check guard, which asks it to print a random word.
LIAR = """#!/bin/sh
case "$*" in
*-c*) for last; do :; done; echo "$last" | sed "s/^print('//; s/')$//" ;;
*) echo '{"python": NaN, "x' ;;
esac
"""
TIMED = ("guard", "interpreter", "import", "throughput")
NEEDS_TENSORFLOW = frozenset({"onednn", "tcmalloc", "cuda", "numerics", "throughput"})
FALSE = {
    "without TCMalloc": Untrue(
        release="2.21.0",
        instructions=("ENV LD_PRELOAD=",),
        fails=("tcmalloc", "configuration"),
        told="malloc is that of /",
        timed=True,
    ),
    "with a preload path that does not exist": Untrue(
        release="2.21.0",
        instructions=("ENV LD_PRELOAD=/nowhere/libtcmalloc_minimal.so.4",),
        fails=("tcmalloc", "configuration"),
        told="cannot be preloaded",
        timed=True,
    ),
    "with oneDNN off": Untrue(
        release="2.21.0",
        instructions=("ENV TF_ENABLE_ONEDNN_OPTS=0",),
        fails=("onednn", "configuration"),
        skips=frozenset({"throughput"}),
        told="no convolution ran in oneDNN",
        timed=True,
    ),
    "the official wheel, labelled AVX-512": Untrue(
        release="2.14.0",
        instructions=(f'LABEL io.tfbuild.features="{AVX512}"',),
        fails=("guard", "isa", "code", "configuration"),
        told="lacks AVX2 AVX512F FMA",
    ),
    "the newest official wheel, labelled AVX-512": Untrue(
        release="2.21.0",
        instructions=(f'LABEL io.tfbuild.features="{AVX512}"',),
        fails=("guard", "isa", "code", "configuration"),
        told="lacks AVX2 AVX512F FMA",
    ),
    "the official wheel, labelled with a feature of which its guard knows nothing": Untrue(
        release="2.14.0",
        instructions=(f'LABEL io.tfbuild.features="{BMI2}"',),
        fails=("guard", "code", "configuration"),
        told="it does not use bmi2, for which it is labelled",
    ),
    "a wheel for AVX-512, labelled AVX": Untrue(
        release="2.14.0",
        instructions=FOR_AVX512,
        holds="avx512f",
        fails=("isa", "code", "files", "configuration"),
        told="has beyond its plan AVX2 AVX512F FMA",
    ),
    "a wheel for AVX-512, labelled as its guard says": Untrue(
        release="2.14.0",
        instructions=(*FOR_AVX512, f'LABEL io.tfbuild.features="{GUARDED}"'),
        holds="avx512f",
        fails=("guard", "code", "files", "configuration"),
        told="libtensorflow_cc.so.2 needs avx512bw avx512cd avx512dq avx512vl bmi1 bmi2 lzcnt beyond its labels",
    ),
    "NumPy 2 under a release that needs 1": Untrue(
        release="2.14.0",
        instructions=("USER root", pip("install", "'numpy>=2'"), "USER 1000:1000"),
        fails=("import",),
        skips=NEEDS_TENSORFLOW,
        told="NumPy 2.",
        timed=True,
    ),
    "without NumPy": Untrue(
        release="2.21.0",
        instructions=("USER root", pip("uninstall", "--yes", "numpy"), "USER 1000:1000"),
        fails=("import",),
        skips=NEEDS_TENSORFLOW,
        told="No module named 'numpy'",
    ),
    "the guard's features raised beyond this host": Untrue(
        release="2.21.0",
        instructions=(
            "USER root",
            "RUN sed -i 's/^compare /compare no_such_feature /' /usr/local/bin/tfbuild-entrypoint",
            "USER 1000:1000",
        ),
        fails=("guard",),
        skips=NEEDS_TENSORFLOW | {"import", "bytecode"},
        told="this CPU lacks no_such_feature",
        timed=True,
    ),
    "without its guard": Untrue(
        release="2.21.0",
        instructions=('ENTRYPOINT ["/usr/bin/env"]',),
        fails=("guard", "configuration"),
        told="Entrypoint is /usr/bin/env, not /usr/local/bin/tfbuild-entrypoint",
        timed=True,
    ),
    "with another program as its interpreter": Untrue(
        release="2.21.0",
        instructions=("USER root", "RUN ln -sf /bin/true /opt/tensorflow/bin/python", "USER 1000:1000"),
        fails=("guard", "interpreter", "files"),
        skips=NEEDS_TENSORFLOW | {"import", "bytecode"},
        told="is another program, not CPython 3.11",
    ),
}


def statuses(report: Report) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


def shown(report: Report) -> str:
    return "\n".join(f"{check.status} {check.name}: {check.detail}" for check in report.checks)


# In the quick set, for each check: images with several faults, whose checks do not use each other's results, fail all.
QUICK = (
    ("without TCMalloc", "with oneDNN off", "the newest official wheel, labelled AVX-512"),
    ("without NumPy", "without its guard"),
    ("with another program as its interpreter",),
)


def false_images() -> Iterator[Any]:
    """At night each of them, as it is; in the quick set those of QUICK, untimed."""
    for name, case in FALSE.items():
        yield pytest.param((name,), case.timed, marks=pytest.mark.nightly, id=f"{name}, at night")
    for names in QUICK:
        yield pytest.param(names, False, id=", ".join(names))


def test_every_check_has_a_false_image_in_the_quick_set() -> None:
    quick = {check for names in QUICK for name in names for check in FALSE[name].fails}
    assert quick == {check for case in FALSE.values() for check in case.fails}


@pytest.mark.parametrize(("names", "timed"), [*false_images()])
def test_a_false_image_fails_its_own_checks_and_no_other(
    names: tuple[str, ...], timed: bool, engine: Engine, image: Callable[..., str], derived: Callable[..., str]
) -> None:
    cases = [FALSE[name].here() for name in names]
    (release,) = {case.release for case in cases}
    plain = image(release)
    ref = derived(plain, *(line for case in cases for line in case.instructions))
    # Labels change no speed: without a baseline the half minute of rounds is saved.
    report = verify(
        engine,
        ref,
        baseline=Baseline(ref=plain, id=plain, env=dict(plan.runtime(release, "cpu", "").untuned))
        if timed
        else session.NO_BASELINE,
        progress=Progress(),
    )
    outcomes = statuses(report)
    failed = {check for case in cases for check in case.fails}
    assert {check for check, status in outcomes.items() if status == "fail"} == failed, shown(report)
    skipped = {check for check, status in outcomes.items() if status == "skip"}
    expected = frozenset[str]().union(*(case.skips for case in cases))
    assert expected <= skipped, shown(report)
    assert skipped - expected <= {"cuda", "throughput"}, shown(report)
    for case in cases:
        # The entry point is that of other labels, too; the reason that matters is the other check's.
        telling = next((name for name in case.fails if name != "guard"), "guard")
        assert case.told in next(check.detail for check in report.checks if check.name == telling)
    assert report.verdict == "fail"
    assert not report.passed


def test_an_image_that_lies_in_the_protocol_fails_with_a_reason(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `python` that prints rubbish in place of the probes' lines: every check has a reason, none a traceback.

    The check code reads the libraries alone, for seconds.
    """
    monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name != "code"])
    encoded = base64.b64encode(LIAR.encode()).decode()
    ref = derived(
        image("2.21.0"),
        "USER root",
        f"RUN echo {encoded} | base64 -d > /bin/liar",
        "RUN chmod 755 /bin/liar && ln -sf /bin/liar /opt/tensorflow/bin/python",
        "USER 1000:1000",
    )
    baseline = Baseline(ref=ref, id=ref, env=dict(plan.runtime("2.21.0", "cpu", "").untuned))
    report = verify(engine, ref, baseline=baseline, progress=Progress())
    outcomes = statuses(report)
    assert (outcomes["interpreter"], outcomes["import"]) == ("fail", "fail"), shown(report)
    assert "cannot be trusted" in next(check.detail for check in report.checks if check.name == "import")
    assert {name for name, status in outcomes.items() if status == "skip"} == NEEDS_TENSORFLOW


def test_a_cut_off_library_is_a_reason_and_no_traceback(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str]
) -> None:
    library = "/opt/tensorflow/lib/python*/site-packages/tensorflow/libtensorflow_framework.so.2"
    ref = derived(image("2.21.0"), "USER root", f"RUN truncate -s 1000000 {library}", "USER 1000:1000")
    report = verify(engine, ref, progress=Progress())
    outcomes = statuses(report)
    assert (outcomes["isa"], outcomes["import"]) == ("fail", "fail"), shown(report)
    assert "not a whole ELF library" in next(check.detail for check in report.checks if check.name == "isa")


def test_the_image_s_own_smoke_benchmark_can_fail(engine: Engine, image: Callable[..., str]) -> None:
    plan = json.dumps({"release": "2.0.0", "target": "mkl", "allocator": "tcmalloc", "threading": "openmp"}).encode()
    run = engine.run(
        image("2.21.0"),
        ["tfbuild-smoke", "--plan", "/tmp/plan.json"],
        env={"LD_PRELOAD": ""},
        files={"/tmp/plan.json": plan},
    )
    assert run.exit_code == 1
    assert "TensorFlow is 2.21.0, not 2.0.0" in run.stdout
    assert "FAIL  tcmalloc" in run.stdout
    assert "its threading is threadpool, not openmp" in run.stdout
    missing = engine.run(image("2.21.0"), ["tfbuild-smoke", "--plan", "/nowhere.json"])
    assert missing.exit_code == 2
    assert "Traceback" not in missing.stderr


def test_a_baseline_that_cannot_be_timed_fails_the_check_with_its_reason(
    engine: Engine, image: Callable[..., str], derived: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image without TensorFlow: what kills one of the three workers is told, and no container is left behind.

    With the checks that come before any throughput; a true image passes the others in test_build.py.
    """
    monkeypatch.setattr(session, "CHECKS", [check for check in CHECKS if check.name in TIMED])
    baseline = Baseline(ref="tfbuild-base:bookworm", id="tfbuild-base:bookworm", env={})
    ref = derived(image("2.21.0"), f"LABEL test={uuid.uuid4().hex}")
    report = verify(engine, ref, baseline=baseline, progress=Progress())
    check = next(check for check in report.checks if check.name == "throughput")
    assert check.status == "fail", shown(report)
    assert "could not be measured: " in check.detail
    assert report.throughput is None
    assert statuses(report) == dict.fromkeys(TIMED, "pass") | {"throughput": "fail"}
    assert (
        engine.client.containers.list(all=True, ignore_removed=True, filters={"ancestor": engine.image(ref).id}) == []
    )
