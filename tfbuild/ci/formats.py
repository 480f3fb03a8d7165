"""The formats of `invoke matrix`: each is one `Format`, with its writer, its empty case and its CI system's limits."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfbuild.ci.matrix import Refused, recipe_digest_of, table
from tfbuild.ci.runners import Schedule
from tfbuild.context import dockerfile
from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.errors import UsageError, without_secrets
from tfbuild.plan import Build
from tfbuild.util import terminal

SCHEMA = "tfbuild.matrix/1"
# The job in .gitlab-ci.yml that each row of a child pipeline extends.
GITLAB_JOB = ".tfbuild"
# Letters that have a meaning in a quoted HCL string, and those outside printable ASCII.
UNSAFE = re.compile(r'["\\$%]|[^ -~]')


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format: `write` returns the text for the rows, with the labels of their machines.

    `empty`: the text if no row is left, because CI systems refuse a matrix without rows. `ci`: its name is that of a CI
    system, with machines and limits in matrix.toml. `contexts`: the text names build contexts, written beside it.
    """

    write: Callable[[Schedule, Path], str]
    empty: str | None = None
    ci: bool = False
    contexts: bool = False


def text(name: str, schedule: Schedule, folder: Path) -> str:
    """Return the rows in that format; `folder`: for build contexts. Raises UsageError beyond its CI system's limits."""
    form = FORMATS[name]
    if not schedule.rows and form.empty is not None:
        return form.empty
    written = form.write(schedule, folder)
    if form.ci:
        _refuse_too_large(name, len(schedule.rows), written)
    return written


def _refuse_too_large(name: str, rows: int, text: str) -> None:
    system = next(row for row in table().system if row.name == name)
    hint = "narrow the matrix (--only '*-mkl-*', --python 3.12, --release 2.20), or split it by --target"
    if rows > system.jobs:
        raise UsageError(f"{rows} rows are more than the {system.jobs} jobs of one {name} matrix", hint=hint)
    if (size := len(text.encode(system.encoding))) > system.bytes:
        raise UsageError(
            f"these {rows} rows are {size:,} bytes, more than the {system.bytes:,} that {name} takes", hint=hint
        )


def _table(schedule: Schedule, folder: Path) -> str:
    """Return the builds, those that differ only in Python on one line."""
    pythons: dict[tuple[str, ...], list[str]] = {}
    for build, _ in schedule.rows:
        key = (build.release, build.target, build.platform, build.instruction_set.name, build.wheel.kind)
        pythons.setdefault(key, []).append(build.python)
    rows = ((*fields, " ".join(versions)) for fields, versions in pythons.items())
    return terminal.table_text(("release", "target", "platform", "compiled for", "wheel", "Python"), rows)


def _json(schedule: Schedule, folder: Path) -> str:
    """Return the whole matrix, for scripts; `context`: the digest of the recipe."""
    document = {
        "schema": SCHEMA,
        "rows": [
            {**_row(build), "features": list(build.instruction_set.features), "context": recipe_digest_of(build)}
            for build, _ in schedule.rows
        ],
        "refused": [_refusal(refused) for refused in schedule.refused],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _refusal(refused: Refused) -> dict[str, str]:
    request = refused.request
    fields = {
        "release": request.release,
        "target": request.target,
        "python": request.python,
        "platform": request.platform,
        "cpu": request.cpu,
        "wheel": request.wheel or "source",
        "reason": without_secrets(refused.reason),
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


def _github(schedule: Schedule, folder: Path) -> str:
    """Return `strategy.matrix` for GitHub Actions, in one line for $GITHUB_OUTPUT."""
    rows = [{**_row(build), "runner": label} for build, label in schedule.rows]
    return json.dumps({"include": rows}, separators=(",", ":")) + "\n"


def _gitlab(schedule: Schedule, folder: Path) -> str:
    """Return a child pipeline for GitLab (JSON is YAML): one job per row, extending the repository's own `.tfbuild`."""
    rows = [
        {"TFBUILD_ID": build.id, "TFBUILD_OPTIONS": dockerfile.options(build), "TFBUILD_RUNNER": label}
        for build, label in schedule.rows
    ]
    # GitLab expands $NAME in the values of variables; $$ is a dollar sign.
    escaped = [{name: value.replace("$", "$$") for name, value in row.items()} for row in rows]
    job = {"extends": GITLAB_JOB, "tags": ["$TFBUILD_RUNNER"], "parallel": {"matrix": escaped}}
    return json.dumps({"include": [{"local": ".gitlab-ci.yml"}], "build": job}) + "\n"


def _bake(schedule: Schedule, folder: Path) -> str:
    """Return docker-bake.hcl for the contexts below `folder`; it needs no frontend from a registry."""
    builds = [build for build, _ in schedule.rows]
    targets = [BakeTarget(build=build, context=str(folder / build.id)) for build in builds]
    return bake("Written by tfbuild: docker buildx bake -f FILE [TARGET...]", {"default": builds}, targets)


FORMATS: Mapping[str, Format] = {
    "table": Format(write=_table),
    "json": Format(write=_json),
    "bake": Format(write=_bake, contexts=True),
    "github": Format(write=_github, empty="\n", ci=True),
    "gitlab": Format(
        write=_gitlab, empty=json.dumps({"unchanged": {"script": ["echo nothing to build"]}}) + "\n", ci=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class BakeTarget:
    """A build, the folder of its context, and the Dockerfile's path in it."""

    build: Build
    context: str
    dockerfile: str = "Dockerfile"


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


def write_contexts(builds: Iterable[Build], folder: Path, done: Callable[[str], None]) -> None:
    """Write the context of each build below `folder`, and call `done` with its identifier."""
    for build in builds:
        dockerfile.write_context(build, folder / build.id)
        done(build.id)
