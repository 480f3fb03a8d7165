# shellcheck shell=sh
# Sourced by every step that uses the network. A company's CA is BuildKit's secret `ca`, in /mnt/ca; a mirror is the
# secret `mirror`. /mnt is a tmpfs: the CA gets into no layer, the mirror's address only into the builder's. Without a
# container, TFBUILD_ROOT is the folder with /mnt, /opt, /src and everything else that a builder writes to.
top=${TFBUILD_ROOT:-}
# Without this, apt-get update succeeds even if it cannot reach a source, and packages then seem not to exist.
echo 'APT::Update::Error-Mode "any";' > "$top/mnt/apt.conf"
export APT_CONFIG="$top/mnt/apt.conf" DEBIAN_FRONTEND=noninteractive
# By default git waits forever for a silent server. Five minutes, since a server that packs a repository is silent too.
export GIT_HTTP_LOW_SPEED_LIMIT=1 GIT_HTTP_LOW_SPEED_TIME=300
if [ -s "$top/mnt/ca" ]; then
    bundle="$top/mnt/bundle.pem"
    cat /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt "$top/mnt/ca" > "$bundle" 2> /dev/null || true
    # apt reads the bundle as its own user, _apt.
    chmod 644 "$bundle"
    export SSL_CERT_FILE="$bundle" CURL_CA_BUNDLE="$bundle" GIT_SSL_CAINFO="$bundle"
    export PIP_CERT="$bundle" REQUESTS_CA_BUNDLE="$bundle"
    echo "Acquire::https::CAInfo \"$bundle\";" >> "$top/mnt/apt.conf"
    # Bazel reads neither these variables nor PEM files. Only steps that run Bazel mount the script.
    if [ -f "$top/mnt/truststore.py" ]; then
        python3 "$top/mnt/truststore.py" "$bundle" "$top/mnt/truststore.jks"
        for option in trustStore="$top/mnt/truststore.jks" trustStoreType=JKS trustStorePassword=changeit; do
            echo "startup --host_jvm_args=-Djavax.net.ssl.$option"
        done > "$top/mnt/ca.bazelrc"
    fi
fi
# https://HOST/PATH is requested as MIRROR/HOST/PATH; the secret is MIRROR.
mirror=
if [ -s "$top/mnt/mirror" ]; then
    mirror=$(sed -n 1p "$top/mnt/mirror")
    host=$(echo "$mirror" | cut -d / -f 3)
    export BAZELISK_BASE_URL="$mirror/github.com/bazelbuild/bazel/releases/download"
    export PIP_INDEX_URL="$mirror/pypi.org/simple"
    # Bazel's rules run pip with --isolated, which ignores the variables but reads this file.
    export PIP_CONFIG_FILE="$top/mnt/pip.conf"
    printf '[global]\nindex-url = %s\n' "$PIP_INDEX_URL" > "$PIP_CONFIG_FILE"
    if [ "${mirror%%://*}" = http ]; then
        export PIP_TRUSTED_HOST="$host"
        echo "trusted-host = $host" >> "$PIP_CONFIG_FILE"
    fi
    # apt's sources, through the mirror; their signatures are still checked with the base's keys.
    mkdir -p "$top/mnt/sources"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        case $file in
        *.list | *.sources) [ ! -f "$file" ] || sed "s|https\{0,1\}://|$mirror/|g" "$file" > "$top/mnt/sources/${file##*/}" ;;
        esac
    done
    echo "Dir::Etc::SourceList \"/dev/null\"; Dir::Etc::SourceParts \"$top/mnt/sources\";" >> "$top/mnt/apt.conf"
    # For Bazel's own downloads; compile.sh passes it on if Bazel has the option.
    echo "rewrite (.*) $mirror/\$1" > "$top/mnt/mirror.downloads"
fi
# die TEXT: says why this step fails.
die() {
    echo "tfbuild: $1" >&2
    exit 1
}
# from URL: prints the URL to request, on the mirror if there is one.
from() {
    echo "${mirror:+$mirror/}${1#"${mirror:+https://}"}"
}
# download URL FILE: gives up on a server that is silent for a minute, or that asks to retry later than that.
download() {
    curl --fail --location --silent --show-error --retry 3 --retry-max-time 60 --connect-timeout 30 \
        --speed-limit 1 --speed-time 60 --output "$2" "$1"
}
[ -z "${HTTP_PROXY-}" ] || export http_proxy="${http_proxy-$HTTP_PROXY}" # apt reads none in capitals
[ -z "${HTTPS_PROXY-}" ] || export https_proxy="${https_proxy-$HTTPS_PROXY}"
[ -z "${NO_PROXY-}" ] || export no_proxy="${no_proxy-$NO_PROXY}"
