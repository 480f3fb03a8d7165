#!/bin/sh
# source.sh git TAG COMMIT | archive: TensorFlow's source into /src. COMMIT may be abbreviated or empty (not known).
# /mnt/source has source.tar and its digest, whatever compressed it; /mnt/fixes and /mnt/patches what to change in it,
# /mnt/overrides the folders that take external repositories' places.
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

# What known failures need changed, then the user's patches by number: all of each or nothing of it. In a folder of no
# repository git applies every path of a patch.
apply() {
    (cd /src && GIT_CEILING_DIRECTORIES=/ git apply --whitespace=nowarn "$1")
}
for patch in /mnt/fixes/*.patch; do
    [ -f "$patch" ] || continue
    name=${patch##*/}
    apply "$patch" || die "the fix ${name%.patch} does not apply to this tree"
    echo "fix/$name=$(sha256sum "$patch" | cut -d ' ' -f 1)" >> /opt/tfbuild/source
done
if [ -f /mnt/fixes/edits.json ]; then
    python3 /mnt/edit.py /src /mnt/fixes/edits.json
    echo "fix/edits.json=$(sha256sum /mnt/fixes/edits.json | cut -d ' ' -f 1)" >> /opt/tfbuild/source
fi
for patch in /mnt/patches/*; do
    [ -f "$patch" ] || continue
    apply "$patch" || die "${patch##*/} does not apply to this tree"
    echo "patch/${patch##*/}=$(sha256sum "$patch" | cut -d ' ' -f 1)" >> /opt/tfbuild/source
done
for archive in /mnt/overrides/*.tar; do
    [ -f "$archive" ] || continue
    name=${archive##*/}
    mkdir -p "/opt/overrides/${name%.tar}"
    tar --extract --file "$archive" --directory "/opt/overrides/${name%.tar}" --strip-components 1 --no-same-owner
    echo "override/${name%.tar}=$(sha256sum "$archive" | cut -d ' ' -f 1)" >> /opt/tfbuild/source
done
