"""What the benchmark on an emulated machine reads, and what the machine's first process writes for it."""

import re
import subprocess
from pathlib import Path

from benchmarks.avx512 import machine

INIT = (machine.HERE / "init.sh").read_text()


def written(folder: Path, *command: str) -> str:
    """The line that init.sh's `step` writes of a command, run by this machine's own shell and root."""
    functions = re.search(r"^say\(\).*?^step\(\) \{.*?^\}", INIT, re.MULTILINE | re.DOTALL)
    assert functions
    body = functions[0].replace("/environment", f"{folder}/environment").replace("/image/tmp", str(folder))
    script = f'chroot() {{ shift; "$@"; }}\n{body.replace("/dev/ttyS0", "/dev/stdout")}\nstep name "$@"'
    (folder / "environment").write_text("export GREETING='a b'\n")
    done = subprocess.run(["sh", "-c", script, "sh", *command], check=True, capture_output=True, text=True)
    return done.stdout


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    line = written(tmp_path, "sh", "-c", "echo $GREETING; echo c >&2; exit 86")
    assert machine.steps(f"noise\r\n{line.strip()}\r\navx512: ended\r\n") == {
        "name": machine.Step(code=86, output="a b\n", errors="c\n")
    }


def test_a_step_without_output_is_read_too(tmp_path: Path) -> None:
    assert machine.steps(written(tmp_path, "true")) == {"name": machine.Step(code=0, output="", errors="")}


def test_every_step_of_the_first_process_is_read_by_the_benchmark() -> None:
    names = re.findall(r"^step (\w+)", INIT, re.MULTILINE)
    read = set(re.findall(r'steps\["(\w+)"\]', (machine.HERE / "__main__.py").read_text()))
    assert names
    assert {*names} == read
