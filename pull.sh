#!/bin/sh
# pull.sh REPOSITORY [RELEASE [TARGET [PYTHON]]]: pull the best image in a registry for this host, without Python.
#
#   curl -fsSL https://raw.githubusercontent.com/us/tfbuild/v0.1.0/pull.sh | sh -s -- ghcr.io/us/tfbuild 2.20 mkl
#
# RELEASE is one release (2.20.0), one minor release (2.20), or `latest` (the default: the newest release that is
# published for any host). Of several releases the newest is chosen first, then the largest set of it that this host runs.
#
# It reads /proc/cpuinfo and the index REPOSITORY:RELEASE-TARGET. There, `invoke push` wrote the features that each image
# needs and the speed of its instruction set; of equal speeds, the newest Python comes first. An image that is missing, or
# is not what its index and its digest say, is passed over, up to a hundred of them. `invoke pull` explains more.
#
# DRY_RUN=1   print the image without pulling it
set -eu
export LC_ALL=C # in Turkish, [a-z] has no i
{ # so that nothing runs, and the exit code is not 0, if a download of this script was cut off

die() {
    echo "pull.sh: $1" >&2
    exit "${2:-1}"
}

usage="usage: pull.sh REPOSITORY [RELEASE [TARGET [PYTHON]]], such as: pull.sh ghcr.io/us/tfbuild 2.20 mkl 3.12"
case ${1-} in -h | --help) echo "$usage" && exit ;; esac
[ $# -ge 1 ] && [ $# -le 4 ] || die "$usage" 2
docker=docker
[ -z "${DRY_RUN:-}" ] || docker=''
for tool in awk curl sha256sum $docker; do command -v "$tool" > /dev/null || die "there is no $tool here: install it first" 2; done
repository=$1 release=${2:-latest} target=${3:-mkl} python=${4:-}
tag=$release-$target
host=${repository%%/*} path=${repository#*/}
name=${host%%:*} direct=localhost,127.0.0.1
case $name in
    \[*) die "$repository has an IPv6 address, which no image name can contain: use a name from /etc/hosts" 2 ;;
    localhost) base=http://$host ;;
    # Names that only start like a loopback address.
    127.*[!0-9.]*) base=https://$host ;;
    127.*.*.*) base=http://$host direct=$direct,$name ;;
    docker.io) base=https://registry-1.docker.io ;;
    *.*) base=https://$host ;;
    *)
        [ "$name" != "$host" ] || die "$repository does not name the registry's host" 2
        base=https://$host
        ;;
esac
part='[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*'
printf '%s\n' "$repository" | grep -Eqx "[^/]+(/$part)+" || die "$repository is not a repository in a registry" 2
case $(uname -m) in
    x86_64) platform=linux/amd64 ;;
    aarch64) platform=linux/arm64 ;;
    *) die "there are no images for a $(uname -m) CPU" 12 ;;
esac

