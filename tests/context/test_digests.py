"""The published digests of contexts and images: what was published before stays comparable."""

from pathlib import Path

from tfbuild.pipeline.build_context import context_digest, image_digest


def test_a_context_s_digest_stays_and_covers_modes(tmp_path: Path) -> None:
    for name, mode in (("Dockerfile", 0o644), ("smoke/x.sh", 0o755), ("wheel/x.whl", 0o600)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{name}\n", encoding="utf-8")
        path.chmod(mode)
    digest = context_digest(tmp_path, ["wheel/x.whl"])
    assert digest == "sha256:0c66f99054cc430fe7af58559a11e07b465811a37ea8c9e33bd2afb319e45fc1"
    (tmp_path / "wheel" / "x.whl").write_text("another", encoding="utf-8")
    assert context_digest(tmp_path, ["wheel/x.whl"]) == digest
    (tmp_path / "smoke" / "x.sh").chmod(0o644)
    assert context_digest(tmp_path, ["wheel/x.whl"]) != digest


def test_an_image_s_digest_stays() -> None:
    assert image_digest("sha256:a", "") == "sha256:7be75b79a9de708e7a3efd6d2bfd4a158bf298821c262f28f85a9e6607d30663"
