# shellcheck shell=sh
# Sourced by every step that reaches the network. A company's CA comes as BuildKit's secret `ca`, in /mnt/ca, a mirror
# as `mirror`. /mnt is a tmpfs, so nothing of it gets into a layer. Without a container, TFBUILD_ROOT is the folder that
# has /mnt, /opt, /src and all else that a builder writes to.
top=${TFBUILD_ROOT:-}
# Without this, apt-get update succeeds although it could not reach a source, and packages seem not to exist.
echo 'APT::Update::Error-Mode "any";' > "$top/mnt/apt.conf"
export APT_CONFIG="$top/mnt/apt.conf"
# git waits without end for a server that sends nothing; one that packs a repository sends nothing for minutes.
export GIT_HTTP_LOW_SPEED_LIMIT=1 GIT_HTTP_LOW_SPEED_TIME=300
if [ -s "$top/mnt/ca" ]; then
    bundle="$top/mnt/bundle.pem"
    system=/etc/ssl/certs/ca-certificates.crt
    if [ -s "$system" ]; then
        cat "$system" "$top/mnt/ca" > "$bundle"
    else
        cat "$top/mnt/ca" > "$bundle"
    fi
    # apt reads the bundle as its own user, _apt.
    chmod 644 "$bundle"
    export SSL_CERT_FILE="$bundle" CURL_CA_BUNDLE="$bundle" GIT_SSL_CAINFO="$bundle"
    export PIP_CERT="$bundle" REQUESTS_CA_BUNDLE="$bundle"
    echo "Acquire::https::CAInfo \"$bundle\";" >> "$top/mnt/apt.conf"
    # Bazel reads neither the variables nor PEM files. The script is there in steps that run Bazel.
    if [ -f "$top/mnt/truststore.py" ]; then
        python3 "$top/mnt/truststore.py" "$bundle" "$top/mnt/truststore.jks"
        for option in trustStore="$top/mnt/truststore.jks" trustStoreType=JKS trustStorePassword=changeit; do
            echo "startup --host_jvm_args=-Djavax.net.ssl.$option"
        done > "$top/mnt/ca.bazelrc"
    fi
fi
# What is at https://HOST/PATH is asked for at MIRROR/HOST/PATH. The secret's first line is MIRROR; the second one says
# that it is a folder on this machine: `bundle`, made beforehand, or `recording`, being made.
mirror=
if [ -s "$top/mnt/mirror" ]; then
    mirror=$(sed -n 1p "$top/mnt/mirror")
    host=${mirror#*://}
    host=${host%%/*}
    export BAZELISK_BASE_URL="$mirror/github.com/bazelbuild/bazel/releases/download"
    export PIP_INDEX_URL="$mirror/pypi.org/simple"
    # Bazel's rules run pip with --isolated: then it reads this file, but none of the variables.
    export PIP_CONFIG_FILE="$top/mnt/pip.conf"
    printf '[global]\nindex-url = %s\n' "$PIP_INDEX_URL" > "$PIP_CONFIG_FILE"
    if [ "${mirror%%://*}" = http ]; then
        export PIP_TRUSTED_HOST="$host"
        echo "trusted-host = $host" >> "$PIP_CONFIG_FILE"
    fi
    # apt's own sources, under the mirror; whose they are is still checked by the base's keys.
    mkdir -p "$top/mnt/sources"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        case $file in
        *.list | *.sources) [ ! -f "$file" ] || sed "s|https\{0,1\}://|$mirror/|g" "$file" > "$top/mnt/sources/${file##*/}" ;;
        esac
    done
    echo "Dir::Etc::SourceList \"/dev/null\"; Dir::Etc::SourceParts \"$top/mnt/sources\";" >> "$top/mnt/apt.conf"
    kind=$(sed -n 2p "$top/mnt/mirror")
    # Old on purpose: what it had when it was made is what it has.
    [ "$kind" != bundle ] || echo 'Acquire::Check-Valid-Until "false";' >> "$top/mnt/apt.conf"
    if [ -n "$kind" ]; then
        # Its port is another one each time, and pip would keep everything under that anew.
        export PIP_NO_CACHE_DIR=1
        export no_proxy="${host%:*}${no_proxy:+,$no_proxy}" NO_PROXY="${host%:*}${NO_PROXY:+,$NO_PROXY}"
    fi
    # What Bazel fetches for the tree; compile.sh hands it over where Bazel knows the option.
    echo "rewrite (.*) $mirror/\$1" > "$top/mnt/mirror.downloads"
fi
# from URL: where to get it.
from() {
    echo "${mirror:+$mirror/}${1#"${mirror:+https://}"}"
}
# download URL FILE: gives up on a server that sends nothing for a minute, or that asks for more patience than that.
download() {
    curl --fail --location --silent --show-error --retry 3 --retry-max-time 60 --connect-timeout 30 \
        --speed-limit 1 --speed-time 60 --output "$2" "$1"
}
export DEBIAN_FRONTEND=noninteractive
