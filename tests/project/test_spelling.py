"""Words are spelled right in everything that people read: pages, help texts, messages and comments."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def codespell(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run codespell with the settings in pyproject.toml."""
    program = Path(sys.executable).with_name("codespell")
    return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_word_is_misspelled() -> None:
    listed = subprocess.check_output(["git", "ls-files", "--", ":!tests"], cwd=ROOT, text=True).splitlines()
    done = codespell(*(name for name in listed if (ROOT / name).is_file()))
    assert not done.stdout + done.stderr
    assert done.returncode == 0
