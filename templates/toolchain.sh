#!/bin/sh
# toolchain.sh python PYTHON: installs Python's headers and venv; run it after `apt-get update`.
# toolchain.sh bazel PYTHON BAZEL BAZELISK BAZELISK_SHA256 ARCH: installs Bazel, and the Python packages that
# TensorFlow's build needs. /mnt/bazel has the user's own Bazel, if any. Writes a digest of what shapes a compile to
# /opt/tfbuild/builder; each builder has Bazel caches of its own. TFBUILD_PROGRAMS: versions of what is no package.
set -eu
python=$2
top=${TFBUILD_ROOT:-}
# shellcheck source=/dev/null
. "$top/mnt/network.sh"

if [ "$1" = python ]; then
    # A wheel is compiled against its Python's headers. The official Python images include them.
    if ! [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
        apt-get install --yes --no-install-recommends "$python-dev"
    fi
    "$python" -c 'import ensurepip' || apt-get install --yes --no-install-recommends "$python-venv"
    exit
fi

bazel=$3 bazelisk=$4 bazelisk_sha256=$5 arch=$6
"$python" -I -m venv "$top/opt/build" # -I: without what is in the current folder
"$top/opt/build/bin/pip" install --no-cache-dir --disable-pip-version-check --requirement "$top/mnt/requirements.txt"

if [ -f "$top/mnt/bazel/bazel.tar" ]; then
    mkdir "$top/opt/bazel"
    tar --extract --file "$top/mnt/bazel/bazel.tar" --directory "$top/opt/bazel" --strip-components 1 --no-same-owner
    program="$top/opt/bazel/bin/bazel"
    # A Bazel that was built without a version prints nothing, or "6.1.0- (@non-git)".
    said=$("$program" --batch --output_user_root="$top/var/tmp/version" version | sed -n 's/^Build label: //p')
    case $said in
    "$bazel"* | "") ;;
    *) die "--bazel: this Bazel says that it is $said, and not $bazel" ;;
    esac
else
    url=$(from "https://github.com/bazelbuild/bazelisk/releases/download/v$bazelisk/bazelisk-linux-$arch")
    { download "$url" "$top/usr/local/bin/bazelisk" &&
        echo "$bazelisk_sha256  $top/usr/local/bin/bazelisk" | sha256sum --check --strict; } ||
        die "$url cannot be had, or is not the Bazelisk that was planned"
    chmod 755 "$top/usr/local/bin/bazelisk"

    # Bazelisk downloads Bazel when it first runs it, and waits forever for a silent server. The compile runs Bazel
    # directly, which handles signals better. --foreground: without it, `timeout` leads a process group of
    # its own, which Ctrl-C and the time limit do not reach.
    export BAZELISK_HOME="$top/opt/bazelisk" USE_BAZEL_VERSION="$bazel"
    timeout --foreground 1800 bazelisk --batch --output_user_root="$top/var/tmp/version" version
    program=$(find "$top/opt/bazelisk" -name bazel -type f -perm -u+x -print -quit)
fi
rm -rf "$top/var/tmp/version"
ln -s "$program" "$top/usr/local/bin/bazel"

mkdir -p "$top/opt/tfbuild"
{
    # Compilers, linkers and everything with headers; not BOLT's, and nothing that was removed.
    dpkg-query --show --showformat='${db:Status-Status} ${binary:Package} ${Version}\n' '*-dev' '*-dev-*' 'binutils*' \
        'clang-*' 'cpp-*' 'cuda-*' 'g++-*' 'gcc-*' 'libc6*' 'libclang*' 'libllvm*' 'lld-*' nasm 2> /dev/null |
        sed -n '/^installed libbolt-/d; /^installed/p'
    echo "${TFBUILD_PROGRAMS:-}"
    # Not what only packs the wheel or downloads, and often has a new version.
    "$top/opt/build/bin/pip" freeze --exclude packaging --exclude setuptools --exclude wheel --exclude requests \
        --exclude certifi --exclude charset-normalizer --exclude idna --exclude urllib3
    sha256sum "$top/usr/local/bin/bazel" "$(command -v "$python")"
    [ ! -f "$top/mnt/bazel/bazel.tar" ] || sha256sum "$top/mnt/bazel/bazel.tar"
} | sha256sum | cut -d ' ' -f 1 > "$top/opt/tfbuild/builder"
