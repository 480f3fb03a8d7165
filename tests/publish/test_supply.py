"""An SBOM and a provenance state all that is known of an image's files and labels, nothing else, always alike."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import schemas
from tests.examples import few
from tfbuild import plan
from tfbuild.context.labels import labels_of
from tfbuild.engine import Files, Image
from tfbuild.errors import VerificationFailed
from tfbuild.oci.manifests import digest_of
from tfbuild.plan import Request
from tfbuild.publish import image_contents, provenance, sbom

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
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: zlib

Files: *
Copyright: somebody
License: Zlib
 The text of it.

Files: debian/*
Copyright: another
License: GPL-2+
"""
DIGEST = "sha256:" + 64 * "a"
BASE = "sha256:" + 64 * "b"
COMMIT = 40 * "c"


def metadata(name: str, version: str, *more: str) -> bytes:
    return "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, "", "text")).encode()


def files(**more: bytes) -> Files:
    content = {
        "/var/lib/dpkg/status": STATUS.encode(),
        "/usr/share/doc/zlib1g/copyright": COPYRIGHT.encode(),
        "/usr/share/doc/gcc-12-base/copyright": b"This is the Debian packaging of GCC.\nLicense: not for a machine\n",
        "/etc/os-release": b'ID=debian\nVERSION_ID="12"\n',
        f"{SITE}/tensorflow-2.20.0.dist-info/METADATA": metadata("tensorflow", "2.20.0", "License: Apache 2.0"),
        f"{SITE}/h5py-3.14.0.dist-info/METADATA": metadata("h5py", "3.14.0", "License-Expression: BSD-3-Clause"),
        f"{SITE}/h5py.libs/libhdf5-8c29085d.so.310": b"\x7fELF",
        f"{SITE}/odd-1.dist-info/METADATA": metadata("Odd.Name", "1", "License-Expression: no such thing"),
        f"{SITE}/broken-1.dist-info/METADATA": b"\xff\xfe nothing",
        f"{SITE}/tensorflow/THIRD_PARTY_NOTICES.txt": b"----\n== onednn\n\ntext\n----\n== Eigen\n",
    }
    return Files(files={**content, **more}, links={"/usr/share/doc/libgcc-s1": "gcc-12-base"})


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


def test_packages_with_versions_purls_and_licences() -> None:
    components = rows(sbom.document(image(), image_contents.of_files(files())))
    assert (
        components["zlib1g"]["purl"]
        == "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64&distro=debian-12&upstream=zlib%401:1.2.13"
    )
    licences = components["zlib1g"]["licenses"]
    assert isinstance(licences, list)
    assert [licence["license"]["name"] for licence in licences] == ["GPL-2+", "Zlib"]
    assert properties(components["zlib1g"])["tfbuild:deb:source"] == "zlib"
    assert "gone" not in components
    assert "licenses" not in components["libgcc-s1"]
    assert components["h5py"]["licenses"] == [{"acknowledgement": "declared", "expression": "BSD-3-Clause"}]
    assert [part["name"] for part in components["h5py"]["components"]] == ["libhdf5-8c29085d.so.310"]  # type: ignore[attr-defined]
    assert components["odd-name"]["licenses"] == [{"license": {"acknowledgement": "declared", "name": "no such thing"}}]
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


def test_scanners_find_the_distribution_and_the_source_packages() -> None:
    """Advisories of Debian name source packages; Trivy reads no Debian package without the operating system."""
    status = STATUS + "\nPackage: libc-bin\nVersion: 2.36-9+b1\nArchitecture: amd64\nSource: glibc (2.36-9)\n"
    status += "Status: install ok installed\n"
    components = rows(
        sbom.document(image(), image_contents.of_files(files(**{"/var/lib/dpkg/status": status.encode()})))
    )
    assert (components["debian"]["type"], components["debian"]["version"]) == ("operating-system", "12")
    assert "purl" not in components["debian"]
    assert str(components["libc-bin"]["purl"]).endswith("&upstream=glibc%402.36-9")
    known = properties(components["libc-bin"])
    assert (known["aquasecurity:trivy:SrcName"], known["aquasecurity:trivy:SrcVersion"]) == ("glibc", "2.36-9")
    known = properties(components["zlib1g"])
    assert (known["aquasecurity:trivy:SrcName"], known["aquasecurity:trivy:SrcVersion"]) == ("zlib", "1:1.2.13")


