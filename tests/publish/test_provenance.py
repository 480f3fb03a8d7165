"""A provenance states how an image was built by its labels, the builder's notes and the CI's variables."""

import json
from typing import Any

import pytest

from tests.publish.test_sbom import BASE, COMMIT, DIGEST, image, labels
from tfbuild import plan
from tfbuild.context.labels import labels_of, read_labels
from tfbuild.engine import Image
from tfbuild.oci.manifests import digest_of
from tfbuild.plan import Request
from tfbuild.publish import provenance

MANIFEST = "sha256:" + 64 * "f"
NOTHING: dict[str, Any] = {
    "repository": "us/x", "digest": DIGEST, "built": {}, "wheel_sha256": "", "git_version": "", "report": b"{}",
    "verified": "2026-11-01T00:00:00Z", "bill": b"{}", "run": None,
}  # fmt: skip


def dependencies(given: Image, wheel: str = "") -> list[dict[str, Any]]:
    return list(predicate(given, wheel_sha256=wheel)["buildDefinition"]["resolvedDependencies"])


def predicate(given: Image, **more: Any) -> dict[str, Any]:
    made = provenance.statement(given, **NOTHING | more)
    return dict(json.loads(made)["predicate"])


def statement(run: dict[str, str] | None = None) -> dict[str, Any]:
    content = provenance.statement(
        image(), repository="ghcr.io/us/tfbuild", digest=MANIFEST,
        built={"builder": BASE, "source_commit": COMMIT, "compiler": "clang 18", "bazel": "7.4.1"},
        wheel_sha256=64 * "d", git_version="v2.20.0-rc0-4-gc19116c1e4", report=b"{}",
        verified="2026-11-21T13:00:00+00:00", bill=b"[]", run=run,
    )  # fmt: skip
    return dict(json.loads(content))


GITHUB = {
    "GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "us/tfbuild",
    "GITHUB_RUN_ID": "17", "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_WORKFLOW_REF": "us/tfbuild/.github/workflows/images.yml@refs/heads/main", "GITHUB_SHA": COMMIT,
}  # fmt: skip
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_URL": "https://gitlab.com/us/tfbuild",
    "CI_JOB_URL": "https://gitlab.com/us/tfbuild/-/jobs/17",
    "CI_COMMIT_SHA": COMMIT,
    "CI_COMMIT_REF_NAME": "main",
    "CI_CONFIG_PATH": ".gitlab-ci.yml",
}


GITHUB_URL, GITLAB_URL = "https://github.com/us/tfbuild", "https://gitlab.com/us/tfbuild"


@pytest.mark.parametrize(
    ("env", "builder", "invocation", "source"),
    [
        (GITHUB, "/.github/workflows/images.yml@refs/heads/main", "/actions/runs/17/attempts/2", GITHUB_URL),
        (GITLAB, "//.gitlab-ci.yml@main", "/-/jobs/17", GITLAB_URL),
    ],
)
def test_the_ci_run_that_publishes_an_image_is_named(
    env: dict[str, str], builder: str, invocation: str, source: str
) -> None:
    made = statement(provenance.this_run(env))["predicate"]
    assert made["runDetails"]["builder"]["id"] == source + builder
    assert made["runDetails"]["metadata"]["invocationId"] == source + invocation
    checkout = {"name": "checkout", "uri": f"git+{source}", "digest": {"gitCommit": COMMIT}}
    assert made["buildDefinition"]["resolvedDependencies"][-1] == checkout
    for name in env:
        assert provenance.this_run(env | {name: ""}) is None


