"""An SBOM states all that is known of an image's files and labels, nothing else, always alike."""

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
from tfbuild.engine import Engine, Image
from tfbuild.errors import TfbuildError
from tfbuild.plan import Request
from tfbuild.publish import sbom
from tfbuild.publish.sbom import Contents

SITE = "/opt/tensorflow/lib/python3.13/site-packages"
DIGEST, BASE, COMMIT = f"sha256:{64 * 'a'}", f"sha256:{64 * 'b'}", 40 * "c"


def stanza(name: str, status: str = "install ok installed", version: str = "1", **fields: str) -> str:
    lines = {"Package": name, "Status": status, "Architecture": "amd64", "Version": version, **fields}
    return "".join(f"{key}: {value}\n" for key, value in lines.items()) + "Description: a text\n of lines\n\n"


STATUS = "".join([
    stanza("zlib1g", version="1:1.2.13.dfsg-1", Source="zlib (1:1.2.13)"),
    stanza("gone", "deinstall ok config-files"), stanza("half", "install ok half-installed"),
    stanza("libgcc-s1", "hold ok installed"), stanza("libc-bin", version="2.36-9+b1", Source="glibc (2.36-9)"),
    "Package: versionless\nStatus: install ok installed\n\nVersion: 1\nStatus: install ok installed\n",
])  # fmt: skip


def metadata(name: str, version: str) -> bytes:
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\ntext".encode()


def files(**more: bytes) -> dict[str, bytes]:
    content = {
        sbom.STATUS: STATUS.encode(),
        "/etc/os-release": b'# ID=comment\nID=debian\nVERSION_ID="12"\nno assignment\n',
        "/usr/lib/os-release": b"ID=other\n",
        f"{SITE}/tensorflow-2.20.0.dist-info/METADATA": metadata("tensorflow", "2.20.0"),
        f"{SITE}/h5py-3.14.0.dist-info/METADATA": metadata("h5py", "3.14.0"),
        f"{SITE}/odd.egg-info/PKG-INFO": metadata("Odd.Name", "1"),
        f"{SITE}/broken-1.dist-info/METADATA": b"\xff\xfe nothing",
        f"{SITE}/nameless-1.dist-info/METADATA": b"Version: 1\n",
    }
    return {**content, **more}


def contents(**more: bytes) -> Contents:
    return sbom.of_files(files(**more))


def labels() -> dict[str, str]:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
    return labels_of(build) | {
        "org.opencontainers.image.base.name": "debian:bookworm",
        "org.opencontainers.image.base.digest": BASE,
        "io.tfbuild.context": DIGEST,
    }


def image(**changes: object) -> Image:
    base = Image(
        id=DIGEST, labels=labels(), size=1, env=("PATH=/bin", "PYTHON_VERSION=3.13.1"), architecture="amd64",
        repo_digests=(), created="2026-11-21T12:57:41.307157286Z",
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def document(own: Image, **more: bytes) -> dict[str, Any]:
    """An SBOM, which CycloneDX's own schema accepts."""
    text = sbom.document(own, contents(**more)).decode()
    assert schemas.sbom().validate_str(text) is None
    return dict(json.loads(text))


def rows(own: Image, **more: bytes) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document(own, **more)["components"]}


def properties(row: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in row["properties"]}


def test_a_document_names_the_image_and_all_its_components() -> None:
    made = document(image())
    subject = made["metadata"]["component"]
    assert (subject["bom-ref"], subject["version"]) == (DIGEST, read_labels(labels()).id)
    assert properties(subject) == {"tfbuild:image:config-digest": DIGEST}
    assert made["metadata"]["timestamp"].startswith("2026-11-21T12:57:41")
    assert {row["name"]: row.get("purl", "") for row in made["components"]} == {
        "debian:bookworm": "", "python": "pkg:generic/python@3.13.1", "debian": "",
        "tensorflow": "pkg:pypi/tensorflow@2.20.0", "h5py": "pkg:pypi/h5py@3.14.0", "odd-name": "pkg:pypi/odd-name@1",
        "libc-bin": "pkg:deb/debian/libc-bin@2.36-9%2Bb1?arch=amd64&distro=debian-12&upstream=glibc%402.36-9",
        "libgcc-s1": "pkg:deb/debian/libgcc-s1@1?arch=amd64&distro=debian-12",
        "zlib1g": "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64&distro=debian-12&upstream=zlib%401:1.2.13",
    }  # fmt: skip
    known = {row["name"]: row for row in made["components"]}
    assert made["dependencies"] == [{"ref": DIGEST, "dependsOn": sorted(row["bom-ref"] for row in made["components"])}]
    assert made["compositions"] == [{"aggregate": "incomplete", "assemblies": [DIGEST]}]
    assert known["debian:bookworm"]["hashes"] == [{"alg": "SHA-256", "content": 64 * "b"}]
    # Trivy reads no Debian package without the operating system, and advisories name source packages.
    assert (known["debian"]["type"], known["debian"]["version"]) == ("operating-system", "12")
    of_zlib = {"tfbuild:deb:source": "zlib", "aquasecurity:trivy:SrcName": "zlib"}
    assert properties(known["zlib1g"]) == of_zlib | {"aquasecurity:trivy:SrcVersion": "1:1.2.13"}


