"""From a `Build` to a verified, named image; the only room that orders the others."""

from tfbuild.pipeline.maker import Maker, downloads, needed_disk, refuse_base_without_cuda

__all__ = ["Maker", "downloads", "needed_disk", "refuse_base_without_cuda"]
