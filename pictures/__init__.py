"""The manual's pictures, each made by running tfbuild: `python -m pictures` writes them to docs/pictures/."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
