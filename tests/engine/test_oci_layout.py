"""`docker save` output as an OCI layout: blobs match their digests, however the engine stores layers."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rows import each
from tfbuild.engine import transfer


def saved(layers: list[bytes], diff_ids: list[str]) -> io.BytesIO:
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
    names = [f"blobs/sha256/{number}" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": None, "Layers": names}]).encode()
    return packed([*zip(names, layers, strict=True), ("config.json", config), ("manifest.json", manifest)])


def packed(members: list[tuple[str, bytes]]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    return buffer


ZSTD = b"\x28\xb5\x2f\xfd and the rest"


@pytest.mark.parametrize(
    ("store", "suffix"),
    [(lambda plain: plain, ""), (gzip.compress, "+gzip"), (lambda plain: ZSTD, "+zstd"), (lambda plain: b"x", "")],
)
def test_a_layer_is_named_by_its_blob_not_by_its_contents(
    store: Callable[[bytes], bytes], suffix: str, tmp_path: Path
) -> None:
    (tmp_path / "blobs" / "sha256").mkdir(parents=True)
    plain = [b"one" * 1000, b"two" * 1000]
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in plain]
    layers = [store(layer) for layer in plain]
    manifest = transfer._unpack(saved(layers, diff_ids), tmp_path)
    assert [layer["mediaType"] for layer in manifest["layers"]] == [f"{transfer.LAYER}{suffix}"] * 2
    for descriptor, content in zip([manifest["config"], *manifest["layers"]], [None, *layers], strict=True):
        blob = (tmp_path / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
        assert (f"sha256:{hashlib.sha256(blob).hexdigest()}", len(blob)) == (descriptor["digest"], descriptor["size"])
        assert content is None or blob == content
    assert [path.name for path in tmp_path.iterdir()] == ["blobs"]


@each(
    "manifest",
    [
        b"", b"{", b"{}", b"[]", b"[{}]", b"5", b"\xff", b"[" * 100_000, b"9" * 5000, b"[NaN]",
        b'[{"Config": "gone", "Layers": []}]', b'[{"Config": ".", "Layers": []}]',
    ],
)  # fmt: skip
def test_what_is_not_a_saved_image_is_refused(manifest: bytes, tmp_path: Path) -> None:
    with pytest.raises((ValueError, LookupError, tarfile.TarError)):
        transfer._unpack(packed([("manifest.json", manifest)]), tmp_path)
    with pytest.raises(tarfile.TarError):
        transfer._unpack(io.BytesIO(manifest), tmp_path)
