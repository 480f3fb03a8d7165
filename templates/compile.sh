#!/bin/sh
# compile.sh NAME TARGET COLLECT...: configures /src, builds TARGET with Bazel, and runs COLLECT, which puts the wheel
# into /wheel. Without COLLECT, Bazel only downloads what TARGET needs, which stays in /opt/fetched and in its external
# folder; a later compile takes it from there. With LIBTENSORFLOW set, TensorFlow's C library comes beside the wheel.
# /mnt/cache survives a failed build, and has a record of the compile's runs by NAME. /mnt/machine has this machine's
# Bazel flags (a secret, since secrets are not part of a cache key), and /mnt/deadline the Unix time at which to stop.
set -eu
name=$1 target=$2
shift 2
top=${TFBUILD_ROOT:-}
# shellcheck source=/dev/null
. "$top/mnt/network.sh"
cd "$top/src"

"$PYTHON_BIN_PATH" configure.py < /dev/null || die "this tree's configure.py failed" # it must not prompt

builder=$(cat "$top/opt/tfbuild/builder")
cache=$top/mnt/cache/$builder
[ "$#" != 0 ] || cache=$top/opt/fetched
mkdir -p "$top/mnt/cache/runs" "$cache/disk" "$cache/repository" "$cache/sittings"
repository=$cache/repository
[ ! -d "$top/opt/fetched" ] || repository=$top/opt/fetched/repository
sittings=$cache/sittings/$name.jsonl
# Bazel's profile and its whole log, for the stage `kept`, however this run ends.
run=$(sha256sum "$top/mnt/bazelrc")
kept=$top/mnt/cache/runs/${run%% *}
rm -rf "$kept"
mkdir -p "$kept"
for file in "$top/mnt/ca.bazelrc" "$top/mnt/bazelrc" "$top/mnt/machine"; do
    [ ! -f "$file" ] || sed "s/@BUILDER@/$builder/" "$file"
done > "$top/mnt/all.bazelrc"
cat >> "$top/mnt/all.bazelrc" << END
build --disk_cache=$cache/disk
build --repository_cache=$repository
build --curses=no --color=no --show_progress_rate_limit=2
build --profile=$kept/profile.json
END

# Read after the tree's .bazelrc, so the plan has the last word.
rc="--bazelrc=$top/mnt/all.bazelrc" root="--output_user_root=$top/var/tmp/bazel"
if [ -n "$mirror" ]; then
    # Bazel 8.2 renamed it to --downloader_config and still takes this name.
    echo "build --experimental_downloader_config=$top/mnt/mirror.downloads" >> "$top/mnt/all.bazelrc"
    # For repositories that a tree clones: Bazel's rules reset every other setting of git.
    printf '[url "%s/github.com/"]\n\tinsteadOf = https://github.com/\n' "$mirror" >> "$top/etc/gitconfig"
