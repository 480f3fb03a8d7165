#!/bin/sh
# source.sh git TAG COMMIT | archive: puts TensorFlow's source into /src. COMMIT may be abbreviated or empty (unknown).
# /mnt/source has source.tar and its digest; /mnt/fixes and /mnt/patches have changes to it, and /mnt/overrides the
# folders that replace external repositories.
set -eu
top=${TFBUILD_ROOT:-}
# shellcheck source=/dev/null
. "$top/mnt/network.sh"

if [ "$1" = git ]; then
    url=$(from https://github.com/tensorflow/tensorflow)
    git -c advice.detachedHead=false clone --quiet --depth 1 --branch "$2" "$url" "$top/src" ||
        die "$url has no tag $2, or does not answer"
    commit=$(git -C "$top/src" rev-parse HEAD)
    case $commit in
    "$3"*) ;;
    *) die "the tag $2 is the commit $commit, and not $3" ;;
    esac
else
    sed "s|  /|  $top/|" "$top/mnt/source/SHA256SUMS" | sha256sum --check --strict --quiet ||
        die "the source is not the one that was planned"
    mkdir "$top/src"
    # Without a repository of theirs, whose settings git would obey below.
    tar --extract --exclude .git --file "$top/mnt/source/source.tar" -C "$top/src" --strip-components 1 --no-same-owner
    commit=
fi
for name in configure.py .bazelrc tensorflow/tools/pip_package; do
    [ -e "$top/src/$name" ] || die "this is not TensorFlow's source: it has no $name"
done
echo "source_commit=$commit" > "$top/opt/tfbuild/source"

# First the fixes of known failures, then the user's patches in order. Each applies whole or not at all. Outside a
# repository, git applies every path of a patch.
if [ -f "$top/mnt/fixes/edits.json" ]; then
    python3 "$top/mnt/edit.py" "$top/src" "$top/mnt/fixes/edits.json"
    echo "fix/edits.json=$(sha256sum "$top/mnt/fixes/edits.json" | cut -d ' ' -f 1)" >> "$top/opt/tfbuild/source"
fi
for patch in "$top"/mnt/patches/*; do
    [ -f "$patch" ] || continue
    (cd "$top/src" && GIT_CEILING_DIRECTORIES="$top/" git apply --whitespace=nowarn "$patch") ||
        die "${patch##*/} does not apply to this tree"
    echo "patch/${patch##*/}=$(sha256sum "$patch" | cut -d ' ' -f 1)" >> "$top/opt/tfbuild/source"
done
for archive in "$top"/mnt/overrides/*.tar; do
    [ -f "$archive" ] || continue
    name=${archive##*/}
    mkdir -p "$top/opt/overrides/${name%.tar}"
    tar --extract --file "$archive" --directory "$top/opt/overrides/${name%.tar}" --strip-components 1 --no-same-owner
    echo "override/${name%.tar}=$(sha256sum "$archive" | cut -d ' ' -f 1)" >> "$top/opt/tfbuild/source"
done
