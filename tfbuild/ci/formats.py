"""Write a matrix for GitHub, GitLab and bake, and as JSON for scripts; the command line prints it as a table."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfbuild.ci.matrix import Matrix, Refused, recipe_digest_of, table
from tfbuild.ci.runners import Schedule
from tfbuild.context import dockerfile
from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.errors import UsageError
from tfbuild.plan import Build

SCHEMA = "tfbuild.matrix/1"
# The job in .gitlab-ci.yml that each row of a child pipeline extends.
GITLAB_JOB = ".tfbuild"
# Letters that have a meaning in a quoted HCL string, and those outside printable ASCII.
UNSAFE = re.compile(r'["\\$%]|[^ -~]')


def to_json(matrix: Matrix) -> dict[str, object]:
    """Return the whole matrix, for scripts; `context`: the digest of the recipe."""
    return {
        "schema": SCHEMA,
        "rows": [
            {**_row(build), "features": list(build.instruction_set.features), "context": recipe_digest_of(build)}
            for build in matrix.rows
        ],
        "refused": [_refusal(refused) for refused in matrix.refused],
    }


def _refusal(refused: Refused) -> dict[str, str]:
    request = refused.request
    fields = {
        "release": request.release,
        "target": request.target,
        "python": request.python,
        "platform": request.platform,
        "cpu": request.cpu,
        "wheel": request.wheel or "source",
        "reason": refused.reason,
    }
    return {name: value for name, value in fields.items() if value}


def _row(build: Build) -> dict[str, str]:
    return {
        "id": build.id,
        "release": build.release,
        "target": build.target,
        "python": build.python,
        "platform": build.platform,
        "instruction_set": build.instruction_set.name,
        "wheel": build.wheel.kind,
        "options": dockerfile.options(build),
    }


def to_github(schedule: Schedule) -> str:
    """Return `strategy.matrix` for GitHub Actions, in one line for $GITHUB_OUTPUT; "" if nothing has changed.

    An empty matrix is an error for GitHub, so its job needs an `if` for that case.
    """
    rows = [{**_row(build), "runner": label} for build, label in schedule.rows]
    if not rows:
        return ""
    return _checked("github", len(rows), json.dumps({"include": rows}, separators=(",", ":")))


def to_gitlab(schedule: Schedule) -> str:
    """Return a child pipeline for GitLab (JSON is YAML): one job per row, extending the repository's own `.tfbuild`.

    A pipeline without jobs is an error for GitLab: if nothing has changed, its only job says so.
    """
    if not schedule.rows:
        return json.dumps({"unchanged": {"script": ["echo nothing to build"]}})
    rows = [
        {"TFBUILD_ID": build.id, "TFBUILD_OPTIONS": dockerfile.options(build), "TFBUILD_RUNNER": label}
        for build, label in schedule.rows
    ]
    job = {"extends": GITLAB_JOB, "tags": ["$TFBUILD_RUNNER"], "parallel": {"matrix": rows}}
    return _checked("gitlab", len(rows), json.dumps({"include": [{"local": ".gitlab-ci.yml"}], "build": job}))


# The writer of each CI system's jobs, by its name in matrix.toml.
JOBS: Mapping[str, Callable[[Schedule], str]] = {"github": to_github, "gitlab": to_gitlab}


def _checked(name: str, rows: int, text: str) -> str:
    """Return `text`. Raises UsageError if it exceeds the limits of that CI system."""
    system = next(row for row in table().system if row.name == name)
    hint = "narrow the matrix (--only '*-mkl-*', --python 3.12, --release 2.20), or split it by --target"
    if rows > system.jobs:
        raise UsageError(f"{rows} rows are more than the {system.jobs} jobs of one {name} matrix", hint=hint)
    if (size := len(text.encode(system.encoding))) > system.bytes:
        raise UsageError(
            f"these {rows} rows are {size:,} bytes, more than the {system.bytes:,} that {name} takes", hint=hint
        )
    return text


@dataclass(frozen=True, kw_only=True)
class BakeTarget:
    """A build, the folder of its context, and the Dockerfile's path in it."""

    build: Build
    context: str
    dockerfile: str = "Dockerfile"


def to_bake(matrix: Matrix, folder: Path) -> str:
    """Return docker-bake.hcl for the contexts below `folder`; it needs no frontend from a registry."""
    targets = [BakeTarget(build=build, context=str(folder / build.id)) for build in matrix.rows]
    title = "Written by tfbuild: docker buildx bake -f FILE [TARGET...]"
    return bake(title, {"default": matrix.rows}, targets)


def bake(title: str, groups: Mapping[str, Iterable[Build]], targets: Iterable[BakeTarget]) -> str:
    """Return docker-bake.hcl with a comment, groups of builds by their names, and a target for each build."""
    blocks = [f"# {title}"]
    for name, builds in groups.items():
        names = ", ".join(_hcl(target_name(build.id)) for build in builds)
        blocks.append(f"group {_hcl(name)} {{\n  targets = [{names}]\n}}")
    for target in targets:
        fields = (
            ("context", _hcl(target.context)),
            ("dockerfile", _hcl(target.dockerfile)),
            ("target", _hcl("runtime")),
            ("tags", f"[{_hcl(image_name(target.build, UNVERIFIED))}]"),
            ("platforms", f"[{_hcl(target.build.platform)}]"),
        )
        lines = "\n".join(f"  {name} = {value}" for name, value in fields)
        blocks.append(f"target {_hcl(target_name(target.build.id))} {{\n{lines}\n}}")
    return "\n\n".join(blocks) + "\n"


def target_name(identifier: str) -> str:
    """Return the name of a build's target: Bake allows letters, digits, "_" and "-", but no dots."""
    return identifier.replace(".", "_")


def _hcl(text: str) -> str:
    """Return a quoted HCL string, in ASCII whatever the file's encoding. Raises UsageError for what none can hold.

    `$` and `%` are escaped too, because `${` and `%{` start templates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"a bake file cannot hold {text!r}, which is not UTF-8", hint="--output with another name"
        ) from None
    return f'"{UNSAFE.sub(_escaped, text)}"'


def _escaped(unsafe: "re.Match[str]") -> str:
    code = ord(unsafe[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def write_contexts(matrix: Matrix, folder: Path, done: Callable[[str], None]) -> None:
    """Write the build context of each row below `folder`, and call `done` with its identifier."""
    for build in matrix.rows:
        dockerfile.write_context(build, folder / build.id)
        done(build.id)
