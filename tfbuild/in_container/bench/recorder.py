"""Record an unchanged script with TensorFlow's profiler, in windows of time.

This file is installed as sitecustomize.py in a folder on PYTHONPATH, so that Python imports it before the script. It
uses the standard library only.
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
# The file that marks that TensorFlow has been imported.
BEGUN = "begun"
# An event that crosses a window's border is recorded in neither window, so windows get longer, until one is LARGE.
SECONDS = 2.0
MOST_SECONDS = 16.0
LARGE = 32 * 1024 * 1024
KEPT = 4
POLL_SECONDS = 0.05


def watch(folder: str, over: threading.Event) -> None:
    """Record window after window from TensorFlow's import until the process ends; keep the first and the last few."""
    while not _imported("tensorflow"):
        if over.wait(POLL_SECONDS):
            return
    open(os.path.join(folder, BEGUN), "w").close()
    profiler = sys.modules["tensorflow"].profiler.experimental
    seconds = SECONDS
    windows: List[str] = []
    while not over.is_set():
        window = os.path.join(folder, "{}-{:06d}".format(os.getpid(), len(windows)))
        try:
            profiler.start(window)
        except Exception:  # the script is using the profiler itself: try again later
            over.wait(seconds)
            continue
        over.wait(seconds)
        try:
            profiler.stop()
        except Exception:  # the script stopped it
            continue
        open(os.path.join(window, "whole"), "w").close()
        windows.append(window)
        if _bytes(window) < LARGE:
            seconds = min(MOST_SECONDS, 2 * seconds)
        # The first window stays: the reader leaves it out if there are others.
        if len(windows) > KEPT:
            shutil.rmtree(windows[-KEPT], ignore_errors=True)


def _imported(name: str) -> bool:
    """Whether the module is imported to its end, which the profiler needs."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _bytes(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def _run_shadowed() -> None:
    """Run the environment's own sitecustomize, which this one hides."""
    own_folder = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != own_folder]
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
    _run_shadowed()


if __name__ == "sitecustomize":
    main()
