#!/bin/sh
# pip.sh WORD...: runs `pip install WORD...` in the virtual environment, with pip's cache in /mnt/pip.
# pip does not recover from a damaged cache: every build would fail (github.com/pypa/pip/issues/3127). If pip fails and
# the network is not the cause, this tries again without the cache, and empties the cache if that helps.
set -eu
install() {
    /opt/tensorflow/bin/pip --disable-pip-version-check --log /mnt/pip.log install --no-compile "$@"
}
export PIP_CACHE_DIR=/mnt/pip
# A bundle's: nothing else is asked for them.
[ ! -d /opt/tfbuild-wheels ] || export PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/tfbuild-wheels PIP_NO_CACHE_DIR=1
rm -f /mnt/pip.log
code=0
install "$@" || code=$?
if [ "$code" = 0 ] || [ -n "${PIP_NO_CACHE_DIR:-}" ] || [ -z "$(ls -A /mnt/pip)" ]; then
    exit "$code"
fi
if grep 'Retrying (' /mnt/pip.log > /dev/null; then
    exit "$code"
fi
echo "tfbuild: note: pip failed; trying again without its cache" >&2
install --no-cache-dir "$@"
echo "tfbuild: note: pip's cache was damaged and has been emptied" >&2
rm -rf /mnt/pip/* || true
