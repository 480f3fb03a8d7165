"""From a `Build` to a verified, named image; the only room that orders the others."""

from tfbuild.pipeline.maker import DISK, Maker, downloads, refuse_base_without_cuda

__all__ = ["DISK", "Maker", "downloads", "refuse_base_without_cuda"]
