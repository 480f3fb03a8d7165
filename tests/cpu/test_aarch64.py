"""The verbs for another architecture than this machine's: the plan, its flags and its context for an Arm server."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from tests import commandline
from tests.cpu.machines import machine
from tfbuild import cpu
from tfbuild.cpu import isa
from tfbuild.facts import toolchains

FLAGS = "-march=armv8.2-a+dotprod+fp16fml+fp16+bf16+crypto+i8mm+rcpc+sve"
ARM = ("--platform", "linux/arm64", "--cpu", "neoverse-v1,exact", "--json")


def invoke(*arguments: str) -> Any:
    return json.loads(commandline.invoke(*arguments).stdout)


def test_copts_of_a_processor_are_for_its_platform() -> None:
    run = invoke("copts", "--cpu", "graviton3", "--json")
    assert run["copts"] == ["--copt=-march=armv8.2-a+fp16+sve"]
    said = "graviton3 is for aarch64: shown for linux/arm64"
    assert (said in run["notes"]) == (platform.machine() != "aarch64")


def test_dockerfile(tmp_path: Path) -> None:
    invoke("dockerfile", *ARM, "--output", str(tmp_path / "context"))
    text = {path.name: path.read_text() for path in (tmp_path / "context").iterdir() if path.is_file()}
    assert f"build --copt={FLAGS}\n" in text["bazelrc"]
    assert "build --host_copt=-march=armv8-a\n" in text["bazelrc"]
    # The kernel's names: `aes` is tfbuild's crypto.
    assert "compare aes asimd asimddp asimdfhm asimdhp asimdrdm atomics bf16 " in text["entrypoint.sh"]
    bazelisk = toolchains.table().bazelisk
    assert f"{bazelisk.version} {bazelisk.sha256['aarch64']} arm64 " in " ".join(text["Dockerfile"].split())


@pytest.mark.parametrize("feature", ["asimddp", "asimdfhm", "i8mm"])
def test_what_no_assembler_takes_below_a_level_stands_behind_it(feature: str) -> None:
    assert isa.resolve(feature, arch="aarch64").level == "armv8.2-a"


def test_an_arm_machine_that_hides_atomics_gets_no_dot_products() -> None:
    masked = cpu.parse(machine("amazon-neoverse_n1").core(without=("atomics",)))
    assert "asimddp" not in isa.of_cpu(masked).features
    assert "asimddp" in isa.hidden(masked)