def test_unknown_facts_about_tensorflow_are_left_out_and_noted() -> None:
    bill = sbom.document(image(), image_contents.of_files(files()))
    row = rows(bill)["tensorflow"]
    assert "hashes" not in row
    assert "pedigree" not in row
    assert "components" not in row
    assert properties(row)["tfbuild:tensorflow:third-party-notices"] == "Eigen, onednn"
    assert properties(row)["tfbuild:tensorflow:source"].startswith("v2.20.0@")
    notes = [
        item["value"] for item in json.loads(bill)["metadata"]["component"]["properties"] if item["name"][-4:] == "note"
    ]
    assert [note.partition(" is not known")[0] for note in notes][:2] == [
        "TensorFlow's source commit",
        "the digest of TensorFlow's wheel",
    ]


def test_the_digest_and_commit_of_the_wheel_are_those_that_pip_and_the_builder_noted() -> None:
    built = f"builder={BASE}\nsource_commit={COMMIT}\nwheel={64 * 'd'} tensorflow.whl\n".encode()
    contents = image_contents.of_files(files(**{image_contents.BUILT: built}))
    row = rows(sbom.document(image(), contents))["tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": 64 * "d"}]
    assert row["pedigree"] == {"commits": [{"uid": COMMIT}]}
    for noted in ({"hashes": {"sha256": 64 * "e"}}, {"hash": f"sha256={64 * 'e'}"}):
        direct = json.dumps({"url": "file:///mnt/wheel/x.whl", "archive_info": noted}).encode()
        contents = image_contents.of_files(files(**{f"{SITE}/tensorflow-2.20.0.dist-info/direct_url.json": direct}))
        assert sbom.wheel_digest(contents, labels()) == 64 * "e"
    for broken in (b"[]", b"{", b'{"archive_info": {"hash": "sha256=../x"}}'):
        contents = image_contents.of_files(files(**{f"{SITE}/tensorflow-2.20.0.dist-info/direct_url.json": broken}))
        assert sbom.wheel_digest(contents, labels()) == ""


def test_an_official_wheel_is_named_with_its_digest_on_pypi() -> None:
    build = plan.select(Request(target="mkl", wheel="official", release="2.21.0", platform="linux/amd64"), None)
    given = image(labels=labels_of(build))
    assert build.wheel.sha256
    row = rows(sbom.document(given, image_contents.of_files(files())))["tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": build.wheel.sha256}]
    digest = sbom.wheel_digest(image_contents.of_files(files()), given.labels)
    official = provenance.Resource(
        name="tensorflow-cpu==2.21.0", uri="pkg:pypi/tensorflow-cpu@2.21.0", digest={"sha256": build.wheel.sha256}
    )
    assert dependency_on_wheel(given, digest) == official
    # The facts do not have the digest of a release that is newer than they are.
    assert dependency_on_wheel(given, "") == msgspec.structs.replace(official, digest={})


def dependency_on_wheel(given: Image, digest: str) -> provenance.Resource:
    made = provenance.statement(
        given, repository="us/x", digest=DIGEST, built={}, wheel_sha256=digest, git_version="", report=b"", verified="",
        sbom=b"", run=None,
    )  # fmt: skip
    return made.predicate.build_definition.resolved_dependencies[-1]


def test_a_wheel_from_a_file_is_named_by_it() -> None:
    file = "tensorflow-2.20.0-cp311-cp311-linux_x86_64.whl"
    given = image(labels=labels() | {"io.tfbuild.wheel": "file", "io.tfbuild.requirement": file})
    assert dependency_on_wheel(given, 64 * "e") == provenance.Resource(name=file, digest={"sha256": 64 * "e"})


def test_the_sbom_of_an_empty_image_says_so() -> None:
    bill = sbom.document(image(labels={}, env=(), created=""), image_contents.of_files(Files(files={}, links={})))
    assert all_components(bill) == []
    notes = [item["value"] for item in json.loads(bill)["metadata"]["component"]["properties"][1:]]
    assert "no Debian package is in the image" in notes
    assert "the base image is not known" in notes
    assert sbom.subject(bill) == DIGEST


