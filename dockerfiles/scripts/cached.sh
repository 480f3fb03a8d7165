#!/bin/sh
# cached.sh restore|save: keeps Bazel's cache in an image, for machines that start with empty disks.
#
# restore fills the cache from the image's files in /mnt/cached. save copies to /saved what that image lacks.
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
    # Files in disk/ are named by digest: the same name means the same content. Records grow by a line with each run.
    find disk sittings -type f | while read -r name; do
        case $name in
        disk/*) [ -e "$cached/$name" ] || echo "$name" ;;
        *) echo "$name" ;;
        esac
    done > /mnt/names
    tar --create --files-from=/mnt/names | tar --extract --directory="/saved/$builder"
    ;;
esac