def test_a_statement_has_the_fields_that_slsa_gives_them() -> None:
    """What readers of such documents look for, by its exact names; published values, which must not change."""
    content = statement()
    own = read_labels(labels()).own
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://slsa.dev/provenance/v1"
    assert content["subject"] == [{"name": f"ghcr.io/us/tfbuild:{own['id']}", "digest": {"sha256": 64 * "f"}}]
    definition, run = content["predicate"]["buildDefinition"], content["predicate"]["runDetails"]
    assert definition["buildType"] == "urn:tfbuild:image:1"
    assert definition["externalParameters"] == {
        name: own[name] for name in ("release", "target", "python", "platform", "wheel", "source")
    }
    assert definition["internalParameters"] == {
        "labels": labels(),
        "found-compiler": "clang 18",
        "found-bazel": "7.4.1",
        "found-git-version": "v2.20.0-rc0-4-gc19116c1e4",
    }
    assert definition["resolvedDependencies"] == [
        {"name": "base debian:bookworm", "digest": {"sha256": 64 * "b"}},
        {
            "name": "tensorflow source",
            "digest": {"gitCommit": COMMIT},
            "uri": "git+https://github.com/tensorflow/tensorflow",
        },
        {"name": "tensorflow wheel", "digest": {"sha256": 64 * "d"}},
    ]
    assert run == {
        "builder": {
            "id": "urn:tfbuild:local", "version": {"tfbuild": own["version"]},
            "builderDependencies": [{"name": "toolchain", "digest": {"sha256": 64 * "b"}}],
        },
        "metadata": {"invocationId": own["context"], "finishedOn": image().created},
        "byproducts": [
            {"name": "configuration", "digest": {"sha256": DIGEST.removeprefix("sha256:")}},
            {"name": f"{own['id']}.json", "digest": {"sha256": digest_of(b"{}").removeprefix("sha256:")},
             "annotations": {"created": "2026-11-21T13:00:00+00:00"}},
            {"name": f"{own['id']}.cdx.json", "digest": {"sha256": digest_of(b"[]").removeprefix("sha256:")}},
        ],
    }  # fmt: skip


def test_a_wheel_is_named_by_its_file_or_by_pypi() -> None:
    file = "tensorflow-2.20.0-cp311-cp311-linux_x86_64.whl"
    given = image(labels=labels() | {"io.tfbuild.wheel": "file", "io.tfbuild.requirement": file})
    assert dependencies(given, 64 * "e")[-1] == {"name": file, "digest": {"sha256": 64 * "e"}}
    build = plan.select(Request(target="mkl", wheel="official", release="2.21.0", platform="linux/amd64"), None)
    given = image(labels=labels_of(build))
    official = {"name": "tensorflow-cpu==2.21.0", "uri": "pkg:pypi/tensorflow-cpu@2.21.0"}
    assert dependencies(given, 64 * "e")[-1] == {**official, "digest": {"sha256": 64 * "e"}}
    # The facts do not have the digest of a release that is newer than they are.
    assert dependencies(given, "")[-1] == official
    build = plan.select(Request(target="cuda", wheel="official", release="2.21.0", platform="linux/amd64"), None)
    assert dependencies(image(labels=labels_of(build)), "")[-1]["uri"] == "pkg:pypi/tensorflow@2.21.0"


def test_what_is_not_known_is_in_no_statement() -> None:
    bare = image(labels={"io.tfbuild.id": "x", "io.tfbuild.reused": "tfbuild:y@sha256:1"})
    made = predicate(bare, built={"compiler": ""})
    definition = made["buildDefinition"]
    assert (definition["resolvedDependencies"], definition["externalParameters"]) == ([], {})
    assert definition["internalParameters"] == {"labels": dict(bare.labels)}
    assert made["runDetails"]["builder"]["builderDependencies"] == []
    gpu = labels() | {"io.tfbuild.compute-capabilities": "8.0 9.0", "io.tfbuild.requirement": "tensorflow==2.20.0"}
    named = predicate(image(labels=gpu))["buildDefinition"]["externalParameters"]
    assert (named["compute-capabilities"], named["requirement"]) == ("8.0 9.0", "tensorflow==2.20.0")
    labelled = image(labels=labels() | {"io.tfbuild.reused": f"ghcr.io/us/tfbuild:id@{DIGEST}"})
    reused = {"name": "reused ghcr.io/us/tfbuild:id", "digest": {"sha256": DIGEST.removeprefix("sha256:")}}
    assert reused in dependencies(labelled)
    nameless = image(labels={"org.opencontainers.image.base.digest": BASE})
    assert [row["name"] for row in dependencies(nameless)] == ["base"]
