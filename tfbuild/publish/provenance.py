"""How an image was built, as an in-toto statement. The same image, SBOM, report and CI run give the same bytes.

Sources: github.com/in-toto/attestation, spec/v1/statement.md (v1.1.0); slsa.dev/spec/v1.0/provenance, "builder.id" (who
must be trusted) and "invocationId"; docs.github.com/en/actions/reference/workflows-and-actions/variables;
docs.gitlab.com/ci/variables/predefined_variables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tfbuild.context.labels import ImageLabels, read_labels
from tfbuild.engine import Image
from tfbuild.errors import VerificationFailed
from tfbuild.oci import manifests, references
from tfbuild.util.files import decode

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:tfbuild:image:1"
BUILDER = "urn:tfbuild:local"
# The request, and what tfbuild decided; SLSA separates the two.
REQUESTED = ("release", "target", "python", "platform", "wheel", "requirement", "source", "compute-capabilities")
DECIDED = (
    "instruction-set", "features", "copts", "compiler", "bazel", "allocator", "threading", "onednn", "context"
)  # fmt: skip
TENSORFLOW = "git+https://github.com/tensorflow/tensorflow"


@dataclass(frozen=True, kw_only=True)
class CiRun:
    """`builder`: the workflow or pipeline that ran; `invocation`: this run of it; `source`: the checkout it ran in."""

    builder: str
    invocation: str
    source: str
    commit: str


class Resource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact with its digests ("sha256" or "gitCommit" in hexadecimal)."""

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def sha256(self) -> str:
        """ "sha256:...", or "" if it has none."""
        return f"sha256:{self.digest['sha256']}" if "sha256" in self.digest else ""


class Definition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any]
    resolved_dependencies: tuple[Resource, ...]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """`builder` and `metadata` are written, and never read."""

    builder: dict[str, Any]
    metadata: dict[str, Any]
    byproducts: tuple[Resource, ...]


class Predicate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    build_definition: Definition
    run_details: Details


