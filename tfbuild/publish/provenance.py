"""How an image was built, as an in-toto statement. The same image, SBOM, report and CI run give the same bytes.

Sources: github.com/in-toto/attestation, spec/v1/statement.md (v1.1.0); slsa.dev/spec/v1.0/provenance, "builder.id" (who
must be trusted) and "invocationId"; docs.github.com/en/actions/reference/workflows-and-actions/variables;
docs.gitlab.com/ci/variables/predefined_variables.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfbuild.context.labels import ImageLabels, read_labels
from tfbuild.engine import Engine, Image
from tfbuild.oci import client, manifests, references
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import sbom
from tfbuild.verify import report as reporting

BUILD = "urn:tfbuild:image:1"
BUILDER = "urn:tfbuild:local"
# The request; what tfbuild decided is in the labels. SLSA separates the two.
REQUESTED = ("release", "target", "python", "platform", "wheel", "requirement", "source", "compute-capabilities")
TENSORFLOW = "git+https://github.com/tensorflow/tensorflow"


# By what says that a CI runs: the workflow or pipeline, this run of it, and the checkout in which it ran.
RUNS = {
    "GITHUB_ACTIONS": {
        "builder": "{GITHUB_SERVER_URL}/{GITHUB_WORKFLOW_REF}",
        "invocation": "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}"
        "/attempts/{GITHUB_RUN_ATTEMPT}",
        "source": "git+{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}",
        "commit": "{GITHUB_SHA}",
    },
    "GITLAB_CI": {
        "builder": "{CI_PROJECT_URL}//{CI_CONFIG_PATH}@{CI_COMMIT_REF_NAME}",
        "invocation": "{CI_JOB_URL}",
        "source": "git+{CI_PROJECT_URL}",
        "commit": "{CI_COMMIT_SHA}",
    },
}


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
    bill: bytes,
    run: Mapping[str, str] | None,
) -> bytes:
    """Return the statement about an image in a registry. `digest`: that of its manifest; `built`: the builder's notes.

    `git_version`: the version that TensorFlow itself reported in the verification at `verified` (RFC 3339).
    `run`: the CI run that publishes the image.
    """
    known = read_labels(image.labels)
    found = {f"found-{name}": built.get(name, "") for name in ("compiler", "bazel")} | {
        "found-git-version": git_version
    }
    toolchain = built.get("builder", "")
    predicate = {
        "buildDefinition": {
            "buildType": BUILD,
            "externalParameters": {name: value for name in REQUESTED if (value := known.get(name))},
            "internalParameters": {name: value for name, value in found.items() if value} | {"labels": image.labels},
            "resolvedDependencies": _dependencies(known, built, wheel_sha256, run),
        },
        "runDetails": {
            "builder": {
                "id": run["builder"] if run else BUILDER,
                "version": {"tfbuild": known.get("version")},
                "builderDependencies": [_resource("toolchain", toolchain)] if toolchain else [],
            },
            "metadata": {"invocationId": run["invocation"] if run else known.context, "finishedOn": image.created},
            "byproducts": [
                _resource("configuration", image.id),
                _resource(f"{known.id}.json", manifests.digest_of(report), annotations={"created": verified}),
                _resource(f"{known.id}.cdx.json", manifests.digest_of(bill)),
            ],
        },
    }
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [_resource(f"{repository}:{known.id}", digest)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _dependencies(
    labels: ImageLabels, built: Mapping[str, str], wheel_sha256: str, run: Mapping[str, str] | None
) -> list[dict[str, Any]]:
    """Return the base, the image that TensorFlow was taken from, its source and wheel if known, the CI's checkout."""
    resources = []
    if base := labels.base_digest:
        resources.append(_resource(f"base {labels.base_name}".strip(), base))
    name, _, image_digest = labels.get("reused").partition("@")
    if references.DIGEST.fullmatch(image_digest):
        resources.append(_resource(f"reused {name}", image_digest))
    if commit := built.get("source_commit", ""):
        resources.append(_resource("tensorflow source", f"gitCommit:{commit}", uri=TENSORFLOW))
    project, _, version = labels.get("requirement").partition("==")
    # Without the extras of tensorflow[and-cuda].
    on_pypi = f"pkg:pypi/{project.partition('[')[0]}@{version}" if labels.get("wheel") == "official" and version else ""
    if wheel_sha256 or on_pypi:
        # pip's requirement of an official wheel, or a file's name; no label names a compiled one.
        digest = f"sha256:{wheel_sha256}" if wheel_sha256 else ""
        resources.append(_resource(labels.get("requirement") or "tensorflow wheel", digest, uri=on_pypi))
    if run is not None:
        resources.append(_resource("checkout", f"gitCommit:{run['commit']}", uri=run["source"]))
    return resources


def _resource(name: str, digest: str, **more: object) -> dict[str, Any]:
    """Return an artifact with its digest ("sha256:..." or "gitCommit:..."), without what is not known."""
    algorithm, _, value = digest.partition(":")
    known = {"digest": {algorithm: value} if value else {}, **more}
    return {"name": name} | {key: value for key, value in known.items() if value}


# --- the CI run, by variables that are only as trustworthy as whoever sets them ---------------------------------------


def this_run(env: Mapping[str, str]) -> dict[str, str] | None:
    """Return the current CI run by the fields of RUNS; None outside of a CI, or if it does not set all variables."""
    known = {name: value for name, value in env.items() if value}
    for variable, fields in RUNS.items():
        with suppress(KeyError):
            if known.get(variable) == "true":
                return {field: text.format_map(known) for field, text in fields.items()}
    return None


# --- both documents, attached in a registry ---------------------------------------------------------------------------


def attach(engine: Engine, image: Image, registry: Registry, manifest: Manifest, reports: Path) -> list[str]:
    """Attach the SBOM and the provenance of an image in the registry.

    Returns the digests of the manifests that attach them, in that order.
    """
    identifier = read_labels(image.labels).id
    report = reporting.proof(reports, identifier, image.id)
    assert report is not None  # the push has read it
    contents = sbom.read_contents(engine, image.id)
    # The engine may know it by another digest.
    subject = replace(image, id=manifest.config)
    bill = sbom.document(subject, contents)
    made = statement(
        subject,
        repository=str(registry.repository),
        digest=manifest.digest,
        built=contents.built,
        wheel_sha256=sbom.wheel_digest(contents, image.labels),
        git_version=report.software.git if report.software else "",
        report=(reports / f"{identifier}.json").read_bytes(),
        verified=report.created,
        bill=bill,
        run=this_run(os.environ),
    )
    return [
        client.attach(registry, manifest, client.SBOM, f"{identifier}.cdx.json", image.created, bill),
        client.attach(registry, manifest, client.PROVENANCE, f"{identifier}.provenance.json", image.created, made),
    ]
