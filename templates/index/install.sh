#!/bin/sh
# install.sh URL [RELEASE]: install the best TensorFlow wheel of an index for this CPU, without tfbuild.
#
#   curl -fsSL https://wheels.example/install.sh | sh -s -- https://wheels.example 2.20
#
# RELEASE is one release (2.20.0) or one minor release (2.20); without it, any. Of the releases that the index has for
# this Python and glibc, the newest is chosen, and of it the largest instruction set that this CPU runs.
#
# It reads /proc/cpuinfo and URL/choose.tsv, downloads the wheel, compares its sha256 with the row, and hands it to pip,
# or to uv where this Python has no pip. `tfbuild install` explains more, and checks signatures.
#
# DRY_RUN=1       print the wheel's address without downloading it
# PYTHON=python3  the Python that gets the wheel
# TARGET=cuda     only wheels for this target
set -eu
{ # so that nothing runs, and the exit code is not 0, if a download of this script was cut off

die() {
    echo "install.sh: $1" >&2
    exit "${2:-1}"
}

[ $# -ge 1 ] && [ $# -le 2 ] || die "usage: install.sh URL [RELEASE], such as: install.sh https://wheels.example 2.20" 2
for tool in awk curl sha256sum; do command -v "$tool" > /dev/null || die "there is no $tool here: install it first" 2; done
url=${1%/} release=${2:-} python=${PYTHON:-python3}
case $url in
*@* | *[?#]*) die "URL has a login, ? or # in it: give the address of the folder alone, and a login in ~/.netrc" 2 ;;
esac
printf '%s\n' "$url" | grep -Eiqx 'https://.+|http://(localhost|127(\.[0-9]{1,3}){3}|\[::1])(:[0-9]+)?(/.*)?' ||
    die "$url is not an https address: anybody on the way could send another wheel" 2
cpuinfo=${TFBUILD_CPUINFO:-/proc/cpuinfo}
export PYTHONSAFEPATH=1 # Python imports nothing of the current folder

# The features that every core has.
features=$(awk '
    /^(flags|Features)[ \t]*:/ && !seen[$0]++ {
        lists++
        for (i = 3; i <= NF; i++) if (list[$i] != lists) { list[$i] = lists; cores[$i]++ }
    }
    END { for (name in cores) if (cores[name] == lists) printf "%s ", name }
' "$cpuinfo" || true)
[ -n "$features" ] || die "no CPU features can be read from $cpuinfo" 12
case $(uname -m) in
    x86_64) platform=linux/amd64 ;;
    aarch64) platform=linux/arm64 ;;
    *) die "there are no wheels for a $(uname -m) CPU" 12 ;;
esac
# "3.12 2.36": Python's version and glibc's; nothing where no wheel of TensorFlow can work.
environment=$("$python" -c '
import os, sys, sysconfig
if sys.implementation.name == "cpython" and sys.maxsize > 1 << 32 and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    try: print("%d.%d" % sys.version_info[:2], os.confstr("CS_GNU_LIBC_VERSION").split()[1])
    except (ValueError, OSError, AttributeError): pass
') || die "$python does not run: name another one with PYTHON=" 2
version=${environment% *} glibc=${environment#* }
[ -n "$version" ] || die "$python is not the usual 64-bit CPython on glibc, which the wheels need" 27

work=$(mktemp -d) || die "no folder for temporary files: name one with TMPDIR=" 2
trap 'rm -rf "$work"' EXIT
# Without these, some shells skip the EXIT trap when a signal ends them.
trap 'exit 130' INT
trap 'exit 143' HUP TERM
# request ADDRESS FILE MOST OPTION...: downloads at most MOST bytes (older curls need ulimit), and redirects to https only.
request() {
    from=$1 to=$2 most=$3 && shift 3
    status=$(ulimit -f $(((most + 511) / 512)); curl --silent --show-error --location --netrc-optional \
        --proto =http,https --proto-redir =https --connect-timeout 30 --retry 3 --retry-max-time 60 --max-filesize "$most" \
        --no-fail --no-include --write-out '%{http_code}' --output "$to" "$@" --url "$from") || { # whatever ~/.curlrc says
        [ $? -ne 23 ] || die "no space is left for $to: name another folder with TMPDIR=" 21
        die "the download of $from failed" 26
    }
    [ "$status" = 200 ] || die "$from is not there: the server answers $status" 26
}
request "$url/choose.tsv" "$work/choose.tsv" 4194304 --max-time 60
[ -z "$(tail -c 1 "$work/choose.tsv")" ] || die "$url/choose.tsv is cut off: try again" 26
LC_ALL=C awk -F '\t' -v features=" $features" -v platform="$platform" -v version="$version" -v glibc="$glibc" \
    -v release="$release" -v target="${TARGET:-}" '
    function number(text, parts) { split(text, parts, "."); return parts[1] * 1e8 + parts[2] * 1e4 + parts[3] }
    function say(row, why) { printf "install.sh: not %s: %s\n", names[row], why > "/dev/stderr" }
    NR == 1 {
        for (i = 1; i <= NF; i++) at[$i] = i
        count = split("release target python platform glibc speed set cpuinfo size sha256 file", columns, " ")
        for (i = 1; i <= count; i++) if (!(columns[i] in at)) { failed = 1; exit }
        width = NF
        next
    }
    NF != width { failed = 1; exit }
    { gsub(/[^\t -~]/, "?"); its_release = $at["release"] "" }
    # A release candidate is only chosen by its own name. Compared as text: as numbers, Python 3.1 and 3.10 are equal.
    its_release != release && (release != "" && index(its_release, release ".") != 1 || its_release !~ /^[0-9.]+$/) { next }
    target != "" && $at["target"] != target { next }
    $at["platform"] != platform || $at["python"] "" != version "" { next }
    {
        rows++
        releases[rows] = number(its_release); speeds[rows] = $at["speed"] ""
        names[rows] = $at["set"]
        lines[rows] = its_release " " $at["set"] " " $at["size"] " " $at["sha256"] " " $at["file"]
        count = split($at["cpuinfo"], needed, " ")
        for (i = 1; i <= count; i++)
            if (index(features, " " needed[i] " ") == 0) lacks[rows] = lacks[rows] " " needed[i]
        if (number($at["glibc"]) > number(glibc)) newer[rows] = $at["glibc"]
        else if (releases[rows] > newest) newest = releases[rows]
    }
    END {
        if (failed || !width) exit 1
        for (row = 1; row <= rows; row++) {
            if (releases[row] < newest) continue
            if (lacks[row] != "") say(row, "this CPU lacks" lacks[row])
            else if (newer[row] != "") say(row, "it needs glibc " newer[row] " and this system has " glibc)
            else if (!best || speeds[row] > speeds[best]) best = row
        }
        if (best) print lines[best]
    }
' "$work/choose.tsv" > "$work/best" ||
    die "$url/choose.tsv is not a table that this install.sh can read: fetch install.sh from there again" 26
[ -s "$work/best" ] ||
    die "no wheel${release:+ of $release}${TARGET:+ for $TARGET} at $url runs here, with Python $version and this CPU" 27
read -r its_release its_set size sha256 file < "$work/best"
# They become part of an address and of a path. In Turkish, [a-z] has no i.
printf '%s %s %s\n' "$size" "$sha256" "$file" |
    LC_ALL=C grep -Eqx '[0-9]{1,10} [0-9a-f]{64} pool/[0-9a-f]{64}/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl' ||
    die "$url/choose.tsv has a row that tfbuild did not write" 26
wheel=${file##*/} address=$url/$(printf '%s' "$file" | sed 's/+/%2B/g') # S3 reads "+" as a space
printf 'install.sh: %s\n' "TensorFlow $its_release for $its_set, the largest set of the newest release that this CPU runs" >&2
if [ -n "${DRY_RUN:-}" ]; then
    echo "$address"
    exit 0
fi

# "same": this version, of whatever set; "other NAME": another project with TensorFlow's folder, which pip would mix.
installed=$("$python" - "$wheel" << 'END'
import re, sys
from pathlib import Path

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

project, version = map(plain, sys.argv[1].split("-")[:2])
# Not what pip left over of a package that it removed: ~ensorflow, or a folder without METADATA.
for info in [info for folder in filter(None, sys.path) for info in Path(folder).glob("[!~-]*.dist-info/METADATA")]:
    name, _, rest = map(plain, info.parent.name.partition("-"))
    if name == project and rest == version + "-dist-info":
        print("same")
    elif name != project and name in (
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-cpu-aws", "tf-nightly", "tf-nightly-cpu",
        "intel-tensorflow", "intel-tensorflow-avx512",
    ):
        print("other", name)
END
) || die "$python cannot say which packages it has" 2
case $installed in
    *other*) die "${installed##*other } is installed in the same folder: uninstall it first" 2 ;;
    *same*) installed=same ;; # once for each name of the folder: lib64 may be a link to lib
esac

# pip and uv keep what has the same version, for whatever set; its dependencies are there.
if "$python" -m pip --version > /dev/null 2>&1; then
    set -- "$python" -m pip install
    [ "$installed" != same ] || set -- "$@" --force-reinstall --no-deps
elif command -v uv > /dev/null && python=$(command -v "$python"); then # by a name uv takes any: the one of .venv here
    set -- uv pip install --python "$python"
    [ "$installed" != same ] || set -- "$@" --reinstall --no-deps
else
    die "$python has no pip, and there is no uv: install one of them" 2
fi
# Slower than 10 KB/s for a minute counts as no answer.
request "$address" "$work/$wheel" "$size" --speed-limit 10240 --speed-time "${TFBUILD_STALL:-60}"
[ "$(sha256sum < "$work/$wheel")" = "$sha256  -" ] ||
    die "$address is not the wheel that choose.tsv describes, by its sha256: tell whoever publishes it" 24
"$@" "$work/$wheel" >&2 || die "$1 did not install $wheel" 1
# pip itself names the packages whose requirements are not met any more.
[ "$1" != uv ] || uv pip check --python "$python" >&2 || true
echo "$wheel"
}