fi
if [ "$#" = 0 ]; then
    bazel "$rc" "$root" build --nobuild "$target"
    bazel "$rc" "$root" shutdown
    # They list the environment, with the password of a proxy, and would be in the bundle.
    rm -f "$top"/var/tmp/bazel/*/*.log*
    exit
fi

# The secret `remote` has Bazel's lines for a shared cache or executor, with credentials. Bazel prints all its options
# if one of them is wrong or the tree asks for it, so its output is filtered.
hide='cat' guard=''
if [ -s "$top/mnt/remote" ]; then
    python3 "$top/mnt/remote.py" reach "$top/mnt/remote"
    cp "$top/mnt/all.bazelrc" "$top/mnt/alone.bazelrc"
    cat "$top/mnt/remote" >> "$top/mnt/all.bazelrc"
    hide="python3 $top/mnt/remote.py hide $top/mnt/remote" guard="python3 $top/mnt/remote.py guard $top/mnt/remote"
fi

uptime() { cut -d. -f1 /proc/uptime; } # not the wall clock, which may be set meanwhile
end=0
[ ! -s "$top/mnt/deadline" ] || end=$(($(uptime) + $(cat "$top/mnt/deadline") - $(date +%s)))

# bazel_build WORD...: sets `code` and `seconds`, its time limit (0: none).
bazel_build() {
    seconds=0
    if [ -s "$top/mnt/deadline" ]; then
        seconds=$((end - $(uptime)))
        [ "$seconds" -gt 0 ] || seconds=1
    fi
    # At the first SIGINT Bazel stops cleanly: what is compiled is in the cache.
    echo 0 > "$top/mnt/code"
    {
        $guard timeout --foreground --signal=INT --kill-after=60 "$seconds" bazel "$rc" "$root" build "$@" 2>&1 ||
            echo $? > "$top/mnt/code"
    } | {
        trap '' INT
        $hide | python3 "$top/mnt/relay.py" "$kept/bazel.log"
    }
    code=$(cat "$top/mnt/code")
}
late() {
    [ "$seconds" != 0 ] && [ "$(uptime)" -ge "$end" ]
}
executes() {
    grep '^build --remote_executor=' "$top/mnt/all.bazelrc" > /dev/null
}
# Whether the executor runs actions, in this builder's image. The time in the command keeps any cache from answering.
probe() {
    mkdir -p "$top/src/tfbuild_probe"
    cat > "$top/src/tfbuild_probe/BUILD" << END
genrule(
    name = "tfbuild_probe",
    outs = ["seen"],
    cmd = "grep -x $builder /opt/tfbuild/builder > \$@ || { echo tfbuild: not the builder, $(date +%s) >&2; exit 1; }",
)
END
    bazel_build --noremote_local_fallback //tfbuild_probe
    if [ "$code" != 0 ] && ! late && [ ! -e "$top/mnt/remote.lost" ]; then
        if grep '^tfbuild: not the builder' "$kept/bazel.log" > /dev/null; then
            why="its worker runs in another image than this builder's"
        else
            why='it runs no action'
        fi
        echo "tfbuild: the remote executor is of no use: $why"
    fi
}
echo "$target" > "$top/mnt/targets"
# Trees have these parts of the C library's archive, also where they have no target for the whole.
package=tensorflow/tools/lib_package parts='clib cheaders eager_cheaders clicenses'
if [ -n "${LIBTENSORFLOW:-}" ]; then
    # Official wheels have these rules from 2.19 on. Bazel takes the last setting; any text, even False, means yes.
    case $(cat .bazelrc "$top/mnt/all.bazelrc" 2> /dev/null | sed -n 's/.*=USE_PYWRAP_RULES=//p' | tail -n 1) in
        ?*) die 'this wheel is compiled by pywrap rules, which make no C library; releases before 2.19 have none' ;;
    esac
    for part in $parts; do
        echo "//$package:$part"
    done >> "$top/mnt/targets"
fi
# Analysis first: a wrong Bazel, config, variable or target fails within minutes, before anything is compiled.
compile() {
    bazel_build --nobuild --profile="$top/mnt/analysis.json" --target_pattern_file="$top/mnt/targets"
    if [ "$code" != 0 ]; then
        late || echo "tfbuild: Bazel cannot analyse this build; nothing was compiled"
        return 0
    fi
    ! executes || probe
    [ "$code" != 0 ] || bazel_build --target_pattern_file="$top/mnt/targets"
}
python3 "$top/mnt/sitting.py" begin "$sittings"
python3 "$top/mnt/sitting.py" watch "$sittings" "$kept/profile.json" "$top/wheel" "$cache" "$top/var/tmp/bazel" &
watch=$!
trap 'kill "$watch" 2> /dev/null || true' EXIT
# recorded WHY
recorded() {
    kill "$watch" || true
    wait "$watch" || true
    # A record that cannot be written does not fail the compile.
    python3 "$top/mnt/sitting.py" end "$sittings" "$kept/bazel.log" "$kept/profile.json" "$1" &&
        cp "$sittings" "$kept/sittings.jsonl" || echo "tfbuild: note: there is no record of what this run cost"
}
# Without a container, Ctrl-C reaches the whole process group: Bazel stops cleanly, and then this script.
trap 'recorded interrupted; exit 130' INT
compile
# Some versions of Bazel fail if a remote cache dies midway (0.26.1 with code 37), and the guard interrupts any whose
# cache goes silent. What is compiled is in the local cache.
lost() {
    cat "$top/mnt/remote.lost" 2> /dev/null || ! python3 "$top/mnt/remote.py" reach "$top/mnt/remote"
}
if [ "$code" != 0 ] && [ -s "$top/mnt/remote" ] && ! late && lost &&
    { ! executes || grep '^build --remote_local_fallback' "$top/mnt/all.bazelrc" > /dev/null; }; then
    echo "tfbuild: going on without it"
    guard=''
    mv "$top/mnt/alone.bazelrc" "$top/mnt/all.bazelrc"
    compile
fi
# Bazel keeps files whose digest is wrong: it then compiles them again each time, and from 7 on may fail.
if grep '[Ee]xpected \(hash\|digest\).* not match' "$kept/bazel.log" > /dev/null; then
    echo "tfbuild: note: removing damaged files from the compile cache"
    find "$cache/disk" -type f -regex '.*/[0-9a-f]*' ! -path "$cache/disk/ac/*" -exec sha256sum {} + |
        while read -r digest file; do
            [ "$digest" = "${file##*/}" ] || rm -f "$file"
        done
    if [ "$code" != 0 ] && ! late; then
        compile
    fi
