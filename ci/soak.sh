#!/bin/sh
# ci/soak.sh [OPTION...]: random verbs with random faults, as root on a bare Debian 12 (ci/debian.sh ci/soak.sh).
#
# OPTION: those of tests/with_engine/soak.py, such as `--minutes 60` and `--seed 7`.
set -eu
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
./install.sh --dev
# It installs the engine's programs; the engine that it starts is stopped: the soak has its own.
.venv/bin/invoke engine
.venv/bin/invoke engine --stop
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    docker-registry e2fsprogs iproute2 openssl > /dev/null
exec .venv/bin/python -u -m tests.with_engine.soak "$@"
