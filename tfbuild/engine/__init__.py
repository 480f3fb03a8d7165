"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import Engine, Files, Image, Run
from tfbuild.engine.progress import Progress
from tfbuild.engine.worker import Worker, WorkerDied

__all__ = ["Engine", "Files", "Image", "Progress", "Run", "Worker", "WorkerDied"]
