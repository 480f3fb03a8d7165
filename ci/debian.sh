#!/bin/sh
# ci/debian.sh COMMAND...: runs a command on a bare Debian 12, as root in a copy of this checkout.
#
# That is a container with nothing but Git and Python: the command installs what it needs, and starts an engine of its
# own. Engines there keep their images in volumes, since overlayfs does not go on top of itself.
set -eu
[ $# -gt 0 ] || {
    echo "ci/debian.sh: no command" >&2
    exit 2
}
# The copy belongs to root, as Git requires of whoever uses it. In version 2 of cgroups, a group with processes gives no
# controllers to groups below it, such as those of an engine's containers: the processes move (moby/moby, hack/dind).
# shellcheck disable=SC2016
exec docker run --rm --privileged --volume /var/lib/tfbuild --volume /tmp --volume "$PWD:/checkout:ro" \
    debian:12 sh -euc '
    if [ -w /sys/fs/cgroup/cgroup.subtree_control ]; then
        mkdir -p /sys/fs/cgroup/init
        xargs -rn1 < /sys/fs/cgroup/cgroup.procs > /sys/fs/cgroup/init/cgroup.procs || true
        sed "s/ / +/g; s/^/+/" /sys/fs/cgroup/cgroup.controllers > /sys/fs/cgroup/cgroup.subtree_control
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates git python3 > /dev/null
    cp -r /checkout /root/tfbuild
    cd /root/tfbuild
    exec "$@"' sh "$@"
