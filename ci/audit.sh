#!/bin/sh
# ci/audit.sh [OPTION...]: fails if PyPI knows a vulnerability of a locked package, or does not know the package.
#
# Packages that the lock files have for other systems or Pythons alone are left out. OPTION: further options of
# pip-audit, such as `--ignore-vuln ID` for an advisory that does not concern tfbuild.
#
# PYTHON     the Python that pip-audit is installed for (default: python3)
# PIP_AUDIT  an installed pip-audit (default: the one of ci/audit.txt, in a new environment that is removed again)
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PIP_AUDIT:-}" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/pip" install --quiet --require-hashes --requirement ci/audit.txt
    PIP_AUDIT=$folder/bin/pip-audit
fi
code=0
# One at a time: they may pin different versions of a package, which pip-audit refuses in one run.
for lock in requirements.lock requirements-dev.lock docs/requirements.txt ci/publish.txt ci/audit.txt ci/fuzz.txt \
    ci/tensorflow.txt; do
    echo "$lock:" >&2
    # Without --strict, a package that PyPI does not answer for would pass.
    "$PIP_AUDIT" --strict --require-hashes --disable-pip --progress-spinner off --requirement "$lock" "$@" || code=$?
done
exit "$code"
