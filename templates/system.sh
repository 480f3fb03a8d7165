#!/bin/sh
# system.sh list WHEEL | install FILE: handles the distribution's packages that a wheel's libraries load at run time.
# `list` prints them on the system that compiled the wheel; `install` installs those of a list that are missing.
set -eu

if [ "$1" = list ]; then
    folder=$(mktemp -d)
    python3 -m zipfile -e "$2" "$folder"
    # No package owns the wheel's own libraries or Python's. dpkg may know a file only by its path without symlinks.
    find "$folder" -type f -name '*.so*' -exec ldd {} + 2> /dev/null |
        awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
        dpkg-query --search "$library" 2> /dev/null || dpkg-query --search "$(readlink -f "$library")" 2> /dev/null || true
    done | sed 's/[:,].*//' | sort -u
    rm -rf "$folder"
    exit
fi

lacking=
while read -r package; do
    [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] ||
        lacking="$lacking $package"
done < "$2"
[ -n "$lacking" ] || exit 0
# shellcheck source=/dev/null
. /mnt/network.sh
# Without a network there is no route, whatever devices there are.
[ "$(wc -l < /proc/net/route)" -gt 1 ] || grep -qv ' lo$' /proc/net/ipv6_route || die "the bundle's system lacks$lacking"
apt-get update
# shellcheck disable=SC2086
apt-get install --yes --no-install-recommends $lacking
rm -f /var/lib/dpkg/*-old /var/cache/debconf/*-old
