"""A locale of one's own, for what a system may lack."""

import subprocess
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import pytest


def without_i(folder: Path) -> dict[str, str]:
    """Return the variables of a locale in which [a-z] has no i, as in Turkish: it comes behind z."""
    letters = [f"{part.replace('i', '').replace('I', '')}{part[8]}" for part in (ascii_uppercase, ascii_lowercase)]
    order = "".join(chr(code) for code in range(0x20, 0x41)) + letters[0] + "[\\]^_`" + letters[1] + "{|}~"
    rows = "\n".join(f"<U{ord(letter):04X}>" for letter in order)
    source = folder / "without-i"
    source.write_text(
        f"escape_char /\ncomment_char %\nLC_COLLATE\norder_start forward\n{rows}\norder_end\nEND LC_COLLATE\n"
    )
    subprocess.run(["localedef", "-c", "-i", source, folder / "odd"], capture_output=True, check=False)
    env = {"LOCPATH": str(folder), "LC_ALL": "odd"}
    done = subprocess.run(["grep", "-c", "^[a-z]$"], input="h\ni\n", env={**env, "PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.stdout != "1\n":
        pytest.skip("such a locale cannot be made here")
    return env
