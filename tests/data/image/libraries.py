"""The loader takes each library of TensorFlow, stripped or not."""

import ctypes
import os
import signal
import sys

import tensorflow as tf

root = os.path.dirname(tf.__file__)
paths = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names if ".so" in name]
assert len(paths) > 20, paths

REFUSED = 7
bad = []
for path in paths:
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(path)
        except OSError as error:
            print(error, file=sys.stderr)
            os._exit(REFUSED)
        os._exit(0)
    # Some register ops that are there already, for which TensorFlow ends the process: the loader is done by then.
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in (REFUSED, -signal.SIGSEGV, -signal.SIGBUS):
        bad.append((path, ended))
assert bad == [], bad
print("passed")
