#!/bin/sh
# parts.sh VENV LIBRARIES: moves what depends on the instruction set (TensorFlow's own libraries, and the record with
# their digests) from a virtual environment to the same paths in LIBRARIES. Does nothing if LIBRARIES exists.
set -eu
venv=$1 libraries=$2
[ ! -d "$libraries" ] || exit 0
mkdir "$libraries"
cd "$venv"
find . -path './lib/*/site-packages/tensorflow*' -type f \( -name '*.so*' -o -path '*.dist-info/*' \) |
    while IFS= read -r file; do
        mkdir -p "$libraries/${file%/*}"
        mv "$file" "$libraries/$file"
    done
# As in slim.sh.
find "$venv" "$libraries" -type d -exec touch --date=@315532800 {} +
