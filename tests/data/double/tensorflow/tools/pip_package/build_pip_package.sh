#!/bin/sh
# build_pip_package OUT: the wheel of what Bazel built.
set -eu
files="$0.runfiles/org_tensorflow/tensorflow"
version=$(sed -n 's/^_VERSION = "\(.*\)"/\1/p' "$files/tools/pip_package/setup.py")
tag=$("$PYTHON_BIN_PATH" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
exec "$PYTHON_BIN_PATH" "$files/tools/pip_package/make_wheel.py" tensorflow "$version" "$tag" \
    "$files/double/libtensorflow_double.so" "$1"
