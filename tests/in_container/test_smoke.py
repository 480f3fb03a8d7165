"""`tfbuild-smoke` and its probes on the official TensorFlow, and what they say where there is none."""

import io
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each
from tests.verify.test_judge import PLAN
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of, smoke_plan
from tfbuild.in_container.smoke import command, judge, probes
from tfbuild.in_container.smoke.judge import Ended, Judgement, Plan, Results
from tfbuild.in_container.smoke.probes import GpuConvolution
from tfbuild.in_container.smoke.references import PARTS
from tfbuild.measure import probe
from tfbuild.plan import Request, select
from tfbuild.verify import labelled_build

FOLDER = Path(judge.__file__).parent
TRAINED = 0.0566
# All in one process, because importing TensorFlow takes longest.
PROBES = """
import sys
sys.path.insert(0, sys.argv[1])
from smoke import probes
channel = probes.open_channel()
for name in sys.argv[2:]:
    probes.PROBES[name](channel)
"""


def smoke(python: str, *words: str, code: int, **env: str) -> "subprocess.CompletedProcess[str]":
    call = [python, "-B", str(FOLDER), *words]
    done = subprocess.run(call, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr[-3000:]
    return done


def test_each_probe_sends_its_records(python: str) -> None:
    asked = (judge.NUMERICS, judge.ONEDNN, judge.CUDA, judge.IMPORT)
    call = [python, "-B", "-c", PROBES, str(FOLDER.parent), *(check.probe for check in asked)]
    env = {**os.environ, **judge.ONEDNN_LOGGING}
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    sent: dict[str, tuple[Any, ...]] = {}
    for check in asked:
        text = "".join(f"{lines.pop(0)}\n" for _ in check.kinds)
        sent[check.probe] = probe.parse_records(text, check.kinds)
    assert lines == []
    environment, tensorflow = sent["start"]
    # The numerics' own convolution is smaller; what it runs as without AVX-512 is no proof.
    first, *_, last = re.split(r"^(?=.*,exec,cpu,convolution,)", done.stderr, flags=re.MULTILINE)
    assert judge.onednn(Results(sent["onednn"], Ended(0, first + last), environment), PLAN).status == "pass"
    assert sent["cuda"][0] == GpuConvolution(gpus=0, device="", error=None)
    assert (tensorflow.version, tensorflow.cuda_build, tensorflow.gpus) == (PLAN.release, False, 0)
    assert 0 < tensorflow.seconds < 600
    assert 200 < tensorflow.peak_mib < 4000
    assert environment.numpy.startswith("2.")
    assert "tensorflow-cpu==2.21.0" in environment.packages
    assert (environment.kernel, environment.machine) == (platform.release(), platform.machine())
    assert environment.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    described = Path("/proc/cpuinfo").read_text().split()
    assert environment.cpu_flags
    assert {*environment.cpu_flags, *environment.cpu_model.split()} <= {*described}
    assert (environment.cpus, Path(environment.malloc).name) == (len(os.sched_getaffinity(0)), "libc.so.6")


def test_glibc_costs_one_fault_for_each_page_with_huge_pages_too(python: str) -> None:
    told = json.loads(smoke(python, "probe", "faults", code=0, **judge.NO_ONEDNN).stdout)
    assert told["per_tensor"] == pytest.approx((40 << 20) / os.sysconf("SC_PAGE_SIZE"), rel=0.02)
    assert told["per_tensor"] > judge.MOST_FAULTS


def test_numa_nodes_are_those_with_processors_of_ours(tmp_path: Path) -> None:
    first, *rest = sorted(os.sched_getaffinity(0))
    here = {"node0": [first], "node1": rest, "node2": [4095], "node10": []}
    for node, processors in here.items():
        (tmp_path / node).mkdir()
        for name in ("cpulist", "cpumap", "memory7", *(f"cpu{number}" for number in processors)):
            (tmp_path / node / name).touch()
    assert probes.numa_nodes(str(tmp_path)) == [{first}, *([{*rest}] if rest else [])]
    assert probes.numa_nodes(str(tmp_path / "none")) == []


def test_a_mapped_file_s_name_may_have_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = "10-20 r-xp 0 08:01 7 /a b/libc.so.6\n30-40 rw-p 0 00:00 0 \n"
    monkeypatch.setattr(probes, "open", lambda _: io.StringIO(maps), raising=False)
    assert [probes.mapped_file(address) for address in (16, 48, 80)] == ["/a b/libc.so.6", "", ""]


def test_the_official_tensorflow_passes(python: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    named = {"release": PLAN.release, "python": version.rpartition(".")[0], "target": "mkl", "threading": "threadpool"}
    plan.write_text(json.dumps({**named, "compiler": PLAN.compiler, "checks": ["onednn"], "more": 1}))
    told = json.loads(smoke(python, "--json", "--plan", str(plan), code=0).stdout)
    checks = {row["name"]: row for row in told["checks"]}
    assert (told["schema"], told["verdict"]) == ("tfbuild.smoke/1", "pass")
    assert {name: row["status"] for name, row in checks.items()} == {
        "import": "pass", "onednn": "pass", "tcmalloc": "skip", "cuda": "skip", "numerics": "pass",
    }  # fmt: skip
    assert checks["import"]["detail"].startswith(f"TensorFlow {PLAN.release} (")
    measures = checks["numerics"]["measures"]
    assert measures.keys() == PARTS.keys()
    assert measures["training"] == pytest.approx(TRAINED, abs=5e-4)
    # No sum of rounded numbers comes to exactly the same.
    exact = {"max_pool_nhwc", "max_pool_nchw_after_nhwc", "avg_pool_nhwc", "avg_pool_nchw_after_nhwc", "quantized"}
    assert {name for name, error in measures.items() if error == 0} == exact


def test_without_tensorflow_the_import_fails_and_the_rest_is_skipped(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    told = json.loads(smoke(sys.executable, "--json", "--plan", str(plan), code=1).stdout)
    (first, *others) = told["checks"]
    assert (first["name"], first["status"], told["verdict"]) == ("import", "fail", "fail")
    assert first["detail"].startswith("exit code 1: ModuleNotFoundError: No module named ")
    assert {row["status"] for row in others} == {"skip"}
    (tmp_path / "sitecustomize.py").write_text("print('\\nhello')")
    loud = smoke(sys.executable, "--plan", str(plan), code=1, PYTHONPATH=str(tmp_path)).stdout
    assert "FAIL  import    Python prints on stdout as it starts: ''\n" in loud
    killer = "import os\nos.environ.get('TFBUILD_SMOKE') and os.write(1, b'{') and os.kill(os.getpid(), 9)"
    (tmp_path / "sitecustomize.py").write_text(killer)
    killed = smoke(sys.executable, "--plan", str(plan), code=1, PYTHONPATH=str(tmp_path)).stdout
    assert "FAIL  import    killed by SIGKILL" in killed, "the line that it was writing is cut off"


def test_the_plan_is_that_of_the_image_s_build(tmp_path: Path) -> None:
    build = select(Request(release="2.14.0", target="mkl", wheel="official"), None)
    path = tmp_path / "plan.json"
    path.write_text(dockerfile.files(build)["plan.json"])
    labelled = labelled_build("x", labels_of(build), "amd64")
    assert command.read_plan(str(path)) == smoke_plan(build) == smoke_plan(labelled)
    path.write_text('{"release": null, "checks": [], "more": 1}')
    assert command.read_plan(str(path)) == Plan()
    template = (dockerfile.TEMPLATES / "Dockerfile.j2").read_text(encoding="utf-8")
    folder, _, name = command.PLAN_FILE.rpartition("/")
    assert f"--target-directory={folder} /mnt/{name} " in template, "where it is in images"


def test_a_line_for_each_check_and_the_verdict() -> None:
    checks = {status: Judgement(status, f"why {status}") for status in ("pass", "warn", "fail", "skip")}
    assert command.as_text(checks, "fail").splitlines() == [
        "ok    pass      why pass", "WARN  warn      why warn", "FAIL  fail      why fail", "skip  skip      why skip",
        "verdict: fail",
    ]  # fmt: skip


@each("plan, why", [(None, "No such file"), ("[]", "is not a JSON object"), ("{", "Expecting")])
def test_a_plan_that_cannot_be_read_is_named(plan: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.unlink(missing_ok=True)
    if plan is not None:
        file.write_text(plan)
    done = smoke(sys.executable, "--plan", str(file), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"tfbuild-smoke: {file}: ")
    assert why in done.stderr
