"""Write dockerfiles/, or compare what is there: the files of some builds, a README.md and a docker-bake.hcl.

Their context is the repository's root, which has the scripts.
"""

import re
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tfbuild import facts, plan
from tfbuild.ci import formats
from tfbuild.context import dockerfile
from tfbuild.context.dockerfile import ContextLayout
from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.facts import Facts
from tfbuild.oci import client
from tfbuild.pipeline.maker import needed_disk
from tfbuild.plan import Build, Request
from tfbuild.util.files import remove, replace_file, writing

COMMAND = "invoke generate"
FOLDER = "dockerfiles"
ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_suffix(".toml")
# The base's name and digest as templates/Dockerfile.j2 has them. Renovate reads them by the same pattern.
PINNED = re.compile(r"^ARG BASE_NAME=(\S+)\nARG BASE_DIGEST=(sha256:[0-9a-f]{64})$", re.MULTILINE)


class CommittedBuild(Facts, frozen=True):
    """A row of committed.toml; `shows`: what sets it apart from the other rows."""

    release: str
    target: str
    shows: str
    wheel: str = ""
    cpu: str = ""
    platform: str = "linux/amd64"

    def plan(self) -> Build:
        request = Request(
            release=self.release, target=self.target, wheel=self.wheel, cpu=self.cpu, platform=self.platform
        )
        return plan.select(request, None)


class CommittedTable(Facts, frozen=True):
    build: tuple[CommittedBuild, ...]


@cache
def _table() -> tuple[CommittedBuild, ...]:
    return facts.parse(ROWS.read_text(encoding="utf-8"), CommittedTable, ROWS.name).build


def builds() -> tuple[Build, ...]:
    """Return the committed builds, in the order of committed.toml."""
    return tuple(row.plan() for row in _table())


def command(build: Build) -> str:
    """Return the command that builds the image, to be run in the repository's root."""
    words = (
        "docker build",
        f"--platform {build.platform}",
        f"--file {FOLDER}/{build.id}/Dockerfile",
        f"--tag {tag(build)}",
    )
    return " ".join((*words, "."))


def tag(build: Build) -> str:
    """Return the image's name; plain `docker build` verifies nothing."""
    return image_name(build, UNVERIFIED)


# --- digests of base images -------------------------------------------------------------------------------------------


def pins(folder: Path) -> dict[str, str]:
    """Return the digests of base images by their names, as the Dockerfiles below `folder` have them now."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/Dockerfile")))
    return {name: digest for text in texts for name, digest in PINNED.findall(text)}


def ask_registries(ca: Path | None) -> dict[str, str]:
    """Return the digest that each base's tag names in its registry now. Raises RegistryRefused."""
    return {name: client.image_digest(name, ca=ca) for name in sorted({build.base_image for build in builds()})}


# --- the files --------------------------------------------------------------------------------------------------------


def expected(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by its path below dockerfiles/. `digests`: those of base images, by their names."""
    texts = {"README.md": readme(), "docker-bake.hcl": bake()}
    for build in builds():
        layout = ContextLayout(
            own=f"{FOLDER}/{build.id}/",
            scripts=dockerfile.TEMPLATES.relative_to(ROOT).as_posix(),
            smoke=dockerfile.SMOKE.relative_to(ROOT).as_posix(),
            origin=COMMAND,
            place="in the repository's root",
            usage=command(build),
            base_digest=digests.get(build.base_image, ""),
        )
        texts |= {f"{build.id}/{name}": text for name, text in dockerfile.own_files(build, layout).items()}
    return texts


def readme() -> str:
    chosen = builds()
    contexts = [
        {"build": build, "shows": row.shows, "command": command(build), "image": tag(build)}
        for build, row in zip(chosen, _table(), strict=True)
    ]
    disk = {build.wheel.kind: f"{needed_disk(build) / 10**9:.2g}" for build in chosen}
    text = Path(__file__).with_name("dockerfiles.md.j2").read_text(encoding="utf-8")
    pages = dockerfile.environment_of_templates().overlay(finalize=None)  # Markdown, of values that are ours
    return pages.from_string(text).render(command=COMMAND, contexts=contexts, disk=disk)


def bake() -> str:
    """Return docker-bake.hcl, whose default group compiles nothing."""
    chosen = builds()
    groups = {
        "default": [build for build in chosen if build.wheel.kind == "official"],
        "source": [build for build in chosen if build.wheel.kind == "source"],
    }
    targets = [(build, ".", f"{FOLDER}/{build.id}/Dockerfile") for build in chosen]
    return formats.bake(
        f"Generated by `{COMMAND}`: docker buildx bake --file {FOLDER}/docker-bake.hcl [TARGET...], in the root",
        groups,
        targets,
    )


# --- what is on the disk ----------------------------------------------------------------------------------------------


def stale(folder: Path, digests: Mapping[str, str] | None = None) -> list[str]:
    """Return the paths that are missing, superfluous or different from what the facts and templates give now.

    `digests`: those of base images (default: those that the Dockerfiles have).
    """
    wanted = expected(pins(folder) if digests is None else digests)
    # A link is one too many, or stands in for a file.
    existing = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() or path.is_symlink()
    }
    same = {name for name in existing & wanted.keys() if _has(folder / name, wanted[name])}
    return sorted((existing | wanted.keys()) - same)


def _has(path: Path, text: str) -> bool:
    return not path.is_symlink() and path.read_bytes() == text.encode()


def write(folder: Path, digests: Mapping[str, str] | None = None) -> list[str]:
    """Write exactly the expected files to `folder`, and return the paths that changed. `digests`: see `stale`.

    Raises UsageError or DiskFull.
    """
    with writing(folder):
        digests = pins(folder) if digests is None else digests
        wanted, changed = expected(digests), stale(folder, digests)
        for name in changed:
            path = folder / name
            if path.is_dir() or path.is_symlink() or name not in wanted:
                remove(path)
            if name in wanted:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, wanted[name])
        for child in folder.iterdir():
            if child.is_dir() and not any(path.is_file() for path in child.rglob("*")):
                shutil.rmtree(child)
        return changed
