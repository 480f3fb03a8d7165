"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import MOST_OUTPUT, Engine
from tfbuild.engine.containers import ContainerRun, Worker, WorkerDied
from tfbuild.engine.image import Files, Image
from tfbuild.engine.sandbox import Sandbox

__all__ = [
    "MOST_OUTPUT",
    "ContainerRun",
    "Engine",
    "Files",
    "Image",
    "Sandbox",
    "Worker",
    "WorkerDied",
]
