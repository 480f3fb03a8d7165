"""The formats of `invoke matrix`: each is one `Format`, with its writer and its CI system's limits."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.ci.matrix import Row, matrix_table
from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.errors import UsageError
from tfbuild.plan import Build
from tfbuild.util import terminal
from tfbuild.util.options import words

SCHEMA = "tfbuild.matrix/1"
# The job in .gitlab-ci.yml that each row of a child pipeline extends.
GITLAB_JOB = ".tfbuild"
# Options that Build.resolved() cuts down: files to their names, and a base that is not named to "auto".
PLACES = ("base", "bazel", "hermetic_python", "override_repository", "patch", "source")


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format: `write` returns the text for the rows.

    `ci`: it belongs to a CI system, with machines and limits in matrix.toml. `contexts`: the text names build
    contexts, which are written too.
    """

    write: Callable[[Sequence[Row], Path], str]
    ci: bool = False
    contexts: bool = False


def render_rows(name: str, rows: Sequence[Row], folder: Path) -> str:
    """Return the rows in that format; `folder`: for build contexts. Raises UsageError beyond its CI system's limits."""
    written = FORMATS[name].write(rows, folder)
    for system in (row for row in matrix_table().system if row.name == name):
        hint = "narrow the matrix (--only '*-mkl-*', --python 3.12, --release 2.20), or split it by --target"
        if len(rows) > system.jobs:
            raise UsageError(f"{len(rows)} rows are more than the {system.jobs} jobs of one {name} matrix", hint=hint)
        if (size := len(written.encode(system.encoding))) > system.bytes:
            raise UsageError(
                f"these {len(rows)} rows are {size:,} bytes, more than the {system.bytes:,} that {name} takes",
                hint=hint,
            )
    return written


def _table(rows: Sequence[Row], folder: Path) -> str:
    """Return the builds, those that differ only in Python on one line."""
    pythons: dict[tuple[str, ...], list[str]] = {}
    for build, _ in rows:
        key = (build.release, build.target, build.platform, build.instruction_set.name, build.wheel.kind)
        pythons.setdefault(key, []).append(build.python)
    lines = ((*fields, " ".join(versions)) for fields, versions in pythons.items())
    return terminal.rendered(
        [terminal.table(("release", "target", "platform", "compiled for", "wheel", "Python"), lines)]
    )


def _json(rows: Sequence[Row], folder: Path) -> str:
    """Return the whole matrix, for scripts."""
    fields = [{**_row(build), "features": list(build.instruction_set.features)} for build, _ in rows]
    return json.dumps({"schema": SCHEMA, "rows": fields}, indent=2) + "\n"


def _row(build: Build) -> dict[str, str]:
    return {
        "id": build.id,
        "release": build.release,
        "target": build.target,
        "python": build.python,
        "platform": build.platform,
        "instruction_set": build.instruction_set.name,
        "wheel": build.wheel.kind,
        "options": _options(build),
    }


def _options(build: Build) -> str:
    """Return the options with which `invoke build` builds this in the folder of the matrix, quoted for a shell."""
    names = [*PLACES, *(["wheel"] if build.wheel.path else [])]
    own = {name: value for name in names if (value := getattr(build.request, name))}
    return shlex.join(words(replace(build.resolved(), **own)))


def _github(rows: Sequence[Row], folder: Path) -> str:
    """Return `strategy.matrix` for GitHub Actions, in one line for $GITHUB_OUTPUT."""
    include = [{**_row(build), "runner": label} for build, label in rows]
    return json.dumps({"include": include}, separators=(",", ":")) + "\n"


def _gitlab(rows: Sequence[Row], folder: Path) -> str:
    """Return a child pipeline for GitLab (JSON is YAML): one job per row, extending the repository's own `.tfbuild`."""
    # `parallel: matrix` would put all options into a job's name, which may have 255 characters.
    jobs: dict[str, object] = {"include": [{"local": ".gitlab-ci.yml"}]}
    for build, label in rows:
        # GitLab expands $NAME in the values of variables and in tags; $$ is a dollar sign.
        variables = {"TFBUILD_ID": build.id, "TFBUILD_OPTIONS": _options(build).replace("$", "$$")}
        jobs[build.id] = {"extends": GITLAB_JOB, "tags": [label.replace("$", "$$")], "variables": variables}
    return json.dumps(jobs, ensure_ascii=False) + "\n"  # YAML has no halves of surrogate pairs


def _bake(rows: Sequence[Row], folder: Path) -> str:
    """Return docker-bake.hcl for the contexts below `folder`; it needs no frontend from a registry."""
    targets = [(build, str(folder / build.id), "Dockerfile") for build, _ in rows]
    groups = {"default": [build for build, _ in rows]}
    return bake("Written by tfbuild: docker buildx bake -f FILE [TARGET...]", groups, targets)


FORMATS: Mapping[str, Format] = {
    "table": Format(write=_table),
    "json": Format(write=_json),
    "bake": Format(write=_bake, contexts=True),
    "github": Format(write=_github, ci=True),
    "gitlab": Format(write=_gitlab, ci=True),
}


def bake(title: str, groups: Mapping[str, Iterable[Build]], targets: Iterable[tuple[Build, str, str]]) -> str:
    """Return docker-bake.hcl with a comment, groups of builds by their names, and a target for each build.

    `targets`: builds with the folder of their context, and the Dockerfile's path in it.
    """
    blocks = [f"# {title}"]
    for name, builds in groups.items():
        names = ", ".join(_hcl(target_name(build.id)) for build in builds)
        blocks.append(f"group {_hcl(name)} {{\n  targets = [{names}]\n}}")
    for build, context, path in targets:
        fields = {
            "context": _hcl(context),
            "dockerfile": _hcl(path),
            "target": _hcl("runtime"),
            "tags": f"[{_hcl(image_name(build, UNVERIFIED))}]",
            "platforms": f"[{_hcl(build.platform)}]",
        }
        lines = "\n".join(f"  {name} = {value}" for name, value in fields.items())
        blocks.append(f"target {_hcl(target_name(build.id))} {{\n{lines}\n}}")
    return "\n\n".join(blocks) + "\n"


def target_name(identifier: str) -> str:
    """Return the name of a build's target, without dots: "2_21_0-mkl" for "2.21.0-mkl"."""
    return identifier.replace(".", "_")


def _hcl(text: str) -> str:
    """Return a quoted HCL string. `$` and `%` are escaped too, because `${` and `%{` start templates."""
    return json.dumps(text, ensure_ascii=False).replace("$", r"\u0024").replace("%", r"\u0025")
