"""Record an unchanged script with TensorFlow's profiler. With this folder on PYTHONPATH, Python imports this first."""

import atexit
import itertools
import os
import shutil
import sys
import threading

# The environment variable with the folder for traces, and the file that marks a complete one.
VARIABLE, COMPLETE = "TFBUILD_PROFILE", "complete"
# An event that crosses a window's border is recorded in neither window, so windows get longer.
SECONDS, MOST_SECONDS, KEPT = 2.0, 16.0, 4


def record(folder: str, over: threading.Event) -> None:
    """Record windows of time, from the end of TensorFlow's import until the script ends; keep the last few."""
    while not hasattr(sys.modules.get("tensorflow"), "profiler") or _importing("tensorflow"):
        if over.wait(0.05):
            return
    profiler, seconds = sys.modules["tensorflow"].profiler.experimental, SECONDS
    for number in itertools.count():
        window = os.path.join(folder, str(os.getpid()), str(number))
        try:
            profiler.start(window)
            over.wait(seconds)
            profiler.stop()
            open(os.path.join(window, COMPLETE), "w").close()
        except Exception:  # the script is using the profiler itself: try again later
            over.wait(seconds)
        if over.is_set():
            return
        shutil.rmtree(os.path.join(folder, str(os.getpid()), str(number - KEPT)), ignore_errors=True)
        seconds = min(MOST_SECONDS, 2 * seconds)


def _importing(name: str) -> bool:
    return bool(getattr(sys.modules[name].__spec__, "_initializing", False))


if __name__ == "sitecustomize":
    over = threading.Event()
    thread = threading.Thread(target=record, args=(os.environ[VARIABLE], over), daemon=True)
    thread.start()
    atexit.register(thread.join)
    atexit.register(over.set)
    # Import the environment's own sitecustomize, which this one hides.
    own = sys.modules.pop(__name__)
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    try:
        __import__(__name__)
    except ImportError:
        sys.modules[__name__] = own