def all_components(bill: bytes) -> list[object]:
    assert schemas.sbom().validate_str(bill.decode()) is None
    return list(json.loads(bill).get("components", []))


@few
@given(order=st.permutations(sorted(files().files)))
def test_the_order_of_an_images_files_changes_nothing(order: list[str]) -> None:
    shuffled = Files(files={path: files().files[path] for path in order}, links=files().links)
    assert sbom.document(image(), image_contents.of_files(shuffled)) == sbom.document(
        image(), image_contents.of_files(files())
    )


def spdx_faults(bill: bytes) -> list[str]:
    """What the standard's own library says against an SBOM as SPDX."""
    reader, judge = schemas.spdx()
    return [row.validation_message for row in judge(reader(json.loads(sbom.to_spdx(bill))), "SPDX-2.3")]


def test_an_sbom_as_spdx_says_the_same() -> None:
    bill = sbom.document(image(), image_contents.of_files(files()))
    assert spdx_faults(bill) == []
    document = json.loads(sbom.to_spdx(bill))
    assert (document["name"], document["creationInfo"]["created"]) == (
        labels()["io.tfbuild.id"],
        "2026-11-21T12:57:41Z",
    )
    packages = {row["name"]: row for row in document["packages"]}
    assert set(packages) == {"tfbuild", "libhdf5-8c29085d.so.310", *rows(bill)}
    assert packages["h5py"]["licenseDeclared"] == "BSD-3-Clause"
    assert packages["odd-name"]["licenseComments"] == "declared: no such thing"
    zlib = packages["zlib1g"]
    assert (zlib["versionInfo"], zlib["licenseDeclared"]) == ("1:1.2.13.dfsg-1", "NOASSERTION")
    assert zlib["licenseComments"] == "declared: GPL-2+; Zlib"
    assert zlib["externalRefs"][0]["referenceLocator"] == rows(bill)["zlib1g"]["purl"]
    assert packages["debian:bookworm"]["checksums"] == [
        {"algorithm": "SHA256", "checksumValue": BASE.removeprefix("sha256:")}
    ]
    names = {row["SPDXID"]: row["name"] for row in document["packages"]}
    contained = {
        (names[row["spdxElementId"]], names[row["relatedSpdxElement"]])
        for row in document["relationships"]
        if row["relationshipType"] == "CONTAINS"
    }
    assert contained == {("h5py", "libhdf5-8c29085d.so.310"), *(("tfbuild", name) for name in rows(bill))}
    assert sbom.to_spdx(bill) == sbom.to_spdx(bill)
    bare = sbom.document(image(labels={}, env=(), created=""), image_contents.of_files(Files(files={}, links={})))
    assert spdx_faults(bare) == []


@pytest.mark.parametrize(
    ("licence", "declared"),
    [
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("GPL-3.0-only WITH GCC-exception-3.1", "GPL-3.0-only WITH GCC-exception-3.1"),
        ("LicenseRef-Mine", "NOASSERTION"),
        ("MIT AND no such", "NOASSERTION"),
        ("MIT OR", "NOASSERTION"),
    ],
)
def test_spdx_has_only_licences_of_its_list(licence: str, declared: str) -> None:
    own = {f"{SITE}/x-1.dist-info/METADATA": metadata("x", "1", f"License-Expression: {licence}")}
    bill = sbom.document(image(), image_contents.of_files(files(**own)))
    (row,) = [row for row in json.loads(sbom.to_spdx(bill))["packages"] if row["name"] == "x"]
    assert (row["licenseDeclared"], row.get("licenseComments")) == (
        declared, None if declared == licence else f"declared: {licence}"
    )  # fmt: skip
    assert spdx_faults(bill) == []


