"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import Engine
from tfbuild.engine.containers import ContainerRun
from tfbuild.engine.copy_out import Files
from tfbuild.engine.image import Image
from tfbuild.engine.worker import Worker, WorkerDied
from tfbuild.util.progress import Progress

__all__ = ["ContainerRun", "Engine", "Files", "Image", "Progress", "Worker", "WorkerDied"]
