"""Runs each script that is named, in a child forked where TensorFlow is imported and has not begun to compute.

Prints as JSON, for each path, its exit code and what it wrote to standard output and standard error.
"""

import json
import os
import pathlib
import runpy
import sys
import traceback

import tensorflow  # noqa: F401 - once for all scripts, since it takes longer than most of them


def run(path):
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{path}.{kind}", os.O_CREAT | os.O_WRONLY), number)
    code = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


said = {}
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        run(path)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said[path] = [code, *(pathlib.Path(f"{path}.{kind}").read_text() for kind in ("out", "err"))]
print(json.dumps(said))