# Metadata in an image is untrusted: the SBOM is valid whatever it says.
@given(text=st.text(max_size=200), version=st.text(max_size=20), licence=st.text(max_size=120))
def test_an_sbom_is_valid_whatever_packages_say(text: str, version: str, licence: str) -> None:
    hostile = {
        f"{SITE}/x-1.dist-info/METADATA": metadata(text, version, f"License: {licence}", f"License-Expression: {text}"),
        image_contents.STATUS: f"Package: {text}\nVersion: {version}\nStatus: install ok installed\n".encode(),
        "/etc/os-release": f"ID={text}\nVERSION_ID={version}".encode(),
        image_contents.BUILT: f"wheel={text} x\nsource_commit={version}".encode(),
    }
    bill = sbom.document(image(), image_contents.of_files(files(**hostile)))
    assert schemas.sbom().validate_str(bill.decode()) is None
    assert spdx_faults(bill) == []


# --- provenance -------------------------------------------------------------------------------------------------------

MANIFEST = "sha256:" + 64 * "f"


def statement(run: provenance.CiRun | None = None) -> provenance.Statement:
    return provenance.statement(
        image(),
        repository="ghcr.io/us/tfbuild",
        digest=MANIFEST,
        built={"builder": BASE, "source_commit": COMMIT, "compiler": "clang 18", "bazel": "7.4.1"},
        wheel_sha256=64 * "d",
        git_version="v2.20.0-rc0-4-gc19116c1e4",
        report=b"{}",
        verified="2026-11-21T13:00:00+00:00",
        sbom=b"[]",
        run=run,
    )


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
    predicate = json.loads(provenance.to_json(statement(provenance.this_run(env))))["predicate"]
    assert predicate["runDetails"]["builder"]["id"] == builder
    assert predicate["runDetails"]["metadata"]["invocationId"] == invocation
    checkout = {"name": "checkout", "uri": source, "digest": {"gitCommit": COMMIT}}
    assert predicate["buildDefinition"]["resolvedDependencies"][-1] == checkout
    for name in env.keys() - {"GITHUB_RUN_ATTEMPT", "CI_COMMIT_REF_NAME"}:
        assert provenance.this_run({key: value for key, value in env.items() if key != name}) is None


def test_a_statement_names_everything_in_an_image() -> None:
    content = json.loads(provenance.to_json(statement()))
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://slsa.dev/provenance/v1"
    name = labels()["io.tfbuild.id"]
    assert content["subject"] == [{"name": f"ghcr.io/us/tfbuild:{name}", "digest": {"sha256": 64 * "f"}}]
    definition, run = content["predicate"]["buildDefinition"], content["predicate"]["runDetails"]
    assert definition["externalParameters"]["wheel"] == "source"
    assert "avx2" in definition["internalParameters"]["features"]
    assert definition["internalParameters"]["found-bazel"] == "7.4.1"
    assert [(resource["name"], resource["digest"]) for resource in definition["resolvedDependencies"]] == [
        ("base debian:bookworm", {"sha256": 64 * "b"}),
        ("tensorflow source", {"gitCommit": COMMIT}),
        ("tensorflow wheel", {"sha256": 64 * "d"}),
    ]
    assert run["builder"]["builderDependencies"] == [{"name": "toolchain", "digest": {"sha256": 64 * "b"}}]
    assert run["byproducts"][1]["digest"] == {"sha256": digest_of(b"{}").removeprefix("sha256:")}


def test_a_statement_has_the_fields_that_slsa_gives_them() -> None:
    """What readers of such documents look for, by its exact names; published values, which must not change."""
    content = json.loads(provenance.to_json(statement()))
    definition, run = content["predicate"]["buildDefinition"], content["predicate"]["runDetails"]
    own = {name.removeprefix("io.tfbuild."): value for name, value in labels().items()}
    assert definition["buildType"] == "urn:tfbuild:image:1"
    assert definition["externalParameters"] == {
        name: own[name] for name in ("release", "target", "python", "platform", "wheel", "source")
    }
    decided = ("instruction-set", "compiler", "bazel", "allocator", "threading", "onednn", "context")
    assert definition["internalParameters"] == {name: own[name] for name in decided} | {
        "features": own["features"].split(),
        "copts": own["copts"].split(),
        "labels": labels(),
        "found-compiler": "clang 18",
        "found-bazel": "7.4.1",
        "found-git-version": "v2.20.0-rc0-4-gc19116c1e4",
    }
    assert definition["resolvedDependencies"][1]["uri"] == "git+https://github.com/tensorflow/tensorflow"
    assert set(run) == {"builder", "metadata", "byproducts"}
    assert (run["builder"]["id"], run["builder"]["version"]) == ("urn:tfbuild:local", {"tfbuild": own["version"]})
    assert run["metadata"] == {"invocationId": own["context"], "finishedOn": image().created}
    assert [item["name"] for item in run["byproducts"]] == [
        "configuration", f"{own['id']}.json", f"{own['id']}.cdx.json"
    ]  # fmt: skip
    assert run["byproducts"][1]["annotations"] == {"created": "2026-11-21T13:00:00+00:00"}
    assert run["byproducts"][2]["digest"] == {"sha256": digest_of(b"[]").removeprefix("sha256:")}


