#!/bin/sh
# ci/fuzz.sh [OPTION...]: feeds the parsers of foreign text mutated input, and fails if one of them cannot take some.
#
# OPTION: those of benchmarks/fuzz.py, such as `--seconds 60` for each parser, or the names of some.
#
# PYTHON: the Python that atheris and tfbuild's test tools are installed for, in a new environment (default: python3)
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --require-hashes --requirement requirements-dev.lock --requirement ci/fuzz.txt
"$folder/bin/python" -m benchmarks.fuzz "$@"
