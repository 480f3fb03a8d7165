"""Words are spelled right in everything that people read: pages, help texts, messages and comments."""

import subprocess

from tests.commandline import ROOT, tool


def test_no_word_is_misspelled() -> None:
    """By the settings in pyproject.toml."""
    listed = subprocess.check_output(["git", "ls-files", "--", ":!tests"], cwd=ROOT, text=True).splitlines()
    done = tool("codespell", *(name for name in listed if (ROOT / name).is_file()))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
