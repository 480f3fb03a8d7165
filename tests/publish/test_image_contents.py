"""What is read of an image's files, of which any may be missing or broken, and what its SBOM says of that."""

import hashlib
import json
from typing import Any

import pytest

from tests.publish.test_supply import BASE, SITE, files, image, labels, metadata, properties
from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.publish import sbom
from tfbuild.publish.sbom import Contents

DPKG = "/var/lib/dpkg/status"


def contents(given: dict[str, bytes]) -> Contents:
    return sbom.of_files(given)


def rows(bill: bytes) -> dict[str, Any]:
    """The components by their names; test_supply.py compares such documents with the schema."""
    return {row["name"]: row for row in json.loads(bill).get("components", [])}


@pytest.mark.parametrize("path", [
    "/var/lib/dpkg/status", "/opt/tfbuild/build.txt", "/etc/os-release",
    "/usr/lib/os-release",
    f"{SITE}/x-1.dist-info/METADATA", f"{SITE}/x.egg-info/PKG-INFO", f"{SITE}/x-1.dist-info/direct_url.json",
    f"{SITE}/x.libs/libx.so",
])  # fmt: skip
def test_what_an_sbom_is_made_of_is_read(path: str) -> None:
    assert sbom._wanted(path)


class Unreadable(Engine):
    def __init__(self) -> None:
        self.limit = 0

    def read_files(self, ref: str, wanted: Any, limit: int, *_: Any) -> dict[str, bytes]:
        self.limit = limit
        raise OSError(28, "No space left on device")


def test_an_image_that_cannot_be_read_is_an_error_with_its_reason() -> None:
    engine = Unreadable()
    with pytest.raises(TfbuildError, match=r"the files of tfbuild:x cannot be read: .*[Nn]o space"):
        sbom.read_contents(engine, "tfbuild:x")
    # The libraries of the image of 2.21.0 have 34 MB; a hostile image has no end.
    assert 200 << 20 < engine.limit < 2 << 30


# --- Python -----------------------------------------------------------------------------------------------------------


def test_a_package_without_a_name_or_a_version_is_left_out() -> None:
    given = {
        f"{SITE}/a-1.dist-info/METADATA": b"Metadata-Version: 2.1\nVersion: 1\n",
        f"{SITE}/b-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: b\n",
        f"{SITE}/c.egg-info/PKG-INFO": b"Metadata-Version: 2.1\nName: C_c\nVersion: 1\n",
    }
    assert [(one.name, one.version, one.path) for one in contents(given).python] == [("c-c", "1", f"{SITE}/c.egg-info")]


def test_libraries_belong_to_the_package_beside_them() -> None:
    given = {
        f"{SITE}/h5py-3.dist-info/METADATA": metadata("h5py", "3"),
        f"{SITE}/scikit_learn-1.dist-info/METADATA": metadata("scikit-learn", "1"),
        f"{SITE}/scikit_learn.libs/libgomp.so": b"\x7fELF\xff",
        f"{SITE}/h5py.libs/libz.so": b"z",
        f"{SITE}/h5py.libs/liba.so": b"a",
        "/other/h5py.libs/libelsewhere.so": b"e",
    }
    assert {one.name: one.libraries for one in contents(given).python} == {
        "h5py": {f"lib{name}.so": hashlib.sha256(name.encode()).hexdigest() for name in "az"},
        "scikit-learn": {"libgomp.so": hashlib.sha256(b"\x7fELF\xff").hexdigest()},
    }


# --- Debian and the builder -------------------------------------------------------------------------------------------


def stanza(name: str, *lines: str) -> str:
    return "\n".join((f"Package: {name}", "Version: 1", *lines)) + "\n\n"


def test_only_installed_packages_are_listed_by_name_and_architecture() -> None:
    status = (
        stanza("b", "Status: install ok installed", "Architecture: i386")
        + stanza("b", "Status: hold ok installed", "Architecture: amd64")
        + stanza("a", "Status: install ok installed", "Architecture: all")
        + stanza("half", "Status: install ok half-installed", "Architecture: amd64")
        + stanza("not", "Status: deinstall ok not-installed", "Architecture: amd64")
        + "Package: versionless\nStatus: install ok installed\n\nVersion: 1\nStatus: install ok installed\n"
    )
    found = contents({DPKG: status.encode()}).debian
    assert [(one["Package"], one["Architecture"]) for one in found] == [("a", "all"), ("b", "amd64"), ("b", "i386")]
    assert {(one["Source"], one["SourceVersion"]) for one in found} == {("a", "1"), ("b", "1")}