# The features that every core has.
features=$(awk '
    /^(flags|Features)[ \t]*:/ && !seen[$0]++ {
        lists++
        for (i = 3; i <= NF; i++) if (list[$i] != lists) { list[$i] = lists; cores[$i]++ }
    }
    END { for (name in cores) if (cores[name] == lists) printf "%s ", name }
' "${TFBUILD_CPUINFO:-/proc/cpuinfo}" || true)
[ -n "$features" ] || die "no CPU features can be read from ${TFBUILD_CPUINFO:-/proc/cpuinfo}" 12

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without these, some shells skip the EXIT trap when a signal ends them.
trap 'exit 130' INT
trap 'exit 143' HUP TERM
# as SCHEME CREDENTIALS: sets the credentials of the next request. In a file, because all users can see arguments.
as() { if [ -n "$2" ]; then printf 'header = "Authorization: %s %s"\n' "$1" "$2"; fi > "$work/as"; }
direct=${no_proxy:-${NO_PROXY:-}},$direct
case $direct in '*,'*) direct='*' ;; esac # curl knows it only by itself
# request FILE OPTION...: writes an answer to $work/FILE, and its status to stdout. Takes no more than 4 MiB, waits no
# longer than a minute, tries four times, never leaves TLS, and reaches this machine without a proxy. ~/.curlrc may name a
# proxy or certificates, but not change what an answer is.
request() {
    file=$1 && shift
    for pause in 1 2 4 ''; do
        code=0
        # If an answer does not say its length, older curls ignore --max-filesize. ulimit counts blocks of 512 bytes.
        status=$(ulimit -f 8192; curl --silent --show-error --connect-timeout 30 --max-time 60 --max-filesize 4194304 \
            --noproxy "$direct" --proto =http,https --proto-redir =https --location --globoff --no-fail --no-include \
            --config "$work/as" --dump-header "$work/head" --output "$work/$file" --write-out '%{http_code}' "$@") ||
            code=$?
        case $code-$status in
            0-429 | 0-500 | 0-502 | 0-503 | 0-504 | 18-* | 5[25]-* | 92-*)
                [ -z "$pause" ] || { sleep "$pause" && continue; }
                ;;
        esac
        break
    done
    printf '%s' "$status"
    return "$code"
}
# lost NAME: ends with the reason why a request to NAME failed.
lost() {
    [ $? -ne 23 ] || die "no space is left for temporary files: name another folder with TMPDIR=" 21
    die "$1 does not answer" 26
}
# ask PATH FILE: writes what the registry has there to $work/FILE, and the status of the answer to stdout.
ask() {
    request "$2" --header "Accept: $accept" "$base/v2/$path/$1" || return
    # Some proxies compress what nobody asked them to.
    case $(head -c 2 "$work/$2" 2> /dev/null | od -An -tx1) in
        *1f*8b*) gzip -dc < "$work/$2" 2> /dev/null | head -c 4194304 > "$work/plain" && mv "$work/plain" "$work/$2" ;;
    esac
}
# All types, because registries refuse to name what has another one.
accept=application/vnd.oci.image.index.v1+json
accept="$accept, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json,\
 application/vnd.docker.distribution.manifest.v2+json"
# text NAME: this field of a credential helper's answer. The key of _json_key has line breaks, and \n in its JSON.
text() {
    printf '%s' "$answer" | tr -d '\r\n' | sed -n -E "s/.*\"$1\" *: *\"(([^\"\\\\]|\\\\.)*)\".*/\1/p" | awk '{
        gsub(/\\\\/, "\001"); gsub(/\\n/, "\n"); gsub(/\\t/, "\t")
        gsub(/\\u0026/, "\\&"); gsub(/\\u003[cC]/, "<"); gsub(/\\u003[eE]/, ">"); gsub(/\\/, ""); gsub("\001", "\\")
        print
    }'
}
# login: sets `basic` to the name and password that `docker login` stored for this host, in base64, or `identity` to the
# token that some registries give instead of them, such as Azure's; both are empty if there is nothing.
login() {
    basic='' identity=''
    config=${DOCKER_CONFIG:-${HOME:-/root}/.docker}/config.json
    [ -r "$config" ] || return 0
    key=$host
    [ "$host" != docker.io ] || key=https://index.docker.io/v1/
    pattern=$(printf '%s' "$key" | sed 's/[].[\*^$/]/\\&/g')
    flat=$(tr -d ' \t\r\n' < "$config")
    helper=$(printf '%s' "$flat" | sed -n "s/.*\"credHelpers\":{[^}]*\"$pattern\":\"\([^\"]*\)\".*/\1/p")
    [ -n "$helper" ] || helper=$(printf '%s' "$flat" | sed -n 's/.*"credsStore":"\([^"]*\)".*/\1/p')
    if [ -z "$helper" ]; then
        # Older clients kept the address as it was typed: https://HOST/v2/.
        for address in "\\($pattern\\)" "https\\{0,1\\}:\\/\\/$pattern\\(\\/[^\"]*\\)*"; do
            [ -z "$basic$identity" ] || break
            basic=$(printf '%s' "$flat" | sed -n "s/.*\"$address\":{[^}]*\"auth\":\"\([^\"]*\)\".*/\2/p")
            identity=$(printf '%s' "$flat" | sed -n "s/.*\"$address\":{[^}]*\"identitytoken\":\"\([^\"]*\)\".*/\2/p")
        done
    elif answer=$(printf '%s' "$key" | "docker-credential-$helper" get 2> /dev/null); then
        basic=$(printf '%s:%s' "$(text Username)" "$(text Secret)" | base64 | tr -d '\n')
        [ "$(text Username)" != '<token>' ] || identity=$(text Secret)
    fi
}
as Basic ''
status=$(ask "manifests/$tag" index) || lost "$host"
if [ "$status" = 401 ]; then
    challenge=$(tr -d '\r' < "$work/head" | grep -i '^www-authenticate: *\(bearer\|basic\) ' | sort -f | tail -n 1)
    # Of several ways to log in, the token.
    case $challenge in
        *[Bb]earer\ *) challenge=$(printf '%s' "$challenge" | sed 's/.*[Bb]earer /Bearer /; s/, *[A-Za-z]\{1,\} [a-z]*=.*//') ;;
    esac
    field() { printf '%s\n' "$challenge" | sed -n "s/.*[ ,]$1=\"\([^\"]*\)\".*/\1/p"; }
    realm=$(field realm)
    case $challenge in
        *[Bb][Aa][Ss][Ii][Cc]\ *) login && as Basic "$basic" ;;
        *)
            # Passwords are never sent unencrypted. For public images, tokens need no password.
            set -- --get
            case $realm in https://* | "$base"/*)
                login && as Basic "$basic"
                # An identity token is OAuth2's refresh token.
                if [ -n "$identity" ]; then
                    printf 'data-urlencode = "refresh_token=%s"\n' "$identity" > "$work/as"
                    set -- --data grant_type=refresh_token --data client_id=tfbuild
                fi
                ;;
            esac
            # The realm is untrusted: --proto and --url keep curl from reading a file, or taking it for an option.
            status=$(request token "$@" --data-urlencode "service=$(field service)" \
                --data-urlencode "scope=$(field scope)" --url "$realm") || lost "the token server of $host"
            case $status in
                2?? | 400 | 401 | 403 | 404) ;;
                *) die "the token server of $host answers $status" 26 ;;
            esac
            token=$(sed -n 's/.*"\(access_\)\{0,1\}token" *: *"\([^"]*\)".*/\2/p' "$work/token" | head -n 1)
            [ -n "$token" ] || [ "$status" != 200 ] || die "the token server of $host sends no token" 26
            as Bearer "$token"
            ;;
    esac
    status=$(ask "manifests/$tag" index) || lost "$host"
