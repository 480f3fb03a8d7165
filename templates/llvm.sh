#!/bin/sh
# llvm.sh URL SUITE KEY FINGERPRINT: adds LLVM's own repository to apt, trusting only the key with that fingerprint.
# Run it after `apt-get update`; afterwards apt knows the packages of both. SUITE: llvm-toolchain-NAME-VERSION.
set -eu
url=$1 suite=$2 key=$3 fingerprint=$4
apt-get install --yes --no-install-recommends ca-certificates curl gpg
# After it: what curl trusts has the system's certificates, too.
# shellcheck source=/dev/null
. /mnt/network.sh

file=$(from "$key")
download "$file" /mnt/llvm.asc
mkdir -m 700 /mnt/gnupg
keys=$(gpg --batch --quiet --homedir /mnt/gnupg --show-keys --with-colons /mnt/llvm.asc |
    awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
[ "$keys" = "$fingerprint" ] ||
    die "$file holds not the key $fingerprint alone, by which LLVM signs its packages"
mkdir -p /etc/apt/keyrings
cp /mnt/llvm.asc /etc/apt/keyrings/llvm.asc

name=${suite#llvm-toolchain-}
echo "deb [signed-by=/etc/apt/keyrings/llvm.asc] $url/${name%-*}/ $suite main" > /etc/apt/sources.list.d/llvm.list
# Again, so that the new source goes through the mirror, if there is one.
# shellcheck source=/dev/null
. /mnt/network.sh
apt-get update
