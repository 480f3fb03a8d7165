#!/bin/sh
# cached.sh restore|save: carries Bazel's cache over in an image, for machines that start with empty disks.
#
# restore fills the cache from that image's files, in /mnt/cached. save copies what they lack to /saved.
set -eu
builder=$(cat /opt/tfbuild/builder)
cache=/mnt/cache/$builder cached=/mnt/cached/$builder
mkdir -p "$cache" "/saved/$builder"
case $1 in
restore)
    if [ -d "$cached" ]; then
        cp -r --no-clobber "$cached/." "$cache/"
    else
        echo "tfbuild: note: the cache's image is by another builder, and of no use here"
    fi
    ;;
save)
    cd "$cache"
    # Digests name the files in disk: what has the same name is the same. A record has a line more after each run.
    find disk sittings -type f | while read -r name; do
        case $name in
        disk/*) [ -e "$cached/$name" ] || echo "$name" ;;
        *) echo "$name" ;;
        esac
    done > /mnt/names
    tar --create --files-from=/mnt/names | tar --extract --directory="/saved/$builder"
    ;;
esac