fi
case $status in
    200) ;;
    401 | 403) die "$host denies access to $repository:$tag (it answers $status): docker login $host, or check the name" 26 ;;
    404) die "$repository has no $tag (the registry answers 404)" 27 ;;
    *) die "$host answers $status for $repository:$tag" 26 ;;
esac
# An image, something else, or an index with other line breaks than those of tfbuild.
grep -q '^ *"io\.tfbuild\.' "$work/index" || die "$repository:$tag is not an index of tfbuild" 26

# A terminal may take bytes beyond ASCII for commands, too.
tr -d '\001-\010\013-\037\177' < "$work/index" | LC_ALL=C tr '\200-\377' '?' > "$work/clean"
awk -v features=" $features" -v platform="$platform" -v python="$python" -v target="$target" '
    function value() { sub(/^[^:]*: *"/, ""); sub(/",? *$/, ""); return $0 }
    function number(text, parts) { split(text, parts, "."); return parts[1] * 1e8 + parts[2] * 1e4 + parts[3] }
    # The fastest image that fits; of equally fast ones the first.
    function fastest(row, first) {
        for (row = 1; row <= rows; row++)
            if (fits[row] && (!first || speeds[row] > speeds[first])) first = row
        return first
    }
    /^ *"digest": / { digest = value(); id = its_platform = its_python = its_release = speed = "" }
    /^ *"io\.tfbuild\.release": / { its_release = value() }
    /^ *"io\.tfbuild\.id": / { id = value() }
    /^ *"io\.tfbuild\.python": / { its_python = value() }
    /^ *"io\.tfbuild\.platform": / { its_platform = value() }
    /^ *"io\.tfbuild\.speed": / { speed = value() }
    /^ *"io\.tfbuild\.cpuinfo": / {
        needs = value()
        # It becomes a name of an image, and part of a command to type.
        if (id !~ /^[A-Za-z0-9_][A-Za-z0-9._-]*$/ || length(id) > 128) {
            if (!strange++) print "pull.sh: an image with an invalid identifier is passed over" > "/dev/stderr"
            next
        }
        if (index(id, its_release "-" target "-py" its_python "-") != 1) {
            printf "pull.sh: not %s: the index says another release, target or Python\n", id > "/dev/stderr"
            next
        }
        if (digest !~ /^sha256:[0-9a-f]+$/ || length(digest) != 71) {
            printf "pull.sh: not %s: the index gives no digest\n", id > "/dev/stderr"
            next
        }
        # Compared as text: as numbers, Python 3.1 and 3.10 are equal.
        if (python != "" && its_python "" != python "") next
        if (number(its_release) > newest) newest = number(its_release)
        if (its_platform != platform) next
        rows++
        count = split(needs, needed, " ")
        for (i = 1; i <= count; i++)
            if (index(features, " " needed[i] " ") == 0) lacks[rows] = lacks[rows] " " needed[i]
        lines[rows] = digest " " id " " its_release " " its_python " " its_platform " " needs; ids[rows] = id; releases[rows] = number(its_release)
        # Compared as text: of equal speeds, the newer Python.
        speeds[rows] = speed " " number(its_python)
    }
    END {
        for (row = 1; row <= rows; row++) {
            if (releases[row] < newest) continue
            if (lacks[row] == "") fits[row] = 1
            else printf "pull.sh: not %s: this CPU lacks%s\n", ids[row], lacks[row] > "/dev/stderr"
        }
        for (row = fastest(); row && ++named <= 100; row = fastest()) { print lines[row]; fits[row] = "" }
    }