def test_what_is_not_known_is_in_no_statement() -> None:
    bare = image(labels={"io.tfbuild.id": "x", "io.tfbuild.reused": "tfbuild:y@sha256:1"})
    made = provenance.statement(
        bare, repository="us/x", digest=DIGEST, built={"compiler": ""}, wheel_sha256="", git_version="", report=b"{}",
        verified="2026-11-01T00:00:00Z", sbom=b"{}", run=None,
    )  # fmt: skip
    definition, details = made.predicate.build_definition, made.predicate.run_details
    assert (definition.resolved_dependencies, definition.external_parameters) == ((), {})
    assert definition.internal_parameters == {"labels": dict(bare.labels)}
    assert details.builder["builderDependencies"] == []
    assert (made.resource("nothing").sha256, made.resource("configuration").sha256) == ("", DIGEST)
    gpu = labels() | {"io.tfbuild.compute-capabilities": "8.0 9.0", "io.tfbuild.requirement": "tensorflow==2.20.0"}
    named = provenance.parameters(gpu, provenance.REQUESTED)
    assert (named["compute-capabilities"], named["requirement"]) == (["8.0", "9.0"], "tensorflow==2.20.0")
    nameless = provenance.statement(
        image(labels={"org.opencontainers.image.base.digest": BASE}), repository="us/x", digest=DIGEST, built={},
        wheel_sha256="", git_version="", report=b"{}", verified="", sbom=b"{}", run=None,
    )  # fmt: skip
    assert [item.name for item in nameless.predicate.build_definition.resolved_dependencies] == ["base"]


def test_a_statement_of_another_kind_is_no_provenance_of_an_image() -> None:
    own = json.loads(provenance.to_json(statement()))

    def read(content: dict[str, object]) -> None:
        provenance.from_json(json.dumps(content).encode())

    with pytest.raises(ValueError, match=r"^a https://spdx\.dev/Document, not an SLSA provenance v1"):
        read(own | {"predicateType": "https://spdx.dev/Document"})
    with pytest.raises(ValueError, match="not an SLSA provenance v1"):
        read(own | {"_type": "https://in-toto.io/Statement/v0.1"})
    own["predicate"]["buildDefinition"]["buildType"] = "https://actions.github.io/buildtypes/workflow/v1"
    with pytest.raises(ValueError, match=r"^of build type https://actions\."):
        read(own)


@pytest.mark.parametrize("subject", [[], [{"name": "x", "digest": {"sha512": "1"}}], "twice"])
def test_a_statement_about_no_image_or_several_is_refused(subject: object) -> None:
    forged = json.loads(provenance.to_json(statement()))
    forged["subject"] = [*forged["subject"], {"digest": {"sha256": 64 * "0"}}] if subject == "twice" else subject
    read = provenance.from_json(json.dumps(forged).encode())
    with pytest.raises(VerificationFailed, match="is about another image"):
        provenance.refuse_other(read, digest=MANIFEST, config=DIGEST, labels=labels())


