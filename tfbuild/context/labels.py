"""The name and the labels of an image: written from a `Build`, and read from what an engine or a registry has.

Images inherit labels, and anybody can write them: until it is checked, what is read is text with any content. The
annotations of a registry's index have the same names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild import __version__
from tfbuild.errors import UnknownImage, Unsupported, UsageError
from tfbuild.in_container.smoke import judge
from tfbuild.plan import Build
from tfbuild.util.terminal import as_text

if TYPE_CHECKING:
    from tfbuild.engine import Engine

REPOSITORY = "tfbuild"
# Behind the identifier, in the name of an image that no verification has passed.
UNVERIFIED = "-unverified"
PREFIX = "io.tfbuild."
SCHEMA = "1"
ID_LABEL = f"{PREFIX}id"
# Of a base image made from a distribution's packages.
BASE = f"{PREFIX}base"
# Docker 20.10 keeps a label of 32 KB byte for byte, and plans take 1 to 3 KB.
MOST_PLAN = 32_768
# The parts of a plan that `read_labels` returns as text.
PLAN_PARTS = ("instruction_set", "compiler", "bazel", "threading", "cuda", "cudnn", "copts", "compute_capabilities")
OCI = "org.opencontainers.image."
BASE_NAME = f"{OCI}base.name"
BASE_DIGEST = f"{OCI}base.digest"


# --- writing ----------------------------------------------------------------------------------------------------------


def image_name(build: Build, suffix: str = "") -> str:
    """Return tfbuild:ID, or ID with -unverified or -failed behind it."""
    return f"{REPOSITORY}:{build.id}{suffix}"


def labels_of(build: Build) -> dict[str, str]:
    """Return the image's labels, the OCI ones first; `${NAME}` is an argument of the Dockerfile.

    There is no label for licences: an expression of all that is inside would have hundreds of them (see the SBOM).
    """
    # The same for every build of the release, on any day.
    day, commit = build.as_released
    known = {"created": f"{day}T00:00:00Z" if day else "", "revision": commit}
    own = {
        "id": build.id,
        "release": build.release,
        "target": build.target,
        "python": build.python,
        "platform": build.platform,
        "features": " ".join(build.instruction_set.features),
        "context": "${CONTEXT_DIGEST}",
        "reused": "${REUSED}",
        "plan": _plan(build),
    }
    return {
        **descriptions(build.id, build.release, build.target, build.python, build.instruction_set.name),
        **{f"{OCI}{name}": value for name, value in known.items() if value},
        BASE_NAME: "${BASE_NAME}",
        BASE_DIGEST: "${BASE_DIGEST}",
        **prefixed(own),
    }


def _plan(build: Build) -> str:
    """Return the plan as one line of JSON, the same on every machine. Raises Unsupported if it is too long."""
    values = {name: value for name, value in build.to_json().items() if name != "notes" and value}
    text = json.dumps({"tfbuild": __version__, **named(values)}, separators=(",", ":"), sort_keys=True)
    if len(text) > MOST_PLAN:
        raise Unsupported(
            f"the plan takes {len(text):,} bytes as a label of the image, but engines keep only {MOST_PLAN:,}",
            hint="fewer or shorter values of --bazel-flag, --configure and --patch",
        )
    return text


def named(value: Any) -> Any:
    """Return a part of a plan with the names of files in place of their paths."""
    if isinstance(value, dict):
        path = value.get("path")
        own = {"path": Path(path).absolute().name} if isinstance(path, str | Path) and path else {}  # "." has no name
        return {key: named(item) for key, item in value.items()} | own
    return [named(item) for item in value] if isinstance(value, list | tuple) else value


def descriptions(own_id: str, release: str, target: str, python: str, instruction_set: str) -> dict[str, str]:
    """Return the OCI labels that repeat in words what tfbuild's own labels say."""
    title = f"TensorFlow {release} {target}"
    return {
        f"{OCI}title": title,
        f"{OCI}description": f"{title}, Python {python}, for {instruction_set}, with TCMalloc",
        f"{OCI}version": own_id,
    }


