"""A copy of this repository as it stands, committed anew: what a clean clone of it would be."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def copy(folder: Path, *beginnings: str) -> Path:
    """Only files whose paths have one of these beginnings, where there are any."""
    folder.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if name.startswith(beginnings or "") and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
            target.chmod((ROOT / name).stat().st_mode)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message", "before")
    return folder
