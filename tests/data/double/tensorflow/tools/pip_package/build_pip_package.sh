#!/bin/sh
# build_pip_package OUT: the wheel of what Bazel built.
set -eu
files="$0.runfiles/org_tensorflow/tensorflow"
exec "$PYTHON_BIN_PATH" "$files/tools/pip_package/make_wheel.py" "$files/tools/pip_package/setup.py" \
    "$files/double/libtensorflow_double.so" "$1"
