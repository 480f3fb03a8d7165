"""The name and the labels of an image: written from a `Build`, and read from what an engine or a registry has.

Images inherit labels, and anybody can write them: until it is checked, what is read is text with any content. The
annotations of a registry's index have the same names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild import __version__, plan
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import UnknownImage, Unsupported, UsageError
from tfbuild.in_container.smoke import judge
from tfbuild.oci import references
from tfbuild.plan import Build
from tfbuild.plan.build import Wheel
from tfbuild.util.terminal import as_text

if TYPE_CHECKING:
    from tfbuild.engine import Engine

REPOSITORY = "tfbuild"
# Behind the identifier, in the name of an image that no verification has passed.
UNVERIFIED = "-unverified"
PREFIX = "io.tfbuild."
SCHEMA = "1"
ALLOCATOR = "tcmalloc"
ID = f"{PREFIX}id"
# Of a base image made from a distribution's packages.
BASE = f"{PREFIX}base"
# What each label that tfbuild writes says, by its name without the prefix.
MEANINGS = {
    "id": "identifier of the build, which is also the tag",
    "release": "TensorFlow release",
    "target": "`cpu`, `mkl` or `cuda`",
    "python": "Python version",
    "platform": "operating system and architecture",
    "features": "CPU features that the image needs; its entry point checks them",
    "context": "digest of the build context and the base image",
    "reused": "the image of the same context from which `--reuse` took TensorFlow; empty where it was installed anew",
    "plan": "the plan, as `invoke plan --json` prints it, without what is empty and without notes; and the version of "
    "tfbuild",
}
# Docker 20.10 keeps a label of 32 KB byte for byte, and plans take 1 to 3 KB.
MOST_PLAN = 32_768
# All that an image of this version can have.
OWN = frozenset(f"{PREFIX}{name}" for name in (*MEANINGS, "base"))
# The parts of a plan that `read_labels` returns as text.
PARTS = ("instruction_set", "compiler", "bazel", "threading", "cuda", "cudnn", "copts", "compute_capabilities")
OCI = "org.opencontainers.image."
BASE_NAME = f"{OCI}base.name"
BASE_DIGEST = f"{OCI}base.digest"
# The repository that publishes the image, by which GHCR links a package with it.
SOURCE = f"{OCI}source"
SOURCE_VARIABLE = "TFBUILD_IMAGE_SOURCE"
WEB_ADDRESS = re.compile(r"https?://[^\s\"'\\$]+")


# --- writing ----------------------------------------------------------------------------------------------------------


def image_name(build: Build, suffix: str = "") -> str:
    """Return tfbuild:ID, or ID with -unverified or -failed behind it."""
    return f"{REPOSITORY}:{build.id}{suffix}"


def labels_of(build: Build) -> dict[str, str]:
    """Return the image's labels, the OCI ones first; `${NAME}` is an argument of the Dockerfile."""
    compiled = build.instruction_set.name
    return {
        **descriptions(build.id, build.release, build.target, build.python, compiled),
        **_release(build),
        BASE_NAME: "${BASE_NAME}",
        BASE_DIGEST: "${BASE_DIGEST}",
    } | prefixed(
        {
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
    )


def _plan(build: Build) -> str:
    """Return the plan as one line of JSON, the same on every machine. Raises Unsupported if it is too long."""
    values = {name: value for name, value in build.to_json().items() if name != "notes" and value}
    text = json.dumps({"tfbuild": __version__, **_named(values)}, separators=(",", ":"), sort_keys=True)
    if len(text) > MOST_PLAN:
        raise Unsupported(
            f"the plan takes {len(text):,} bytes as a label of the image, and engines keep {MOST_PLAN:,}",
            hint="fewer or shorter values of --bazel-flag, --configure and --patch",
        )
    return text


def _named(value: Any) -> Any:
    """Return a part of a plan with the names of files in place of their paths."""
    if isinstance(value, dict):
        return {key: Path(item).name if key == "path" and item else _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list | tuple) else value


def descriptions(own_id: str, release: str, target: str, python: str, instruction_set: str) -> dict[str, str]:
    """Return the OCI labels that repeat in words what tfbuild's own labels say."""
    title = f"TensorFlow {release} {target}"
    return {
        f"{OCI}title": title,
        f"{OCI}description": f"{title}, Python {python}, for {instruction_set}, with TCMalloc",
        f"{OCI}version": own_id,
    }


def _release(build: Build) -> dict[str, str]:
    """Return when TensorFlow's release came out, and its commit: the same for every build of it, on any day.

    There is no label for licences: an expression of all that is inside would have hundreds of them (see the SBOM).
    """
    day, commit = build.as_released
    known = {"created": f"{day}T00:00:00Z" if day else "", "revision": commit}
    return {f"{OCI}{name}": value for name, value in known.items() if value}


def given_at_build(env: Mapping[str, str]) -> dict[str, str]:
    """Return the label that depends on who builds: the address of TFBUILD_IMAGE_SOURCE, else of the CI's repository.

    It is not in the Dockerfile, so that forks build the same contexts. Raises UsageError for what is not a URL.
    Sources of the CI's variables: docs.github.com/en/actions/reference/workflows-and-actions/variables;
    docs.gitlab.com/ci/variables/predefined_variables.
    """
    source = env.get(SOURCE_VARIABLE, "")
    if source and not _is_web_address(source):
        raise UsageError(
            f"{SOURCE_VARIABLE} is {source!r}, which is not a URL",
            hint="for example https://github.com/us/tfbuild",
        )
    if not source and env.get("GITHUB_ACTIONS") == "true":
        source = f"{env.get('GITHUB_SERVER_URL', '')}/{env.get('GITHUB_REPOSITORY', '')}"
    elif not source and env.get("GITLAB_CI") == "true":
        source = env.get("CI_PROJECT_URL", "")
    return {SOURCE: source} if _is_web_address(source) else {}


def _is_web_address(text: str) -> bool:
    return bool(WEB_ADDRESS.fullmatch(text)) and text.isprintable()


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
    archive = f"sha256:{source['sha256']}" if source.get("sha256") else ""
    parts = {name.replace("_", "-"): plan.get(name) for name in PARTS} | {
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


def identifier(image: str, labels: object) -> str:
    """Return the identifier in the labels of `image`; raises UnknownImage if they have none."""
    if not (own_id := read_labels(labels).id):
        raise UnknownImage(f"{image} was not made by tfbuild: it has no io.tfbuild labels", hint="invoke build")
    return own_id


# --- the plan in them -------------------------------------------------------------------------------------------------

# The identifier names the report's files.
IDENTIFIER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)
NEEDED = ("id", "release", "python", "target", "platform", "features")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan in an image's labels. `features` are canonical names; `version`: of the tfbuild that made the image."""

    id: str
    release: str
    python: str
    target: str
    arch: str
    features: frozenset[str]
    threading: str
    wheel: str = ""
    requirement: str = ""
    instruction_set: str = ""
    compiler: str = ""
    compute_capabilities: tuple[str, ...] = ()
    version: str = ""

    @classmethod
    def from_labels(cls, ref: str, labels: Mapping[str, str], architecture: str) -> "Planned":
        """Read the labels; raises UnknownImage if tfbuild made no such image for that architecture ("amd64")."""
        image, platform = read_labels(labels), f"linux/{architecture}"
        if missing := [PREFIX + name for name in NEEDED if name not in image.own]:
            lacks = f"label {missing[0]}" if image.own else "io.tfbuild labels"
            raise UnknownImage(f"{ref} was not made by tfbuild: it has no {lacks}", hint="invoke build")
        readable = {
            "id": bool(IDENTIFIER.fullmatch(image.id)),
            "python": bool(PYTHON.fullmatch(image.get("python"))),
            "release": plan.is_version(image.get("release")),
            "target": plan.is_target(image.get("target")),
            "platform": image.get("platform") == platform and platform in plan.PLATFORMS,
        }
        if bad := [name for name, good in readable.items() if not good]:
            raise UnknownImage(f"{ref} has an unreadable label {PREFIX}{bad[0]}: {image.get(bad[0])[:40]!r}")
        return cls(
            id=image.id,
            release=image.get("release"),
            python=image.get("python"),
            target=image.get("target"),
            arch=plan.PLATFORMS[platform],
            features=frozenset(image.get("features").split()),
            threading=image.get("threading"),
            wheel=image.get("wheel"),
            requirement=image.get("requirement"),
            instruction_set=image.get("instruction-set"),
            compiler=image.get("compiler"),
            compute_capabilities=tuple(image.get("compute-capabilities").split()),
            version=image.get("version"),
        )

    @property
    def platform(self) -> str:
        return plan.MACHINES[self.arch]

    @cached_property
    def build(self) -> Build:
        """The build as far as its labels say it."""
        start = f"{self.release}-{self.target}-py{self.python}-{self.instruction_set}"
        compiled = InstructionSet(
            name=self.instruction_set, arch=self.arch, level="", features=tuple(sorted(self.features)), option=""
        )
        return Build(
            release=self.release,
            python=self.python,
            target=self.target,
            platform=self.platform,
            instruction_set=compiled,
            wheel=Wheel(kind=self.wheel, requirement=self.requirement, constraints=()),
            base_image="",
            base_distribution="",
            with_headers=False,
            compiler=self.compiler,
            threading=self.threading,
            compute_capabilities=self.compute_capabilities,
            variant=(variant,) if (variant := self.id.removeprefix(start).removeprefix("-")) else (),
        )

    def smoke(self) -> judge.Plan:
        """Return what the smoke benchmark's judgement needs."""
        return judge.Plan(
            release=self.build.version,
            python=self.python,
            compiler=self.compiler,
            target=self.target,
            threading=self.threading,
            allocator=ALLOCATOR,
            checks=self.build.checks,
            known_defects=self.build.known_defects,
        )


# --- the names by which people give an image --------------------------------------------------------------------------
# They mean the same to every verb. ID, tfbuild:ID and HOST/PATH:ID are an identifier, alone or after a repository;
# sha256:... and HOST/PATH@sha256:... are a digest. An image of an engine also has the other names that it has there.

# RELEASE-TARGET-pyPYTHON-SET. A bare word of another form is the name of somebody else's image.
GIVEN_IDENTIFIER = re.compile(r"\d+\.\d+\.\d+[\w.]*-[a-z0-9]+-py\d+\.\d+-[\w.-]+", re.ASCII)
# What an engine can look up: a name, a digest, the beginning of an image's ID.
REFERENCE = re.compile(r"[a-zA-Z0-9\[][\w./:@\[\]-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ImageName:
    """The parts of a name. `repository`: "tfbuild", "HOST/PATH", or ""; `reference`: a tag, a digest, or ""."""

    repository: str
    reference: str

    @property
    def registry(self) -> str:
        """The repository if it is in a registry, else ""."""
        host, slash, _ = self.repository.partition("/")
        return self.repository if slash and references.is_host(host) else ""


def parse_name(name: str) -> ImageName:
    """Split a name into its parts. A word without a repository is a reference; a path without a tag has none."""
    if name.startswith("sha256:"):
        return ImageName(repository="", reference=name)
    before, _, digest = name.partition("@")
    repository, colon, tag = before.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = before, ""
    if tag or digest:
        return ImageName(repository=repository, reference=digest or tag)
    return ImageName(repository=before, reference="") if "/" in before else ImageName(repository="", reference=before)


def find_image(engine: "Engine", name: str) -> str:
    """Return the engine's own name of the image that `name` means.

    An identifier without a repository of a registry may have any repository on the engine, because a pulled image has
    that of its registry. Raises UnknownImage if there is no such image, UsageError if there are several.
    """
    parsed = parse_name(name)
    identifier = parsed.reference
    if name and not REFERENCE.fullmatch(name):
        raise UsageError(f"{name!r} is not an image's name", hint="docker images tfbuild lists them")
    if not GIVEN_IDENTIFIER.fullmatch(identifier):
        return name
    exact = name if parsed.repository else f"{REPOSITORY}:{identifier}"
    if engine.exists(exact):
        return exact
    images = {image.id: _tagged(image.tags, identifier) for image in engine.labelled(ID)}
    names = sorted(filter(None, images.values()))
    anywhere = parsed.repository in ("", REPOSITORY)
    if anywhere and len(names) == 1:
        return names[0]
    if anywhere and names:
        raise UsageError(f"{name} may be any of several images: {', '.join(names)}", hint="give one of these names")
    here = f"here is {', '.join(names)}" if names else "docker images lists all images"
    raise UnknownImage(f"no image {name!r} on this engine", hint=here)


def _tagged(tags: tuple[str, ...], identifier: str) -> str:
    """Return the first name with this tag, or ""."""
    return min((tag for tag in tags if tag.rpartition(":")[2] == identifier), default="")
