"""An image as the engine gives it away, searched for what must not be in it."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfbuild.engine import Engine

CHUNK = 1 << 22


def everything(engine: Engine, image: str) -> Iterator[bytes]:
    """What `docker save`, `docker history` and `docker inspect` print of an image: its layers, config and history.

    Layers in there are plain tar files, so a file's bytes stand in them as they are.
    """
    yield from engine.client.images.get(image).save(chunk_size=CHUNK)
    yield json.dumps([engine.client.api.history(image), engine.client.api.inspect_image(image)]).encode()


def read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk


def found(chunks: Iterable[bytes], *needles: bytes) -> set[bytes]:
    """Those of the needles that are in the chunks, also where one begins in one chunk and ends in the next."""
    overlap = max(map(len, needles)) - 1
    seen: set[bytes] = set()
    tail = b""
    for chunk in chunks:
        part = tail + chunk
        seen |= {needle for needle in needles if needle in part}
        tail = part[-overlap:] if overlap else b""
    return seen
