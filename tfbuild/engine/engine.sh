#!/bin/sh
# An engine of tfbuild's own for Debian and Ubuntu, as root: engine.sh start|stop|count FOLDER SOCKET
#
# start   install the package docker.io if there is no dockerd, and start one, unless an engine answers at SOCKET
# stop    stop the dockerd that this script started; exits with 3 if it does not run
# count   print how many containers run on it
#
# FOLDER keeps its data, log and pid file. Its path must be short: the kernel limits a socket's path to 107 bytes, and
# containerd's sockets are three levels down.
set -eu
what=$1 folder=$2 socket=$3
pid_file=$folder/dockerd.pid log=$folder/dockerd.log
export DOCKER_HOST="unix://$socket"
# The user's are for another engine, and dockerd reads some of them, too.
unset DOCKER_CONTEXT DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Sets $pid. An id alone proves nothing: ids are used again.
runs() {
    pid=$(cat "$1" 2> /dev/null) && grep -qaF -- "$folder" "/proc/$pid/cmdline" 2> /dev/null
}

# dockerd gives its containers 15 s to end before it exits.
end() {
    runs "$1" || return 0
    kill "$pid"
    for _ in $(seq 400); do
        # dockerd removes its pid file before it exits.
        grep -qaF -- "$folder" "/proc/$pid/cmdline" 2> /dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$pid"
}

if [ "$what" = count ]; then
    ids=
    ! runs "$pid_file" || ids=$(docker ps --quiet) || fail "containers cannot be counted; --yes stops the engine anyway"
    # shellcheck disable=SC2086
    set -- $ids
    echo $#
    exit
fi

mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9

if [ "$what" = stop ]; then
    runs "$pid_file" || exit 3
    end "$pid_file"
    end "$folder/exec/containerd/containerd.pid"
    rm -f "$pid_file"
    exit
fi

answers() {
    docker version > /dev/null 2>&1
}

answers && exit

has_cgroups() {
    [ -d /run/systemd/system ] || [ -n "$(ls -A /sys/fs/cgroup 2> /dev/null)" ]
}

if ! command -v dockerd > /dev/null || ! command -v docker > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    {
        # A broken third-party source can make the update fail; what counts is whether the packages install.
        apt-get -o DPkg::Lock::Timeout=300 update || true
        # Without ca-certificates no registry's certificate is trusted.
        set -- docker.io ca-certificates
        # Since Debian 13 the client and its BuildKit plugin are packages of their own.
        for package in docker-cli docker-buildx; do
            ! apt-cache show "$package" > /dev/null 2>&1 || set -- "$@" "$package"
        done
        has_cgroups || set -- "$@" cgroupfs-mount
        apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "$@" ||
            fail "apt could not install $*; the full log: $folder/apt.log"
    } > "$folder/apt.log"
fi
if [ -d /run/systemd/system ] && [ "$socket" = /var/run/docker.sock ]; then
    systemctl start docker
    exit
fi

for process in /proc/[0-9]*; do
    # The two would share the bridge docker0, and could cut off each other's containers.
    if [ "$(cat "$process/comm" 2> /dev/null)" = dockerd ] && [ "$process/ns/net" -ef /proc/self/ns/net ]; then
        # An init script of the package may just have started it.
        for _ in $(seq 30); do
            ! answers || exit 0
            sleep 1
        done
        fail "dockerd (process ${process#/proc/}) is running, but does not answer at $DOCKER_HOST: set DOCKER_HOST"
    fi
done
has_cgroups || cgroupfs-mount

# The machine's own configuration decides; ours removes layers long before Bazel's cache mounts. Debian 12's engine keeps
# everything until the disk is full, and Docker's default policy first removes the mounts from which an interrupted
# compile would continue (docs.docker.com/build/cache/garbage-collection).
configuration=/etc/docker/daemon.json
if [ ! -e "$configuration" ]; then
    configuration=$folder/daemon.json
    disk=$(df --output=size -B1 "$folder" | tail -n 1)
    cheap=
    for kind in regular source.local source.git.checkout internal; do
        cheap="$cheap{\"keepStorage\": \"$((disk / 5))\", \"filter\": [\"type=$kind\"]}, "
    done
    policy="[$cheap{\"keepStorage\": \"$((disk / 2))\", \"all\": true}]"
    echo "{\"builder\": {\"gc\": {\"enabled\": true, \"policy\": $policy}}}" > "$configuration"
fi

# A dockerd takes any process with the id in its pid file for a running one.
rm -f "$pid_file"
mkdir -p "$(dirname "$socket")"
setsid dockerd --config-file="$configuration" --host="$DOCKER_HOST" --data-root="$folder/data" \
    --exec-root="$folder/exec" --pidfile="$pid_file" > "$log" 2>&1 < /dev/null 9>&- &
daemon=$!
# It starts in seconds, but on a busy machine in minutes.
for _ in $(seq 300); do
    ! answers || exit 0
    kill -0 "$daemon" 2> /dev/null || break
    sleep 1
done
kill "$daemon" 2> /dev/null || true
fail "dockerd did not start
$(tail -n 10 "$log")
the full log: $log"