fi
# Packs the parts of the C library into one archive, the same for the same parts.
library() {
    folder=$top/var/tmp/bazel/library
    rm -rf "$folder"
    mkdir "$folder" || return 1
    for part in $parts; do
        tar --extract --file="bazel-bin/$package/$part.tar" --directory="$folder" || return 1
    done
    tar --create --gzip --file="$top/wheel/libtensorflow.tar.gz" --directory="$folder" --sort=name --mtime=@315532800 \
        --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX .
}
pack() {
    mkdir -p "$top/wheel"
    [ -z "${LIBTENSORFLOW:-}" ] || library || return 1
    "$@" || return 1
    if [ -n "${BOLT:-}" ]; then
        bazel "$rc" "$root" shutdown # it holds gigabytes, which BOLT needs
        "$PYTHON_BIN_PATH" "$top/mnt/bolt.py" "$top"/wheel/*.whl "$top/mnt/constraints.txt" "${BOLT#bolt-}" || return 1
    fi
    python3 "$top/mnt/repack.py" "$top"/wheel/*.whl && chmod 644 "$top"/wheel/*.whl
}
why=failed
if [ "$code" != 0 ]; then
    [ "$code" != 8 ] || why=interrupted # Bazel's code for that
    ! late || why='time limit'
elif pack "$@"; then
    why="done"
else
    code=1
    echo "tfbuild: all is compiled, but the wheel could not be packed"
fi
recorded "$why"
[ ! -f "$kept/profile.json" ] || gzip --force "$kept/profile.json" || true # a damaged profile fails nothing
if [ "$code" != 0 ]; then
    [ "$why" != 'time limit' ] || echo "tfbuild: the time limit is reached; what is compiled so far is kept"
    exit "$code"
fi

sh "$top/mnt/system.sh" list "$top"/wheel/*.whl > "$top/wheel/packages.txt"
version=$(bazel "$rc" "$root" version | sed -n 's/^Build label: //p')
[ -n "$version" ] || version=$(bazel --version | sed -n 's/^bazel \([0-9.]*\).*/\1/p') # Debian's prints no label
{
    echo "builder=sha256:$(cat "$top/opt/tfbuild/builder")"
    cat "$top/opt/tfbuild/source"
    echo "compiler=$("$CC" --version | head -n 1)"
    echo "bazel=$version"
    sha256sum "$top"/wheel/*.whl | sed "s|\(.*\)  $top/wheel/\(.*\)|wheel=\1 \2|"
} > "$top/wheel/build.txt"
bazel "$rc" "$root" shutdown
# Gigabytes that no layer needs. Bazel makes folders read-only, which would stop everybody but root.
find "$top/var/tmp/bazel" -type d ! -perm -200 -exec chmod u+w {} +
rm -rf "$top/var/tmp/bazel"
