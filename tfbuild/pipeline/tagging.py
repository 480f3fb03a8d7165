"""Give an image its name after its verification."""

from tfbuild.context.labels import UNVERIFIED, image_name
from tfbuild.engine import Engine
from tfbuild.plan import Build


def tag(engine: Engine, build: Build, ref: str, *, passed: bool) -> str:
    """Give the image `ref` its final name, or that of a failed one, in place of `ref`; return the name."""
    name = image_name(build, "" if passed else "-failed")
    with engine.watched(f"the tagging of {name}"):
        engine.tag(ref, name)
        # A run whose engine ended at this point left the unverified name beside the final one.
        former = {ref, image_name(build, UNVERIFIED)} - {name}
        for other in former.intersection(engine.image(name).tags):
            engine.untag(other)
    return name
