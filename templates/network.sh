# shellcheck shell=sh
# Sourced by every step that reaches the network. A company's CA comes as BuildKit's secret `ca`, in /mnt/ca; without
# it nothing here takes effect. /mnt is a tmpfs, so neither the CA nor the bundle made of it gets into a layer.
if [ -s /mnt/ca ]; then
    bundle=/mnt/bundle.pem
    system=/etc/ssl/certs/ca-certificates.crt
    if [ -s "$system" ]; then
        cat "$system" /mnt/ca > "$bundle"
    else
        cat /mnt/ca > "$bundle"
    fi
    # apt reads the bundle as its own user, _apt.
    chmod 644 "$bundle"
    export SSL_CERT_FILE="$bundle" CURL_CA_BUNDLE="$bundle" GIT_SSL_CAINFO="$bundle"
    export PIP_CERT="$bundle" REQUESTS_CA_BUNDLE="$bundle"
    echo "Acquire::https::CAInfo \"$bundle\";" > /mnt/apt.conf
    export APT_CONFIG=/mnt/apt.conf
    # Bazel reads neither the variables nor PEM files. The script is there in steps that run Bazel.
    if [ -f /mnt/truststore.py ]; then
        python3 /mnt/truststore.py "$bundle" /mnt/truststore.jks
        for option in trustStore=/mnt/truststore.jks trustStoreType=JKS trustStorePassword=changeit; do
            echo "startup --host_jvm_args=-Djavax.net.ssl.$option"
        done > /mnt/ca.bazelrc
    fi
fi
# A mirror comes as the secret `mirror`: what is at https://HOST/PATH is then asked for at MIRROR/HOST/PATH.
mirror=
if [ -s /mnt/mirror ]; then
    mirror=$(cat /mnt/mirror)
    export BAZELISK_BASE_URL="$mirror/github.com/bazelbuild/bazel/releases/download"
    export PIP_INDEX_URL="$mirror/pypi.org/simple"
    host=${mirror#*://}
    [ "${mirror%%://*}" != http ] || export PIP_TRUSTED_HOST="${host%%/*}"
fi
# from URL: where to get it.
from() {
    echo "${mirror:+$mirror/}${1#"${mirror:+https://}"}"
}
export DEBIAN_FRONTEND=noninteractive
