"""Write the generated files under dockerfiles/, and compare them with what is committed.

They are the files that differ between contexts; `invoke dockerfile` writes a whole context.
"""

import shutil
from pathlib import Path

from tfbuild import facts, plan
from tfbuild.context import dockerfile
from tfbuild.facts import Facts
from tfbuild.plan import Build, Request

# The other files are the same in every context: the scripts of templates/ and the smoke benchmark.
NAMES = ("Dockerfile", "bazelrc", "constraints.txt", "entrypoint.sh", "plan.json", "requirements.txt")


class CommittedBuild(Facts, frozen=True):
    release: str
    target: str
    wheel: str = ""
    cpu: str = ""
    platform: str = "linux/amd64"


class CommittedTable(Facts, frozen=True):
    build: tuple[CommittedBuild, ...]


def builds() -> tuple[Build, ...]:
    """Return the builds whose files are committed, in the order of facts/committed.toml."""
    rows = facts.load("committed", CommittedTable).build
    requests = (
        Request(release=row.release, target=row.target, wheel=row.wheel, cpu=row.cpu, platform=row.platform)
        for row in rows
    )
    return tuple(plan.select(request, None) for request in requests)


def expected() -> dict[str, str]:
    """Return the text of each committed file by its path below dockerfiles/."""
    texts = {build.id: dockerfile.files(build) for build in builds()}
    return {
        f"{key}/{name}": text for key, files in sorted(texts.items()) for name, text in files.items() if name in NAMES
    }


def stale(folder: Path) -> list[str]:
    """Return the paths that are missing, superfluous or different from what the facts and templates give now."""
    wanted = expected()
    existing = {path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.is_file()}
    same = {name for name in existing & wanted.keys() if (folder / name).read_text(encoding="utf-8") == wanted[name]}
    return sorted((existing | wanted.keys()) - same)


def write(folder: Path) -> list[str]:
    """Write exactly the expected files to `folder`, and return the paths that changed."""
    wanted = expected()
    changed = stale(folder)
    for name in changed:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    for empty in (path for path in folder.glob("*/") if not any(path.iterdir())):
        shutil.rmtree(empty)
    return changed