def test_tensorflow_says_how_it_was_compiled_as_the_labels_and_the_builder_noted() -> None:
    built = f"builder={BASE}\nsource_commit={COMMIT}\nwheel={64 * 'd'} tensorflow.whl\ncompiler=clang 18\n".encode()
    row = rows(image(), **{sbom.BUILT: built})["tensorflow"]
    assert row["hashes"] == [{"alg": "SHA-256", "content": 64 * "d"}]
    assert row["pedigree"] == {"commits": [{"uid": COMMIT}]}
    named = ("release", "wheel", "instruction-set", "copts", "compiler", "bazel", "source")
    made = {f"tfbuild:tensorflow:{name}": read_labels(labels()).get(name) for name in named}
    assert properties(row) == {"tfbuild:path": f"{SITE}/tensorflow-2.20.0.dist-info"} | made
    assert contents(**{sbom.BUILT: b"builder=sha256:1\nsource_commit=main\nwheel=none x\ncompiler=c\n"}).built == {
        "compiler": "c"
    }


def test_the_wheels_digest_is_what_pip_noted_or_that_of_the_official_one() -> None:
    path = f"{SITE}/tensorflow-2.20.0.dist-info/direct_url.json"
    for noted in ({"hashes": {"sha256": 64 * "e"}}, {"hash": f"sha256={64 * 'e'}"}):
        direct = json.dumps({"url": "file:///mnt/wheel/x.whl", "archive_info": noted}).encode()
        assert sbom.wheel_digest(contents(**{path: direct}), labels()) == 64 * "e"
    for broken in (b"[]", b"{", b'{"archive_info": {"hash": "sha256=../x"}}'):
        assert sbom.wheel_digest(contents(**{path: broken}), labels()) == ""
    build = plan.select(Request(target="mkl", wheel="official", release="2.21.0", platform="linux/amd64"), None)
    assert build.wheel.sha256
    assert sbom.wheel_digest(contents(), labels_of(build)) == build.wheel.sha256


# Metadata in an image is untrusted: the SBOM is valid whatever it says.
@given(text=st.text(max_size=200), version=st.text(max_size=20))
def test_an_sbom_is_valid_whatever_packages_say(text: str, version: str) -> None:
    hostile = {
        f"{SITE}/x-1.dist-info/METADATA": metadata(text, version),
        sbom.STATUS: stanza(text, version=version).encode(errors="replace"),
        "/etc/os-release": f"ID={text}\nVERSION_ID={version}".encode(errors="replace"),
        sbom.BUILT: f"wheel={text} x\nsource_commit={version}".encode(errors="replace"),
    }
    document(image(), **hostile)


@few
@given(order=st.permutations(sorted(files())))
def test_the_order_of_an_images_files_changes_nothing(order: list[str]) -> None:
    shuffled = {path: files()[path] for path in order}
    assert sbom.document(image(), sbom.of_files(shuffled)) == sbom.document(image(), contents())


def test_what_no_file_and_no_label_says_is_left_out() -> None:
    bare = image(labels={"org.opencontainers.image.base.digest": "sha256:x"}, env=("PYTHON_VERSION=",))
    nothing = json.loads(sbom.document(bare, sbom.of_files({})))
    assert nothing["components"] == []
    assert "base" in rows(image(labels=labels() | {"org.opencontainers.image.base.name": ""}))
    status = f"{stanza('libgcc-s1')}{stanza('no name')}".encode()
    undated = rows(image(), **{"/etc/os-release": b"ID=ubuntu\n", sbom.STATUS: status})
    assert undated["libgcc-s1"]["purl"] == "pkg:deb/ubuntu/libgcc-s1@1?arch=amd64"
    assert "purl" not in undated["no name"]


class Unreadable(Engine):
    def __init__(self) -> None:
        self.limit = 0

    def read_files(self, ref: str, wanted: Any, limit: int, *_: Any) -> dict[str, bytes]:
        self.limit = limit
        assert all(map(wanted, files()))
        raise OSError(28, "No space left on device")


def test_an_image_that_cannot_be_read_is_an_error_with_its_reason() -> None:
    engine = Unreadable()
    with pytest.raises(TfbuildError, match=r"the files of tfbuild:x cannot be read: .*[Nn]o space"):
        sbom.read_contents(engine, "tfbuild:x")
    assert engine.limit == 512 << 20, "a hostile image has no end"
