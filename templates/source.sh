#!/bin/sh
# source.sh git TAG COMMIT | archive: TensorFlow's source into /src. COMMIT may be abbreviated or empty (not known).
# /mnt/source has source.tar and its digest, whatever compressed it.
set -eu
# shellcheck source=/dev/null
. /mnt/network.sh

die() {
    echo "tfbuild: $1" >&2
    exit 1
}

if [ "$1" = git ]; then
    url=$(from https://github.com/tensorflow/tensorflow)
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$2" "$url" /src ||
        die "$url has no tag $2, or does not answer"
    commit=$(git -C /src rev-parse HEAD)
    case $commit in
    "$3"*) ;;
    *) die "the tag $2 is the commit $commit, and not $3" ;;
    esac
else
    sha256sum --check --strict --quiet /mnt/source/SHA256SUMS || die "the source is not the one that was planned"
    mkdir /src
    tar --extract --file /mnt/source/source.tar --directory /src --strip-components 1 --no-same-owner
    commit=
fi
for name in configure.py .bazelrc tensorflow/tools/pip_package; do
    [ -e "/src/$name" ] || die "this is not TensorFlow's source: it has no $name"
done
echo "source_commit=$commit" > /opt/tfbuild/source