' "$work/clean" > "$work/candidates"
[ -s "$work/candidates" ] || die "nothing in $repository:$tag${python:+ with Python $python} runs on this host" 27

# fetch PATH DIGEST FILE: 0 if the registry has it and its content is that of the digest; 1 if it is gone; 2 if not.
fetch() {
    status=$(ask "$1/$2" "$3") || lost "$host"
    case $status in
        200) [ "$(sha256sum < "$work/$3")" = "${2#sha256:}  -" ] || return 2 ;;
        404) return 1 ;;
        *) die "$host answers $status for $2" 26 ;;
    esac
}
# names LIST: one name a line, sorted.
names() { printf '%s\n' "$1" | tr ' ' '\n' | LC_ALL=C sort; }
# label NAME: the label io.tfbuild.NAME in $work/labels; nothing if there are several.
label() {
    values=$(grep -o "\"io\.tfbuild\.$1\":\"[^\"]*\"" "$work/labels" | LC_ALL=C sort -u) && values=${values#*:\"}
    printf '%s' "${values%\"}"
}
# described: 0 if the registry has the image $digest, and its labels are those of its row in the index; else as `fetch`.
described() {
    fetch manifests "$digest" manifest || return
    config=$(tr -d ' \t\r\n' < "$work/manifest" | sed -n 's/.*"config":{\([^}]*\)}.*/\1/p' |
        sed -n 's/.*"digest":"\(sha256:[0-9a-f]*\)".*/\1/p')
    [ -n "$config" ] || return 2
    fetch blobs "$config" config || return
    sed 's/" *: *"/":"/g' "$work/config" > "$work/labels"
    # Without that label, it would fit every host. With two different ones, nothing is equal.
    grep -q '"io\.tfbuild\.features":"' "$work/labels" || return 2
    # What the kernel calls by another name than the label.
    kernel=$(names "$(label features)" | sed 's/^sse3$/pni/; s/^lzcnt$/abm/; s/^crypto$/aes/')
    [ "$(label id) $(label release) $(label python) $(label platform)" = \
        "$id $its_release $its_python $its_platform" ] && [ "$(names "$kernel")" = "$(names "$needs")" ] || return 2
    # Labels of a base image may have these names too.
    grep -q "\"os\":\"${its_platform%/*}\"" "$work/labels" || return 2
    grep -q "\"architecture\":\"${its_platform#*/}\"" "$work/labels" || return 2
}
wrong=''
while read -r digest id its_release its_python its_platform needs; do
    code=0
    described || code=$?
    case $code in
        0) ;;
        1) echo "pull.sh: not $id: the registry does not have it; tell whoever publishes it" >&2 && continue ;;
        *) echo "pull.sh: not $id: it is not what its digest and its index say; tell whoever publishes it" >&2 &&
            wrong=$id && continue ;;
    esac
    if [ -n "${DRY_RUN:-}" ]; then
        echo "$repository@$digest $id"
        exit 0
    fi
    docker version > /dev/null 2>&1 || die "no container engine answers: start it, or set DOCKER_HOST" 20
    docker pull --quiet "$repository@$digest" < /dev/null >&2 || die "docker could not pull $repository@$digest" 26
    docker tag "$repository@$digest" "$repository:$id"
    echo "$repository:$id"
    exit 0
done < "$work/candidates"
[ -z "$wrong" ] || die "$repository has no image that can be pulled" 24
die "$repository has no image that can be pulled" 26
}
