"""The container engine: everything that talks to Docker."""

from tfbuild.engine.client import MOST_OUTPUT, Engine
from tfbuild.engine.containers import ContainerRun, Process, Worker, WorkerDied
from tfbuild.engine.image import FileEntry, Files, Image
from tfbuild.engine.sandbox import Sandbox

__all__ = [
    "MOST_OUTPUT",
    "ContainerRun",
    "Engine",
    "FileEntry",
    "Files",
    "Image",
    "Process",
    "Sandbox",
    "Worker",
    "WorkerDied",
]
