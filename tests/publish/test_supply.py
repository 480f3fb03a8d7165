"""An SBOM and a provenance state all that is known of an image's files and labels, nothing else, always alike."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import schemas
from tests.examples import few
from tfbuild import plan
from tfbuild.context.labels import labels_of, read_labels
from tfbuild.engine import Image
from tfbuild.oci.manifests import digest_of
from tfbuild.plan import Request
from tfbuild.publish import provenance, sbom

SITE = "/opt/tensorflow/lib/python3.13/site-packages"
STATUS = """\
Package: zlib1g
Status: install ok installed
Architecture: amd64
Source: zlib (1:1.2.13)
Version: 1:1.2.13.dfsg-1
Description: compression library
 It compresses.

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 12.2.0-14
"""
DIGEST = "sha256:" + 64 * "a"
BASE = "sha256:" + 64 * "b"
COMMIT = 40 * "c"


def metadata(name: str, version: str, *more: str) -> bytes:
    return "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, "", "text")).encode()


def files(**more: bytes) -> dict[str, bytes]:
    content = {
        "/var/lib/dpkg/status": STATUS.encode(),
        "/etc/os-release": b'ID=debian\nVERSION_ID="12"\n',
        f"{SITE}/tensorflow-2.20.0.dist-info/METADATA": metadata("tensorflow", "2.20.0"),
        f"{SITE}/h5py-3.14.0.dist-info/METADATA": metadata("h5py", "3.14.0"),
        f"{SITE}/h5py.libs/libhdf5-8c29085d.so.310": b"\x7fELF",
        f"{SITE}/odd-1.dist-info/METADATA": metadata("Odd.Name", "1"),
        f"{SITE}/broken-1.dist-info/METADATA": b"\xff\xfe nothing",
    }
    return {**content, **more}


def labels() -> dict[str, str]:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
    return labels_of(build) | {
        "org.opencontainers.image.base.name": "debian:bookworm",
        "org.opencontainers.image.base.digest": BASE,
        "io.tfbuild.context": DIGEST,
    }


def image(**changes: object) -> Image:
    base = Image(
        id=DIGEST,
        labels=labels(),
        size=1,
        env=("PATH=/bin", "PYTHON_VERSION=3.13.1"),
        architecture="amd64",
        repo_digests=(),
        created="2026-11-21T12:57:41.307157286Z",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def rows(bill: bytes) -> dict[str, dict[str, object]]:
    assert schemas.sbom().validate_str(bill.decode()) is None
    return {row["name"]: row for row in json.loads(bill)["components"]}


def properties(row: object) -> dict[str, str]:
    assert isinstance(row, dict)
    return {item["name"]: item["value"] for item in row["properties"]}


def test_packages_with_versions_and_purls() -> None:
    components = rows(sbom.document(image(), sbom.of_files(files())))
    assert (
        components["zlib1g"]["purl"]
        == "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64&distro=debian-12&upstream=zlib%401:1.2.13"
    )
    assert properties(components["zlib1g"])["tfbuild:deb:source"] == "zlib"
    assert "gone" not in components
    assert [part["name"] for part in components["h5py"]["components"]] == ["libhdf5-8c29085d.so.310"]  # type: ignore[attr-defined]
    assert components["python"]["version"] == "3.13.1"
    assert components["debian:bookworm"]["version"] == BASE
    assert set(components) == {
        "zlib1g",
        "libgcc-s1",
        "tensorflow",
        "h5py",
        "odd-name",
        "python",
        "debian:bookworm",
        "debian",
    }


def test_the_digest_and_commit_of_the_wheel_are_those_that_pip_and_the_builder_noted() -> None:
    built = f"builder={BASE}\nsource_commit={COMMIT}\nwheel={64 * 'd'} tensorflow.whl\n".encode()
    contents = sbom.of_files(files(**{sbom.BUILT: built}))
    row = rows(sbom.document(image(), contents))["tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": 64 * "d"}]
    assert row["pedigree"] == {"commits": [{"uid": COMMIT}]}
    for noted in ({"hashes": {"sha256": 64 * "e"}}, {"hash": f"sha256={64 * 'e'}"}):
        direct = json.dumps({"url": "file:///mnt/wheel/x.whl", "archive_info": noted}).encode()
        contents = sbom.of_files(files(**{f"{SITE}/tensorflow-2.20.0.dist-info/direct_url.json": direct}))
        assert sbom.wheel_digest(contents, labels()) == 64 * "e"
    for broken in (b"[]", b"{", b'{"archive_info": {"hash": "sha256=../x"}}'):
        contents = sbom.of_files(files(**{f"{SITE}/tensorflow-2.20.0.dist-info/direct_url.json": broken}))
        assert sbom.wheel_digest(contents, labels()) == ""


def test_an_official_wheel_is_named_with_its_digest_on_pypi() -> None:
    build = plan.select(Request(target="mkl", wheel="official", release="2.21.0", platform="linux/amd64"), None)
    given = image(labels=labels_of(build))
    assert build.wheel.sha256
    row = rows(sbom.document(given, sbom.of_files(files())))["tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": build.wheel.sha256}]
    digest = sbom.wheel_digest(sbom.of_files(files()), given.labels)
    official = {"name": "tensorflow-cpu==2.21.0", "uri": "pkg:pypi/tensorflow-cpu@2.21.0"}
    assert dependencies(given, digest)[-1] == {**official, "digest": {"sha256": build.wheel.sha256}}
    # The facts do not have the digest of a release that is newer than they are.
    assert dependencies(given, "")[-1] == official


def dependencies(given: Image, wheel: str = "") -> list[dict[str, Any]]:
    return list(predicate(given, wheel_sha256=wheel)["buildDefinition"]["resolvedDependencies"])


def predicate(given: Image, **more: Any) -> dict[str, Any]:
    made = provenance.statement(given, **NOTHING | more)
    return dict(json.loads(made)["predicate"])


def test_a_wheel_from_a_file_is_named_by_it() -> None:
    file = "tensorflow-2.20.0-cp311-cp311-linux_x86_64.whl"
    given = image(labels=labels() | {"io.tfbuild.wheel": "file", "io.tfbuild.requirement": file})
    assert dependencies(given, 64 * "e")[-1] == {"name": file, "digest": {"sha256": 64 * "e"}}


# Metadata in an image is untrusted: the SBOM is valid whatever it says.
@given(text=st.text(max_size=200), version=st.text(max_size=20))
def test_an_sbom_is_valid_whatever_packages_say(text: str, version: str) -> None:
    hostile = {
        f"{SITE}/x-1.dist-info/METADATA": metadata(text, version),
        sbom.STATUS: f"Package: {text}\nVersion: {version}\nStatus: install ok installed\n".encode(),
        "/etc/os-release": f"ID={text}\nVERSION_ID={version}".encode(),
        sbom.BUILT: f"wheel={text} x\nsource_commit={version}".encode(),
    }
    bill = sbom.document(image(), sbom.of_files(files(**hostile)))
    assert schemas.sbom().validate_str(bill.decode()) is None


def test_scanners_find_the_distribution_and_the_source_packages() -> None:
    """Advisories of Debian name source packages; Trivy reads no Debian package without the operating system."""
    status = STATUS + "\nPackage: libc-bin\nVersion: 2.36-9+b1\nArchitecture: amd64\nSource: glibc (2.36-9)\n"
    status += "Status: install ok installed\n"
    components = rows(sbom.document(image(), sbom.of_files(files(**{"/var/lib/dpkg/status": status.encode()}))))
    assert (components["debian"]["type"], components["debian"]["version"]) == ("operating-system", "12")
    assert "purl" not in components["debian"]
    assert str(components["libc-bin"]["purl"]).endswith("&upstream=glibc%402.36-9")
    known = properties(components["libc-bin"])
    assert (known["aquasecurity:trivy:SrcName"], known["aquasecurity:trivy:SrcVersion"]) == ("glibc", "2.36-9")
    known = properties(components["zlib1g"])
    assert (known["aquasecurity:trivy:SrcName"], known["aquasecurity:trivy:SrcVersion"]) == ("zlib", "1:1.2.13")


@few
@given(order=st.permutations(sorted(files())))
def test_the_order_of_an_images_files_changes_nothing(order: list[str]) -> None:
    shuffled = {path: files()[path] for path in order}
    assert sbom.document(image(), sbom.of_files(shuffled)) == sbom.document(image(), sbom.of_files(files()))


# --- provenance -------------------------------------------------------------------------------------------------------

MANIFEST = "sha256:" + 64 * "f"
NOTHING: dict[str, Any] = {
    "repository": "us/x", "digest": DIGEST, "built": {}, "wheel_sha256": "", "git_version": "", "report": b"{}",
    "verified": "2026-11-01T00:00:00Z", "bill": b"{}", "run": None,
}  # fmt: skip


def statement(run: provenance.CiRun | None = None) -> dict[str, Any]:
    content = provenance.statement(
        image(),
        repository="ghcr.io/us/tfbuild",
        digest=MANIFEST,
        built={"builder": BASE, "source_commit": COMMIT, "compiler": "clang 18", "bazel": "7.4.1"},
        wheel_sha256=64 * "d",
        git_version="v2.20.0-rc0-4-gc19116c1e4",
        report=b"{}",
        verified="2026-11-21T13:00:00+00:00",
        bill=b"[]",
        run=run,
    )
    return dict(json.loads(content))


GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "us/tfbuild",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_WORKFLOW_REF": "us/tfbuild/.github/workflows/images.yml@refs/heads/main",
    "GITHUB_SHA": COMMIT,
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_URL": "https://gitlab.com/us/tfbuild",
    "CI_JOB_URL": "https://gitlab.com/us/tfbuild/-/jobs/17",
    "CI_COMMIT_SHA": COMMIT,
    "CI_COMMIT_REF_NAME": "main",
}


@pytest.mark.parametrize(
    ("env", "builder", "invocation", "source"),
    [
        (
            GITHUB,
            "https://github.com/us/tfbuild/.github/workflows/images.yml@refs/heads/main",
            "https://github.com/us/tfbuild/actions/runs/17/attempts/2",
            "git+https://github.com/us/tfbuild",
        ),
        (
            GITLAB,
            "https://gitlab.com/us/tfbuild//.gitlab-ci.yml@main",
            "https://gitlab.com/us/tfbuild/-/jobs/17",
            "git+https://gitlab.com/us/tfbuild",
        ),
    ],
)
def test_the_ci_run_that_publishes_an_image_is_named(
    env: dict[str, str], builder: str, invocation: str, source: str
) -> None:
    made = statement(provenance.this_run(env))["predicate"]
    assert made["runDetails"]["builder"]["id"] == builder
    assert made["runDetails"]["metadata"]["invocationId"] == invocation
    checkout = {"name": "checkout", "uri": source, "digest": {"gitCommit": COMMIT}}
    assert made["buildDefinition"]["resolvedDependencies"][-1] == checkout
    for name in env.keys() - {"GITHUB_RUN_ATTEMPT", "CI_COMMIT_REF_NAME"}:
        assert provenance.this_run({key: value for key, value in env.items() if key != name}) is None


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
    decided = ("instruction-set", "compiler", "bazel", "threading", "context")
    assert definition["internalParameters"] == {name: own[name] for name in decided} | {
        "features": own["features"].split(),
        "copts": own["copts"].split(),
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
            "id": "urn:tfbuild:local",
            "version": {"tfbuild": own["version"]},
            "builderDependencies": [{"name": "toolchain", "digest": {"sha256": 64 * "b"}}],
        },
        "metadata": {"invocationId": own["context"], "finishedOn": image().created},
        "byproducts": [
            {"name": "configuration", "digest": {"sha256": DIGEST.removeprefix("sha256:")}},
            {
                "name": f"{own['id']}.json",
                "digest": {"sha256": digest_of(b"{}").removeprefix("sha256:")},
                "annotations": {"created": "2026-11-21T13:00:00+00:00"},
            },
            {"name": f"{own['id']}.cdx.json", "digest": {"sha256": digest_of(b"[]").removeprefix("sha256:")}},
        ],
    }


def test_what_is_not_known_is_in_no_statement() -> None:
    bare = image(labels={"io.tfbuild.id": "x", "io.tfbuild.reused": "tfbuild:y@sha256:1"})
    made = predicate(bare, built={"compiler": ""})
    definition = made["buildDefinition"]
    assert (definition["resolvedDependencies"], definition["externalParameters"]) == ([], {})
    assert definition["internalParameters"] == {"labels": dict(bare.labels)}
    assert made["runDetails"]["builder"]["builderDependencies"] == []
    gpu = labels() | {"io.tfbuild.compute-capabilities": "8.0 9.0", "io.tfbuild.requirement": "tensorflow==2.20.0"}
    named = predicate(image(labels=gpu))["buildDefinition"]["externalParameters"]
    assert (named["compute-capabilities"], named["requirement"]) == (["8.0", "9.0"], "tensorflow==2.20.0")
    labelled = image(labels=labels() | {"io.tfbuild.reused": f"ghcr.io/us/tfbuild:id@{DIGEST}"})
    reused = {"name": "reused ghcr.io/us/tfbuild:id", "digest": {"sha256": DIGEST.removeprefix("sha256:")}}
    assert reused in dependencies(labelled)
    nameless = image(labels={"org.opencontainers.image.base.digest": BASE})
    assert [row["name"] for row in dependencies(nameless)] == ["base"]


def test_a_ci_run_has_defaults_where_the_ci_leaves_out_a_variable() -> None:
    github = provenance.this_run({**GITHUB, "GITHUB_RUN_ATTEMPT": ""})
    assert github is not None
    assert (github.invocation, github.commit) == ("https://github.com/us/tfbuild/actions/runs/17/attempts/1", COMMIT)
    gitlab = provenance.this_run({**GITLAB, "CI_COMMIT_REF_NAME": "", "CI_CONFIG_PATH": "ci/own.yml"})
    assert gitlab is not None
    assert (gitlab.builder, gitlab.commit) == (f"https://gitlab.com/us/tfbuild//ci/own.yml@{COMMIT}", COMMIT)
    for env, name in ((GITHUB, "GITHUB_ACTIONS"), (GITLAB, "GITLAB_CI")):
        assert provenance.this_run(env | {name: "false"}) is None
