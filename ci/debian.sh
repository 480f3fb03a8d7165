#!/bin/sh
# ci/debian.sh COMMAND...: runs a command on a bare Debian 12, as root in a copy of this checkout.
#
# That is a container with nothing but Git: the command installs what it needs, and starts an engine of its own, whose
# images are in a volume. The container's network and processes are its own. DEBIAN: another image of Debian 12.
set -eu
[ $# -gt 0 ] || {
    echo "ci/debian.sh: no command" >&2
    exit 2
}
# The copy belongs to root, as Git requires of whoever uses it.
# shellcheck disable=SC2016
exec docker run --rm --privileged --volume /var/lib/docker --volume "$PWD:/checkout:ro" "${DEBIAN:-debian:12}" sh -euc '
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates git python3 > /dev/null
    cp -r --no-preserve=ownership /checkout /root/tfbuild
    cd /root/tfbuild
    exec "$@"' sh "$@"
