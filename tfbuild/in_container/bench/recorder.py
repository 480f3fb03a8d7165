"""Records a script with TensorFlow's profiler, in windows of time, without a line of its own.

It lies as sitecustomize.py in a folder on PYTHONPATH, where Python imports it before the script; standard library only.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import threading
from typing import List

VARIABLE = "TFBUILD_PROFILE"
# The file that says that TensorFlow is imported.
BEGUN = "begun"
# What begins in one window and ends in another is in neither, so that windows get longer; a large one is the last to.
SECONDS = 2.0
MOST_SECONDS = 16.0
LARGE = 32 * 1024 * 1024
KEPT = 4
POLL_SECONDS = 0.05


def watch(folder: str, over: threading.Event) -> None:
    """Windows, one after the other, from when TensorFlow is imported until the process ends; the last few are kept."""
    while not _imported("tensorflow"):
        if over.wait(POLL_SECONDS):
            return
    open(os.path.join(folder, BEGUN), "w").close()
    profiler = sys.modules["tensorflow"].profiler.experimental
    seconds = SECONDS
    made: List[str] = []
    while not over.is_set():
        window = os.path.join(folder, "{}-{:06d}".format(os.getpid(), len(made)))
        try:
            profiler.start(window)
        except Exception:  # the script is recording itself: wait until it has done so
            over.wait(seconds)
            continue
        over.wait(seconds)
        try:
            profiler.stop()
        except Exception:  # the script stopped it
            continue
        open(os.path.join(window, "whole"), "w").close()
        made.append(window)
        if _bytes(window) < LARGE:
            seconds = min(MOST_SECONDS, 2 * seconds)
        # The first stays: it is the one that is left out, where there are others.
        if len(made) > KEPT:
            shutil.rmtree(made[-KEPT], ignore_errors=True)


def _imported(name: str) -> bool:
    """True when the import is over: the profiler needs all of it."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _bytes(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def _shadowed() -> None:
    """The environment's own sitecustomize, which this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main() -> None:
    folder = os.environ.get(VARIABLE)
    if folder:
        over = threading.Event()
        thread = threading.Thread(target=watch, args=(folder, over), name="tfbuild-profile", daemon=True)
        thread.start()

        def end() -> None:
            over.set()
            thread.join()

        atexit.register(end)
    _shadowed()


if __name__ == "sitecustomize":
    main()
