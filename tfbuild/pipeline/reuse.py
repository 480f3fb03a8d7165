"""The image from which a rebuild takes TensorFlow, as it is installed there, in place of compiling it."""

from tfbuild.context.digests import image_digest
from tfbuild.context.dockerfile import Context
from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine, transfer
from tfbuild.engine.image import split_tag
from tfbuild.errors import Outdated, UnknownImage
from tfbuild.pipeline.base_image import ResolvedBase
from tfbuild.plan import Build
from tfbuild.util.progress import Progress


def resolve(engine: Engine, build: Build, context: Context, name: str, progress: Progress) -> ResolvedBase:
    """Return the image `name`, pulled if the engine lacks it. Raises Outdated if another context or plan made it."""
    if not engine.exists(name):
        if "/" not in name:
            raise UnknownImage(f"the engine has no image {name}", hint="--reuse HOST/PATH:ID pulls it from a registry")
        transfer.again(lambda: engine.pull(name, progress), progress)
    image = engine.image(name)
    labels = read_labels(image.labels)
    if (labels.id, labels.context) != (build.id, image_digest(context.digest, labels.base_digest)):
        raise Outdated(
            f"{name} was not made from the build context of {build.id}: facts, templates, options or tfbuild differ",
            hint="leave out --reuse to build it anew",
        )
    repository = name.partition("@")[0] if "@" in name else split_tag(name)[0]
    pulled = next((one for one in image.repo_digests if one.partition("@")[0] == repository), "")
    # A bare id is no name that FROM takes.
    reference = pulled or (name if name in image.tags else next(iter(image.tags), name))
    return ResolvedBase(
        reference=reference, name=f"{repository}:{build.id}", digest=pulled.partition("@")[2] or image.id
    )
