"""Name an image that somebody removed while it was used."""

from collections.abc import Iterator
from contextlib import contextmanager

from tfbuild.engine.client import Engine
from tfbuild.errors import UnknownImage


@contextmanager
def told(engine: Engine, image_id: str, ref: str, use: str) -> Iterator[None]:
    """Raise UnknownImage with the name `ref` if the image is removed during the block: the engine only knows its id.

    `use`: what was done with it, such as "verified". Other missing images stay the errors that they are.
    """
    try:
        yield
    except UnknownImage as error:
        if engine.exists(image_id):
            raise
        raise UnknownImage(f"{ref} was removed while it was {use}", hint="invoke build makes it again") from error
