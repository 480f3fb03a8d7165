#!/bin/sh
# slim.sh VENV headers|no-headers: removes from a virtual environment what TensorFlow never reads at run time.
set -eu
venv=$1 headers=$2
cd "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"

# Only custom ops need headers. cpu_info.h stays: it numbers the CPU features, which `invoke inspect` needs to read the
# guard in libtensorflow_framework.
if [ "$headers" = no-headers ]; then
    find "tensorflow/include" -type f ! -name cpu_info.h -delete
    find "tensorflow/include" -type d -empty -delete
fi

# TensorFlow requires libclang and never imports it. The package stays, for `pip check`; its 60 MB library goes.
rm -rf clang/native

# Other packages' tests. TensorFlow's stay, since it imports modules with such names.
find . -type d -name tests ! -path "./tensorflow/*" -prune -exec rm -rf {} +
find . -type f -name '*_test.py' ! -path "./tensorflow/*" -delete

# Symbols that only a debugger reads: a sixth of all libraries. The guard's stay, since they show which instruction set
# a library was compiled for. Left alone: vendored libraries (*.libs, by patchelf), and BOLT's, which strip 2.40 breaks.
framework='libtensorflow_framework.so*'
find tensorflow -type f -name '*.so*' ! -name "$framework" -exec strip --preserve-dates --strip-unneeded {} +
find tensorflow -type f -name "$framework" ! -exec grep -qF .note.bolt_info {} \; -exec strip --preserve-dates --wildcard \
    --keep-symbol='*CPUFeature*' --keep-symbol='*CheckFeatureOrDie*' --keep-symbol='*CheckIfFeatureUnused*' \
    --keep-symbol='*cpu_feature_guard*' {} +
# The loader must still take each of them.
find tensorflow -type f -name '*.so*' -exec ldd {} + > /dev/null

find "$venv" -type d -name __pycache__ -prune -exec rm -rf {} +
# Bytecode with its source's hash instead of its time, never checked against the source: the same bytes in each build.
# Some packages have files for other versions of Python; pip ignores those, too. -B: what Python imports at its start
# (*.pth) must not be compiled already.
PYTHONHASHSEED=0 "$venv/bin/python" -B -m compileall -qq --invalidation-mode unchecked-hash "$venv/lib" || true
find "$venv" -exec touch --no-dereference --date=@315532800 {} +
