"""`python -m tools.pictures [NAME...]` makes the manual's pictures again, all of them or those named.

`build` and `guard` need a container engine, and `guard` the image that `build` makes; `report` needs chromium.
"""

import sys
import tempfile
from pathlib import Path

from tools.pictures import FOLDER, ROOT, pages, shots


def main(names: list[str]) -> None:
    if unknown := set(names) - {*shots.SHOTS, "report"}:
        raise SystemExit(f"no such picture: {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    for name, shot in shots.SHOTS.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                for file, svg in shot.draw(name, Path(folder)):
                    write(file, svg)
    if not names or "report" in names:
        pages.shoot(ROOT, FOLDER)


def write(name: str, text: str) -> None:
    (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"docs/pictures/{name}: {len(text) / 1000:.0f} kB")


main(sys.argv[1:])
