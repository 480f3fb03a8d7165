"""Words are spelled right in everything that people read: pages, help texts, messages and comments."""

import subprocess
import sys
import tomllib
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


def test_a_misspelled_word_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A build that recieves its flags.\n")
    assert "recieves ==> receives" in codespell(page).stdout


def test_an_exception_is_still_needed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["codespell"]
    for word in settings["ignore-words-list"].split(","):
        listed = subprocess.run(
            ["git", "grep", "-qiw", word, "--", ":!pyproject.toml", ":!tests"], cwd=ROOT, check=False
        )
        assert listed.returncode == 0, word
