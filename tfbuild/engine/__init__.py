"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import MOST_OUTPUT, Engine
from tfbuild.engine.containers import ContainerRun, Sandbox, Worker, WorkerDied
from tfbuild.engine.image import Image

__all__ = ["MOST_OUTPUT", "ContainerRun", "Engine", "Image", "Sandbox", "Worker", "WorkerDied"]