def test_the_distribution_is_that_of_etc_before_that_of_usr() -> None:
    usr = b"# ID=comment\nID=debian\nVERSION_ID='12'\nno assignment\nURL=\"https://x/?a=b\"\n"
    assert contents({"/usr/lib/os-release": usr}).system == {
        "ID": "debian", "VERSION_ID": "12", "URL": "https://x/?a=b"
    }  # fmt: skip
    assert contents({"/etc/os-release": b"ID=ours\n", "/usr/lib/os-release": usr}).system == {"ID": "ours"}
    assert contents({}).system == {}


def test_the_builders_notes_are_kept_without_invalid_digests() -> None:
    sound = {"builder": BASE, "source_commit": 40 * "c", "wheel": 64 * "d", "compiler": "clang 18"}
    text = "".join(f"{name}={value}\n" for name, value in sound.items())
    assert contents({sbom.BUILT: text.encode()}).built == sound
    text = "builder=sha256:1\nsource_commit=main\nwheel=none x.whl\ncompiler=clang 18\n"
    assert contents({sbom.BUILT: text.encode()}).built == {"compiler": "clang 18"}
    assert contents({}).built == {}


# --- the SBOM of it ---------------------------------------------------------------------------------------------------


def test_the_base_and_the_interpreter_are_components() -> None:
    base, python = (rows(sbom.document(image(), contents({})))[name] for name in ("debian:bookworm", "python"))
    assert (base["type"], base["bom-ref"]) == ("container", f"base@{BASE}")
    assert base["hashes"] == [{"alg": "SHA-256", "content": BASE.removeprefix("sha256:")}]
    assert (python["type"], python["purl"]) == ("application", "pkg:generic/python@3.13.1")
    nameless = labels() | {"org.opencontainers.image.base.name": ""}
    assert "base" in rows(sbom.document(image(labels=nameless), contents({})))
    broken = labels() | {"org.opencontainers.image.base.digest": "sha256:x"}
    assert not rows(sbom.document(image(labels=broken, env=("PYTHON_VERSION=",)), contents({})))


def test_tensorflow_says_how_it_was_compiled() -> None:
    tensorflow = rows(sbom.document(image(), sbom.of_files(files())))["tensorflow"]
    assert tensorflow["purl"] == "pkg:pypi/tensorflow@2.20.0"
    assert tensorflow["bom-ref"] == f"pkg:pypi/tensorflow@2.20.0#{SITE}/tensorflow-2.20.0.dist-info"
    own = labels()
    known = properties(tensorflow)
    assert known == {
        "tfbuild:path": f"{SITE}/tensorflow-2.20.0.dist-info",
    } | {
        f"tfbuild:tensorflow:{name}": read_labels(own).get(name)
        for name in ("release", "wheel", "instruction-set", "copts", "compiler", "bazel", "source")
    }
    official = image(labels=own | {"io.tfbuild.requirement": "tensorflow-cpu==2.20.0"})
    known = properties(rows(sbom.document(official, sbom.of_files(files())))["tensorflow"])
    assert known["tfbuild:tensorflow:requirement"] == "tensorflow-cpu==2.20.0"
    other = rows(sbom.document(image(), sbom.of_files(files())))["h5py"]
    assert properties(other) == {"tfbuild:path": f"{SITE}/h5py-3.14.0.dist-info"}
    (library,) = other["components"]
    assert library["type"] == "file"
    assert library["bom-ref"] == f"{other['bom-ref']}/libhdf5-8c29085d.so.310"
    assert library["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"\x7fELF").hexdigest()}]


def test_a_package_url_has_the_distribution_if_it_is_known() -> None:
    status = stanza("x", "Status: install ok installed", "Architecture: amd64").encode()

    def purl(system: str) -> object:
        return rows(sbom.document(image(), contents({DPKG: status, "/etc/os-release": system.encode()})))["x"]["purl"]

    assert purl("ID=debian\nVERSION_ID=12\n") == "pkg:deb/debian/x@1?arch=amd64&distro=debian-12"
    assert purl("ID=ubuntu\nVERSION_ID=24.04\n") == "pkg:deb/ubuntu/x@1?arch=amd64&distro=ubuntu-24.04"
    assert purl("ID=debian\n") == "pkg:deb/debian/x@1?arch=amd64"
    renamed = stanza("x-bin", "Status: install ok installed", "Source: x").encode()
    found = rows(sbom.document(image(), contents({DPKG: renamed})))["x-bin"]
    assert found["purl"] == "pkg:deb/debian/x-bin@1?upstream=x"