def test_only_the_labels_that_differ_are_named() -> None:
    changed = labels() | {"io.tfbuild.copts": "-O0", "more": "x"}
    with pytest.raises(VerificationFailed, match=r"differ from its provenance: io\.tfbuild\.copts, more\n") as refusal:
        provenance.refuse_other(statement(), digest=MANIFEST, config=DIGEST, labels=changed)
    assert refusal.value.hint.startswith("one of the two was changed after the push")
    forged = json.loads(provenance.to_json(statement()))
    forged["predicate"]["buildDefinition"]["internalParameters"]["labels"] = ["x"]
    with pytest.raises(VerificationFailed, match="differ from its provenance"):
        provenance.refuse_other(
            provenance.from_json(json.dumps(forged).encode()), digest=MANIFEST, config=DIGEST, labels=labels()
        )
    forged = json.loads(provenance.to_json(statement()))
    forged["predicate"]["buildDefinition"]["externalParameters"]["wheel"] = "official"
    with pytest.raises(VerificationFailed, match="parameters differ"):
        provenance.refuse_other(
            provenance.from_json(json.dumps(forged).encode()), digest=MANIFEST, config=DIGEST, labels=labels()
        )


def test_a_ci_run_has_defaults_where_the_ci_leaves_out_a_variable() -> None:
    github = provenance.this_run({**GITHUB, "GITHUB_RUN_ATTEMPT": ""})
    assert github is not None
    assert (github.invocation, github.commit) == ("https://github.com/us/tfbuild/actions/runs/17/attempts/1", COMMIT)
    gitlab = provenance.this_run({**GITLAB, "CI_COMMIT_REF_NAME": "", "CI_CONFIG_PATH": "ci/own.yml"})
    assert gitlab is not None
    assert (gitlab.builder, gitlab.commit) == (f"https://gitlab.com/us/tfbuild//ci/own.yml@{COMMIT}", COMMIT)
    for env, name in ((GITHUB, "GITHUB_ACTIONS"), (GITLAB, "GITLAB_CI")):
        assert provenance.this_run(env | {name: "false"}) is None


def test_a_statement_names_the_image_that_tensorflow_was_taken_from() -> None:
    reused = f"ghcr.io/us/tfbuild:id@{DIGEST}"
    labelled = image(labels=labels() | {"io.tfbuild.reused": reused})
    made = provenance.statement(
        labelled, repository="us/x", digest=DIGEST, built={}, wheel_sha256="", git_version="", report=b"{}",
        verified="2026-11-01T00:00:00Z", sbom=b"{}", run=None,
    )  # fmt: skip
    names = {one.name: one.sha256 for one in made.predicate.build_definition.resolved_dependencies}
    assert names["reused ghcr.io/us/tfbuild:id"] == DIGEST


def test_a_statement_is_read_back_equal_and_agrees_with_its_image() -> None:
    read = provenance.from_json(provenance.to_json(statement()))
    assert read == statement()
    provenance.refuse_other(read, digest=MANIFEST, config=DIGEST, labels=labels())


@pytest.mark.parametrize("name", sorted(labels()))
def test_each_label_that_differs_is_refused(name: str) -> None:
    with pytest.raises(VerificationFailed, match=name):
        provenance.refuse_other(statement(), digest=MANIFEST, config=DIGEST, labels=labels() | {name: "something else"})


def test_a_statement_about_another_image_is_refused() -> None:
    with pytest.raises(VerificationFailed, match="another image"):
        provenance.refuse_other(statement(), digest=BASE, config=DIGEST, labels=labels())
    with pytest.raises(VerificationFailed, match="another configuration"):
        provenance.refuse_other(statement(), digest=MANIFEST, config=BASE, labels=labels())
    forged = json.loads(provenance.to_json(statement()))
    forged["predicate"]["buildDefinition"]["internalParameters"]["copts"] = ["--copt=-O0"]
    with pytest.raises(VerificationFailed, match="parameters differ"):
        provenance.refuse_other(
            provenance.from_json(json.dumps(forged).encode()), digest=MANIFEST, config=DIGEST, labels=labels()
        )


DEEP = b'{"_type": "x", "metadata": ' + b"[" * 1_000_000


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"_type": 1}', msgspec.json.encode({"_type": "x"}), DEEP])
def test_invalid_documents_raise_value_errors(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a provenance statement"):
        provenance.from_json(content)
    with pytest.raises(ValueError, match=r"SBOM|CycloneDX"):
        sbom.subject(content)
