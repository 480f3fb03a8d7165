"""The digests by which contexts and images are compared, each "sha256:<hex>". Published values: they must not change.

| digest  | covers                                              | published as                                   |
|---------|-----------------------------------------------------|------------------------------------------------|
| recipe  | the texts that tfbuild itself puts into a context   | `context` of a row of `invoke matrix`          |
| context | every file of a written context, and its mode       | `digest` of `invoke dockerfile --json`         |
| image   | a context's digest and that of the base             | the label `io.tfbuild.context`                 |

A recipe needs neither a folder nor a wheel nor a source. An image is built again if its digest differs.
"""

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path


def recipe_digest(texts: Iterable[tuple[str, str]]) -> str:
    """Return the digest of files by their names and texts, in this order."""
    return _of_lines(f"{name} {hashlib.sha256(text.encode()).hexdigest()}\n" for name, text in texts)


def context_digest(folder: Path, leave_out: Collection[str]) -> str:
    """Return the digest of all files in `folder` but `leave_out`, whose digests are in files beside them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = ((path, path.relative_to(folder).as_posix()) for path in files)
    return _of_lines(
        f"{name} {path.stat().st_mode & 0o777:o} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path, name in names
        if name not in leave_out
    )


def image_digest(context: str, base: str) -> str:
    """Return the digest of everything that shapes an image, by the digests of its context and its base."""
    return _of_lines([f"{context} {base}"])


def _of_lines(lines: Iterable[str]) -> str:
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode())
    return f"sha256:{total.hexdigest()}"
