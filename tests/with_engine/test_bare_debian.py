"""ci/debian.sh, in which the workflows run all tests: a bare Debian 12, as root, in a copy of the checkout."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import checkout
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.pipeline import base_image as bases
from tfbuild.util.progress import Progress

# Installs Git and Python. Without the rights of an engine in the container, which not every machine can give: one that
# lacks a capability, such as SYS_RESOURCE, starts no container with --privileged. There, RIGHTS with the others and
# unmasked paths was enough for an engine and its tests (20.10, version 1 of cgroups).
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
LOOK = """
id -u
. /etc/os-release && echo "$ID $VERSION_ID"
git status --porcelain | wc -l
command -v docker || echo no engine
mount | grep -c ' /var/lib/tfbuild ' || true
touch written
"""


def test_a_command_runs_on_a_bare_debian(engine: Engine, tmp_path: Path) -> None:
    base = bases.bootstrap(engine, "bookworm", progress=Progress(), log=tmp_path / "log", ca_cert=certificates(""))
    copy = checkout.copy(tmp_path / "checkout", "ci/", ".ci/", "README.md")
    done = subprocess.run(
        ["ci/debian.sh", "sh", "-euc", f"{LOOK} exit 7"], capture_output=True, text=True, check=False,
        cwd=copy, env={**os.environ, "DEBIAN": base.reference, "RIGHTS": ""},
    )  # fmt: skip
    # The command's code, and nothing of it in the checkout.
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[-5:] == ["0", "debian 12", "0", "no engine", "1"]
    assert not (copy / "written").exists()


def test_a_command_must_be_named(tmp_path: Path) -> None:
    done = subprocess.run([checkout.ROOT / "ci" / "debian.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "ci/debian.sh: no command\n")
