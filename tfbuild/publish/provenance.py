"""What made an image, as an in-toto statement. The same image, SBOM, report and run of a CI give the same bytes.

Sources: github.com/in-toto/attestation, spec/v1/statement.md (v1.1.0); slsa.dev/spec/v1.0/provenance.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tfbuild.context.labels import ImageLabels, read_labels
from tfbuild.engine import Image
from tfbuild.errors import VerificationFailed
from tfbuild.oci import client
from tfbuild.publish.ci_run import CiRun

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:tfbuild:image:1"
BUILDER = "urn:tfbuild:local"
# What was asked for, and what tfbuild made of it; SLSA keeps the two apart.
ASKED = ("release", "target", "python", "platform", "wheel", "requirement", "source", "compute-capabilities")
DECIDED = (
    "instruction-set", "features", "copts", "compiler", "bazel", "allocator", "threading", "onednn", "context"
)  # fmt: skip
TENSORFLOW = "git+https://github.com/tensorflow/tensorflow"


class Resource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thing by its digests ("sha256" or "gitCommit" in hexadecimal)."""

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def sha256(self) -> str:
        """ "sha256:...", or "" where it has none."""
        return f"sha256:{self.digest['sha256']}" if "sha256" in self.digest else ""


class Definition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any]
    resolved_dependencies: tuple[Resource, ...]


class ProvenanceBuilder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    version: dict[str, str]
    builder_dependencies: tuple[Resource, ...] = ()


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    invocation_id: str
    finished_on: str


class Details(msgspec.Struct, frozen=True, kw_only=True):
    builder: ProvenanceBuilder
    metadata: Metadata
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
        """The by-product of that name; an empty one where there is none."""
        return next((one for one in self.predicate.run_details.byproducts if one.name == name), Resource())


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
    """The statement on an image in a registry. `digest`: of its manifest; `built`: the builder's own notes.

    `git_version`: what TensorFlow itself said of its commit when it was verified, which was at `verified` (RFC 3339).
    `run`: of the CI that publishes it.
    """
    labels, known = image.labels, read_labels(image.labels)
    identifier = known.id
    toolchain = [_resource("toolchain", built["builder"])] if built.get("builder") else []
    return Statement(
        type=STATEMENT,
        subject=(_resource(f"{repository}:{identifier}", digest),),
        predicate_type=PREDICATE,
        predicate=Predicate(
            build_definition=Definition(
                build_type=BUILD,
                external_parameters=parameters(labels, ASKED),
                internal_parameters=parameters(labels, DECIDED)
                | {"labels": dict(sorted(labels.items()))}
                | {f"found-{name}": built[name] for name in ("compiler", "bazel") if built.get(name)}
                | ({"found-git-version": git_version} if git_version else {}),
                resolved_dependencies=tuple(_dependencies(known, built, wheel_sha256, run)),
            ),
            run_details=Details(
                builder=ProvenanceBuilder(
                    id=run.builder if run else BUILDER,
                    version={"tfbuild": known.get("version")},
                    builder_dependencies=tuple(toolchain),
                ),
                metadata=Metadata(
                    invocation_id=run.invocation if run else known.context,
                    finished_on=image.created,
                ),
                byproducts=(
                    _resource("configuration", image.id),
                    _resource(report_name(identifier), client.digest_of(report), created=verified),
                    _resource(sbom_name(identifier), client.digest_of(sbom)),
                ),
            ),
        ),
    )


def parameters(labels: Mapping[str, str], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the labels that say something; lists as lists."""
    known = read_labels(labels)
    told = {name: known.get(name) for name in names}
    lists = ("features", "copts", "compute-capabilities")
    return {name: value.split() if name in lists else value for name, value in told.items() if value}


def _dependencies(
    labels: ImageLabels, built: Mapping[str, str], wheel_sha256: str, run: CiRun | None
) -> list[Resource]:
    """The base, TensorFlow's source and its wheel, as far as their digests are known, and the CI's checkout."""
    found = []
    if base := labels.base_digest:
        found.append(_resource(f"base {labels.base_name}".strip(), base))
    if commit := built.get("source_commit", ""):
        found.append(Resource(name="tensorflow source", uri=TENSORFLOW, digest={"gitCommit": commit}))
    if wheel_sha256:
        found.append(Resource(name="tensorflow wheel", digest={"sha256": wheel_sha256}))
    if run is not None:
        found.append(Resource(name="checkout", uri=run.source, digest={"gitCommit": run.commit}))
    return found


def _resource(name: str, digest: str, **annotations: str) -> Resource:
    algorithm, _, value = digest.partition(":")
    return Resource(name=name, digest={algorithm: value} if value else {}, annotations=annotations)


def to_json(told: Statement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(told, order="sorted"), indent=2) + b"\n"


def from_json(content: bytes) -> Statement:
    """A statement of tfbuild's on an image; ValueError where it is none."""
    try:
        found = msgspec.json.decode(content, type=Statement)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"no provenance statement: {error}") from error
    if (found.type, found.predicate_type) != (STATEMENT, PREDICATE):
        raise ValueError(f"a {found.predicate_type} and no SLSA provenance v1")
    if found.predicate.build_definition.build_type != BUILD:
        raise ValueError(f"of {found.predicate.build_definition.build_type}, and not of tfbuild")
    return found


def refuse_other(told: Statement, *, digest: str, config: str, labels: Mapping[str, str]) -> None:
    """VerificationFailed where the statement is on another image than this one, or differs from its labels."""
    hint = "the image or its provenance was changed after the push: do not use it, and push it again"
    wanted = digest.removeprefix("sha256:")
    if [one.digest.get("sha256") for one in told.subject] != [wanted]:
        raise VerificationFailed(f"the provenance is about another image than {digest}", hint=hint)
    if told.resource("configuration").sha256 != config:
        raise VerificationFailed(f"the provenance names another configuration than {config}", hint=hint)
    definition = told.predicate.build_definition
    said = definition.internal_parameters.get("labels")
    if said != dict(labels):
        changed = _differing(said if isinstance(said, dict) else {}, labels)
        raise VerificationFailed(f"the image's labels differ from its provenance: {', '.join(changed)}", hint=hint)
    decided = {name: definition.internal_parameters.get(name) for name in parameters(labels, DECIDED)}
    if definition.external_parameters != parameters(labels, ASKED) or decided != parameters(labels, DECIDED):
        raise VerificationFailed("the provenance's parameters differ from the image's labels", hint=hint)


def _differing(said: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*said, *labels} if said.get(name) != labels.get(name))
