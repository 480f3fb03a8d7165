#!/bin/sh
# llvm.sh URL SUITE KEY FINGERPRINT: makes apt know LLVM's own repository, by the one key of that fingerprint.
# Run after `apt-get update`; leaves the packages of both in apt's lists. SUITE: llvm-toolchain-NAME-VERSION.
set -eu
url=$1 suite=$2 key=$3 fingerprint=$4
# shellcheck source=/dev/null
. /mnt/network.sh
apt-get install --yes --no-install-recommends ca-certificates curl gpg

file=$(from "$key")
download "$file" /mnt/llvm.asc
mkdir -m 700 /mnt/gnupg
keys=$(gpg --batch --quiet --homedir /mnt/gnupg --show-keys --with-colons /mnt/llvm.asc |
    awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
if [ "$keys" != "$fingerprint" ]; then
    echo "tfbuild: $file holds not the key $fingerprint alone, by which LLVM signs its packages" >&2
    exit 1
fi
mkdir -p /etc/apt/keyrings
cp /mnt/llvm.asc /etc/apt/keyrings/llvm.asc

name=${suite#llvm-toolchain-}
echo "deb [signed-by=/etc/apt/keyrings/llvm.asc] $url/${name%-*}/ $suite main" > /etc/apt/sources.list.d/llvm.list
# Once more: puts the new source under the mirror, where there is one.
# shellcheck source=/dev/null
. /mnt/network.sh
apt-get update
