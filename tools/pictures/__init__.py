"""The manual's pictures, each made by running tfbuild: `python -m tools.pictures` writes them to docs/pictures/."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