class Statement(msgspec.Struct, frozen=True, kw_only=True, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: str
    subject: tuple[Resource, ...]
    predicate_type: str
    predicate: Predicate

    def resource(self, name: str) -> Resource:
        """Return the by-product with that name; an empty one if there is none."""
        return next((item for item in self.predicate.run_details.byproducts if item.name == name), Resource())


def sbom_name(identifier: str) -> str:
    return f"{identifier}.cdx.json"


def report_name(identifier: str) -> str:
    return f"{identifier}.json"


def statement(
    image: Image,
    *,
    repository: str,
    digest: str,
    built: Mapping[str, str],
    wheel_sha256: str,
    git_version: str,
    report: bytes,
    verified: str,
    sbom: bytes,
    run: CiRun | None,
) -> Statement:
    """Return the statement about an image in a registry. `digest`: that of its manifest; `built`: the builder's notes.

    `git_version`: the version that TensorFlow itself reported in the verification at `verified` (RFC 3339).
    `run`: the CI run that publishes the image.
    """
    labels, known = image.labels, read_labels(image.labels)
    identifier, toolchain = known.id, built.get("builder", "")
    return Statement(
        type=STATEMENT,
        subject=(_resource(f"{repository}:{identifier}", digest),),
        predicate_type=PREDICATE,
        predicate=Predicate(
            build_definition=Definition(
                build_type=BUILD,
                external_parameters=parameters(labels, REQUESTED),
                internal_parameters=_internal_parameters(labels, built, git_version),
                resolved_dependencies=tuple(_dependencies(known, built, wheel_sha256, run)),
            ),
            run_details=Details(
                builder={
                    "id": run.builder if run else BUILDER,
                    "version": {"tfbuild": known.get("version")},
                    "builderDependencies": [msgspec.to_builtins(_resource("toolchain", toolchain))]
                    if toolchain
                    else [],
                },
                metadata={
                    "invocationId": run.invocation if run else known.context,
                    "finishedOn": image.created,
                },
                byproducts=(
                    _resource("configuration", image.id),
                    _resource(report_name(identifier), manifests.digest_of(report), created=verified),
                    _resource(sbom_name(identifier), manifests.digest_of(sbom)),
                ),
            ),
        ),
    )


def _internal_parameters(labels: Mapping[str, str], built: Mapping[str, str], git_version: str) -> dict[str, Any]:
    measured = {f"found-{name}": built[name] for name in ("compiler", "bazel") if built.get(name)}
    version = {"found-git-version": git_version} if git_version else {}
    return parameters(labels, DECIDED) | {"labels": dict(sorted(labels.items()))} | measured | version


def parameters(labels: Mapping[str, str], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the labels with these names that are not empty; lists as lists."""
    known = read_labels(labels)
    values = {name: known.get(name) for name in names}
    lists = ("features", "copts", "compute-capabilities")
    return {name: value.split() if name in lists else value for name, value in values.items() if value}


def _dependencies(
    labels: ImageLabels, built: Mapping[str, str], wheel_sha256: str, run: CiRun | None
) -> list[Resource]:
    """Return the base, the image that TensorFlow was taken from, its source and wheel if known, the CI's checkout."""
    resources = []
    if base := labels.base_digest:
        resources.append(_resource(f"base {labels.base_name}".strip(), base))
    name, _, image_digest = labels.get("reused").partition("@")
    if references.DIGEST.fullmatch(image_digest):
        resources.append(_resource(f"reused {name}", image_digest))
    if commit := built.get("source_commit", ""):
        resources.append(Resource(name="tensorflow source", uri=TENSORFLOW, digest={"gitCommit": commit}))
    if wheel_sha256 or _on_pypi(labels):
        # pip's requirement of an official wheel, or a file's name; no label names a compiled one.
        name = labels.get("requirement") or "tensorflow wheel"
        digest = {"sha256": wheel_sha256} if wheel_sha256 else {}
        resources.append(Resource(name=name, uri=_on_pypi(labels), digest=digest))
    if run is not None:
        resources.append(Resource(name="checkout", uri=run.source, digest={"gitCommit": run.commit}))
    return resources


def _on_pypi(labels: ImageLabels) -> str:
    """Return the package URL of an official wheel, which PyPI has; else ""."""
    project, _, version = labels.get("requirement").partition("==")
    return f"pkg:pypi/{project}@{version}" if labels.get("wheel") == "official" and version else ""


def _resource(name: str, digest: str, **annotations: str) -> Resource:
    algorithm, _, value = digest.partition(":")
    return Resource(name=name, digest={algorithm: value} if value else {}, annotations=annotations)


def to_json(statement: Statement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(statement, order="sorted"), indent=2) + b"\n"


def from_json(content: bytes) -> Statement:
    """Parse a statement that tfbuild wrote. Raises ValueError if it is not one."""
    try:
        statement = decode(content, Statement)
    except ValueError as error:
        raise ValueError(f"not a provenance statement: {error}") from error
    if (statement.type, statement.predicate_type) != (STATEMENT, PREDICATE):
        raise ValueError(f"a {statement.predicate_type}, not an SLSA provenance v1")
    if statement.predicate.build_definition.build_type != BUILD:
        raise ValueError(f"of build type {statement.predicate.build_definition.build_type}, not tfbuild's")
    return statement


def refuse_other(statement: Statement, *, digest: str, config: str, labels: Mapping[str, str]) -> None:
    """Raise VerificationFailed if the statement is about another image, or differs from the image's labels."""
    hint = "one of the two was changed after the push: do not use it, and find out who changed it"
    if [subject.digest.get("sha256") for subject in statement.subject] != [digest.removeprefix("sha256:")]:
        raise VerificationFailed(f"the provenance is about another image than {digest}", hint=hint)
    if statement.resource("configuration").sha256 != config:
        raise VerificationFailed(f"the provenance names another configuration than {config}", hint=hint)
    definition = statement.predicate.build_definition
    recorded = definition.internal_parameters.get("labels")
    if recorded != dict(labels):
        changed = _differing(recorded if isinstance(recorded, dict) else {}, labels)
        raise VerificationFailed(f"the image's labels differ from its provenance: {', '.join(changed)}", hint=hint)
    decided = {name: definition.internal_parameters.get(name) for name in parameters(labels, DECIDED)}
    if definition.external_parameters != parameters(labels, REQUESTED) or decided != parameters(labels, DECIDED):
        raise VerificationFailed("the provenance's parameters differ from the image's labels", hint=hint)


def _differing(recorded: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*recorded, *labels} if recorded.get(name) != labels.get(name))


# --- the CI run, by variables that are only as trustworthy as whoever sets them ---------------------------------------


def this_run(env: Mapping[str, str]) -> CiRun | None:
    """Return the current CI run; None outside of a CI, or if it does not set all variables."""
    if env.get("GITHUB_ACTIONS") == "true":
        return _github(env)
    if env.get("GITLAB_CI") == "true":
        return _gitlab(env)
    return None


def _github(env: Mapping[str, str]) -> CiRun | None:
    server, repository, run = (env.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    workflow, commit = env.get("GITHUB_WORKFLOW_REF"), env.get("GITHUB_SHA")
    if not (server and repository and run and workflow and commit):
        return None
    return CiRun(
        builder=f"{server}/{workflow}",
        invocation=f"{server}/{repository}/actions/runs/{run}/attempts/{env.get('GITHUB_RUN_ATTEMPT') or '1'}",
        source=f"git+{server}/{repository}",
        commit=commit,
    )


def _gitlab(env: Mapping[str, str]) -> CiRun | None:
    project, job, commit = env.get("CI_PROJECT_URL"), env.get("CI_JOB_URL"), env.get("CI_COMMIT_SHA")
    if not (project and job and commit):
        return None
    reference = env.get("CI_COMMIT_REF_NAME") or commit
    return CiRun(
        builder=f"{project}//{env.get('CI_CONFIG_PATH') or '.gitlab-ci.yml'}@{reference}",
        invocation=job,
        source=f"git+{project}",
        commit=commit,
    )
