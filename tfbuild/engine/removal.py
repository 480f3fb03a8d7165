"""Say of an image that somebody removed while it was used, what it was and what it was used for."""

from collections.abc import Iterator
from contextlib import contextmanager

from tfbuild.engine.client import Engine
from tfbuild.errors import UnknownImage


@contextmanager
def told(engine: Engine, image_id: str, ref: str, doing: str) -> Iterator[None]:
    """Name the image `ref` if it is gone in the block, where it was being `doing`: the engine's messages know its id.

    Other images that are missing stay other errors. Raises UnknownImage.
    """
    try:
        yield
    except UnknownImage as error:
        if engine.exists(image_id):
            raise
        raise UnknownImage(f"{ref} was removed while it was {doing}", hint="invoke build makes it again") from error