def prefixed(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values under the full names of labels: "id" becomes "io.tfbuild.id"."""
    return {f"{PREFIX}{name}": value for name, value in values.items()}


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ImageLabels:
    """The labels of an image, unchecked; a missing one is "". `own`: tfbuild's, by their names without the prefix.

    They include the parts of the plan: instruction-set, compiler, copts, wheel, requirement and the like.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    base_name: str = ""
    base_digest: str = ""

    def get(self, name: str) -> str:
        """Return the label `name`, given without the prefix."""
        return self.own.get(name, "")

    @property
    def id(self) -> str:
        return self.get("id")

    @property
    def context(self) -> str:
        """The digest of the context and the base that the image was made from."""
        return self.get("context")


def read_labels(labels: object) -> ImageLabels:
    """Read an image's labels, or an index's annotations, of any shape and content; never raises."""
    known = as_text(labels)
    own = {name.removeprefix(PREFIX): value for name, value in known.items() if name.startswith(PREFIX)}
    return ImageLabels(
        own=as_text(_parts(own.get("plan", ""))) | own,
        base_name=known.get(BASE_NAME, ""),
        base_digest=known.get(BASE_DIGEST, ""),
    )


def _parts(text: str) -> dict[str, str]:
    """Return the parts of the plan in a label as texts; {} for anything else."""
    try:
        plan = json.loads(text) if len(text) <= MOST_PLAN else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(plan, dict):
        return {}
    wheel, source = (value if isinstance(value := plan.get(name), dict) else {} for name in ("wheel", "source"))
    named = "@".join(str(source[part]) for part in ("tag", "commit") if source.get(part))
    archive = f"{source.get('kind')}@sha256:{source['sha256']}" if source.get("sha256") else ""
    parts = {name.replace("_", "-"): plan.get(name) for name in PLAN_PARTS} | {
        "version": plan.get("tfbuild"),
        "wheel": wheel.get("kind"),
        "requirement": wheel.get("requirement"),
        "source": named or archive or source.get("kind"),
    }
    return {
        name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in parts.items()
        if value
    }


def configured_labels(configuration: Mapping[str, object]) -> dict[str, str]:
    """Return the labels in an image's configuration, which may have any shape; other values become text."""
    inner = configuration.get("config")
    return as_text(inner.get("Labels") if isinstance(inner, dict) else None)


def smoke_plan(build: Build) -> judge.Plan:
    """Return what the smoke benchmark compares an image with, inside it and in a verification."""
    return judge.Plan(
        release=build.version,
        python=build.python,
        compiler=build.compiler,
        target=build.target,
        threading=build.threading,
        allocator="tcmalloc",
        checks=build.checks,
        known_defects=build.known_defects,
    )


# --- the names by which people give an image --------------------------------------------------------------------------
# They mean the same to every verb. ID, tfbuild:ID and HOST/PATH:ID are an identifier, alone or after a repository;
# sha256:... and HOST/PATH@sha256:... are a digest. An image of an engine also has the other names that it has there.

# RELEASE-TARGET-pyPYTHON-SET. A bare word of another form is the name of somebody else's image.
GIVEN_IDENTIFIER = re.compile(r"\d+\.\d+\.\d+[\w.]*-[a-z0-9]+-py\d+\.\d+-[\w.-]+", re.ASCII)
# What an engine can look up: a name, a digest, the beginning of an image's ID.
REFERENCE = re.compile(r"[a-zA-Z0-9\[][\w./:@\[\]-]*", re.ASCII)


def parse_name(name: str) -> tuple[str, str]:
    """Return the repository ("tfbuild", "HOST/PATH" or "") in a name, and its tag or digest, or ""."""
    before, at, digest = name.partition("@")
    repository, colon, tag = before.rpartition(":")
    if name.startswith("sha256:") or not (at or colon or "/" in name):
        return "", name
    return (repository, digest or tag) if colon and "/" not in tag else (before, digest)


def find_image(engine: "Engine", name: str) -> str:
    """Return the engine's own name of the image that `name` means.

    An identifier without a repository of a registry may have any repository on the engine, because a pulled image has
    that of its registry. Raises UnknownImage if there is no such image or there are several, UsageError for no name.
    """
    repository, reference = parse_name(name)
    if name and not REFERENCE.fullmatch(name):
        raise UsageError(f"{name!r} is not an image's name", hint="docker image ls tfbuild lists the images")
    exact = name if repository else f"{REPOSITORY}:{reference}"
    if not GIVEN_IDENTIFIER.fullmatch(reference):
        return name
    if engine.exists(exact):
        return exact
    tagged = ([tag for tag in image.tags if tag.endswith(f":{reference}")] for image in engine.labelled(ID_LABEL))
    names = sorted(min(tags) for tags in tagged if tags)
    if len(names) == 1 and repository in ("", REPOSITORY):
        return names[0]
    here = f"this engine has {', '.join(names)}" if names else "docker image ls lists all images"
    raise UnknownImage(f"no image {name!r} on this engine", hint=here)
