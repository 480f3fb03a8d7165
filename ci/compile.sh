#!/bin/sh
# ci/compile.sh ID OPTIONS WORD...: compile the wheel of one row of `invoke matrix` into dist/ID, in as many jobs as it takes.
#
# It runs `invoke wheel --no-container` in a container of the plan's base, where Bazel's cache is a plain folder,
# TFBUILD_CACHE/ID, which the CI keeps for the next job. The versions of the compiler and of all -dev packages are in the
# cache's keys: the first job notes the base's digest and a date in that folder, and all take that base and Debian's
# packages of that date. WORD...: further options of `invoke wheel`.
#
# TFBUILD_CACHE     the folder that the CI keeps
# TFBUILD_SNAPSHOT  the archive of dated packages (default: http://snapshot.debian.org/archive); none: today's packages
set -eu
if [ "$1" = inside ]; then
    date=$2 options=$3
    shift 3
    [ -z "${HTTP_PROXY:-}" ] || export http_proxy="${http_proxy-$HTTP_PROXY}" # apt reads none in capitals
    [ -z "${HTTPS_PROXY:-}" ] || export https_proxy="${https_proxy-$HTTPS_PROXY}"
    [ -z "${NO_PROXY:-}" ] || export no_proxy="${no_proxy-$NO_PROXY}"
    if [ "${TFBUILD_SNAPSHOT:-}" != none ]; then
        archive=${TFBUILD_SNAPSHOT:-http://snapshot.debian.org/archive}
        sed -i -E "s#http://deb.debian.org/(debian[a-z-]*)/?#$archive/\1/$date#" /etc/apt/sources.list.d/* /etc/apt/sources.list 2> /dev/null || true
        echo 'Acquire::Check-Valid-Until "false";' > /etc/apt/apt.conf.d/99snapshot
    fi
    # In place, since an installation names its folder, and the keys the one below which it compiles.
    (cd /checkout && tar --create --exclude=./.venv --exclude=./build --exclude=./dist --exclude=./cache .) | tar --extract
    # The Dockerfile installs a Python where the base has none.
    command -v python3 > /dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv > /dev/null; }
    ./install.sh > /dev/null
    # The options of a row are quoted for a shell; they name the compiler and the Python.
    eval "set -- $options \"\$@\""
    lacks=$(eval ".venv/bin/invoke plan --no-container $options --json" |
        sed -n 's/.*sudo apt-get install \([a-z0-9.+ -]*\).*/\1/p')
    if [ -n "$lacks" ]; then
        apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacks > /dev/null
    fi
    code=0
    .venv/bin/invoke wheel --no-container "$@" --output /dist > /dev/null || code=$?
    # `invoke build --reuse` begins build.log anew.
    for log in /tfbuild/build/[0-9]*/build.log; do [ ! -f "$log" ] || cp "$log" "${log%build.log}compile.log"; done
    chown -R --reference=/checkout /tfbuild/build/host/*/cache /tfbuild/build/[0-9]* /dist
    exit "$code"
fi

id=$1 options=$2
shift 2
invoke=${INVOKE:-.venv/bin/invoke}
plan=$(eval "$invoke build $options ${TFBUILD_BUILD_OPTIONS:-} --dry-run --json")
# field NAME: this text of the plan.
field() { printf '%s\n' "$plan" | sed -n "s/^ *\"$1\": \"\([^\"]*\)\".*/\1/p" | head -n 1; }
if [ "$(field id)" != "$id" ]; then
    echo "ci/compile.sh: TFBUILD_BUILD_OPTIONS changes the identifier to $(field id): use tfbuild.toml for that" >&2
    exit 2
fi
case $plan in *"comes from https://apt.llvm.org"*) exit 12 ;; esac # an archive that only the Dockerfile adds
mkdir -p "$TFBUILD_CACHE/$id" "dist/$id" "build/$id"
cache=$(cd "$TFBUILD_CACHE/$id" && pwd)
if [ ! -s "$cache/base" ]; then
    base=$(field base_image)
    docker pull --quiet "$base" > /dev/null || docker image inspect "$base" > /dev/null
    base=$(docker image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}' "$base")
    echo "$base $(date -u +%Y%m%dT%H%M%SZ)" > "$cache/base"
fi
read -r base date < "$cache/base"
# The container is of the row's own base already.
options=$(printf '%s\n' "$options" | sed 's/ --base [^ ]*//')
docker run --rm --init --network host --user 0:0 --entrypoint sh --workdir /tfbuild \
    --env http_proxy --env https_proxy --env no_proxy --env HTTP_PROXY --env HTTPS_PROXY --env NO_PROXY \
    --env TFBUILD_SNAPSHOT \
    ${SSL_CERT_FILE:+--env SSL_CERT_FILE=/ca.pem --env PIP_CERT=/ca.pem --volume "$SSL_CERT_FILE:/ca.pem:ro"} \
    ${TFBUILD_REMOTE_HEADER_FILE:+--volume "$TFBUILD_REMOTE_HEADER_FILE:$TFBUILD_REMOTE_HEADER_FILE:ro"} \
    --volume "$PWD:/checkout:ro" --volume "$PWD/dist/$id:/dist" --volume "$PWD/build/$id:/tfbuild/build/$id" \
    --volume "$cache:/tfbuild/build/host/$(field release)/cache" \
    "$base" /checkout/ci/compile.sh inside "$date" "$options" "$@"
