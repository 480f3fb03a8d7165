"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import ContainerRun, Engine, Files, Image
from tfbuild.engine.worker import Worker, WorkerDied
from tfbuild.util.progress import Progress

__all__ = ["ContainerRun", "Engine", "Files", "Image", "Progress", "Worker", "WorkerDied"]
