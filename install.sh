#!/bin/sh
# Makes .venv with tfbuild's locked dependencies (`--dev`: with the test tools too). Safe to run again.
set -eu
cd "$(dirname "$0")"
lock=requirements.lock
[ "${1:-}" = "--dev" ] && lock=requirements-dev.lock

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: tfbuild needs Python 3.11 or newer as python3" >&2
    exit 1
fi
# A Python that was replaced leaves a link to nothing, an installation that was stopped no pip.
if [ ! -x .venv/bin/python ] || [ ! -x .venv/bin/pip ]; then
    # Debian and Ubuntu keep ensurepip in a package of its own.
    if ! python3 -c 'import ensurepip' 2>/dev/null; then
        if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
            echo "error: this Python cannot make virtual environments" >&2
            echo "hint: install its venv package, for example: sudo apt-get install python3-venv" >&2
            exit 1
        fi
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv
    fi
    clear=
    [ -x .venv/bin/python ] || clear=--clear
    rm -f .venv/requirements*.lock
    python3 -m venv $clear .venv
fi
# Installed before: pip has nothing to do, and is not asked.
if ! cmp -s "$lock" ".venv/$lock"; then
    .venv/bin/python -m pip install --quiet --require-hashes -r "$lock"
    cp "$lock" ".venv/$lock"
fi
