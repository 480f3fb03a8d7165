#!/bin/sh
# ci/try.sh PACKAGE: installs a wheel or an sdist into a new environment and runs its command in an empty folder.
#
# What it writes must be what the clone has under dockerfiles/, where only the Dockerfile has other paths. PYTHON: the Python to use (default: python3).
set -eu
package=$(realpath "$1")
clone=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "$package"
mkdir "$folder/empty"
cd "$folder/empty"
tfbuild=$folder/venv/bin/tfbuild
"$tfbuild" --version
"$tfbuild" detect
"$tfbuild" copts --cpu haswell
"$tfbuild" matrix --only '*-mkl-*' >/dev/null
name=2.21.0-mkl-py3.13-x86-64-v3
"$tfbuild" dockerfile --target mkl --release 2.21.0 --python 3.13 --platform linux/amd64 --cpu x86-64-v3 --output context
diff -r --exclude Dockerfile --exclude scripts "$clone/dockerfiles/$name" context
(cd context/scripts && find . -maxdepth 1 -type f) | while read -r file; do
    cmp "$clone/templates/$file" "context/scripts/$file"
done
diff -r --exclude __pycache__ "$clone/tfbuild/in_container/smoke" context/scripts/smoke
echo "ci/try.sh: $(basename "$package") works" >&2
