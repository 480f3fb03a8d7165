#!/bin/sh
# ci/image.sh ID OPTIONS: one row of `invoke matrix`: builds, verifies and publishes an image, unless it is published.
#
# One that is published, but was made from another context than this checkout's (a fact, a template or tfbuild itself
# changed since), is replaced, and so is one that was pushed by other means than `invoke push`. One that lacks nothing
# but its indexes gets these.
#
# TFBUILD_REGISTRY            where to publish; empty: build and verify only
# TFBUILD_TIME_LIMIT          a compile stops there, in good order (default 5h20m)
# TFBUILD_BUILD_OPTIONS       further options of `invoke build`: --base bootstrap --mirror URL --need-disk 40
# TFBUILD_PUSH_OPTIONS        further options of `invoke push`: --sign
# TFBUILD_REMOTE_CACHE        Bazel's remote cache; without one a compile that was stopped begins anew in the next job
# TFBUILD_REMOTE_HEADER_FILE  the cache's credentials
# TFBUILD_SUMMARY             a file to which the report's table is appended, or what came in its place
#
# Leaves with tfbuild's exit codes: 75 where the time limit stopped the compile and the next job is to go on; 24 where
# the image that is published is not the one described, which nothing here may put right by itself.
set -eu
id=$1 options=$2
invoke=${INVOKE:-.venv/bin/invoke}

force=
if [ -n "${TFBUILD_REGISTRY:-}" ]; then
    # A row's options are words without quotes or globs.
    # shellcheck disable=SC2086
    made=$($invoke dockerfile $options --json)
    context=$(printf '%s\n' "$made" | sed -n 's/^ *"digest": "\(sha256:[0-9a-f]*\)".*/\1/p')
    if [ -z "$context" ]; then
        echo "ci/image.sh: the context of $id has no digest" >&2
        exit 1
    fi
    code=0
    said=$($invoke verify "$id" --registry "$TFBUILD_REGISTRY" --context "$context" 2>&1) || code=$?
    case $code in
        0)
            echo "$TFBUILD_REGISTRY:$id is published"
            exit 0
            ;;
        25) ;; # not there yet
        29)
            echo "$TFBUILD_REGISTRY:$id is of another context and is replaced" >&2
            force=--force
            ;;
        30)
            # With its papers there, nothing but its indexes is missing.
            code=0
            $invoke push "$id" --registry "$TFBUILD_REGISTRY" --indexes || code=$?
            # Trouble with the registry, or among those who push at once, is no reason to compile again.
            [ "$code" = 30 ] || exit "$code"
            echo "$TFBUILD_REGISTRY:$id has no SBOM or no provenance and is replaced" >&2
            force=--force
            ;;
        *)
            # Hours of compiling would end in the same trouble.
            printf '%s\n' "$said" >&2
            exit "$code"
            ;;
    esac
fi

set -- --time-limit "${TFBUILD_TIME_LIMIT:-5h20m}"
[ -z "${TFBUILD_REMOTE_CACHE:-}" ] || set -- "$@" --remote-cache "$TFBUILD_REMOTE_CACHE"
[ -z "${TFBUILD_REMOTE_HEADER_FILE:-}" ] || set -- "$@" --remote-header-file "$TFBUILD_REMOTE_HEADER_FILE"
code=0
# A row's options are words without quotes or globs.
# shellcheck disable=SC2086
$invoke build $options ${TFBUILD_BUILD_OPTIONS:-} "$@" > /dev/null || code=$?

if [ -n "${TFBUILD_SUMMARY:-}" ]; then
    report=reports/$id.md
    [ "$code" != 24 ] || report=reports/$id-failed.md
    case $code in
        # The head and the table of checks; the exit code counts, with or without them.
        0 | 24) sed '/^## /,$d' "$report" || true ;;
        75) printf '# %s: not done by the time limit\n\n' "$id" ;;
        *) printf '# %s: no image, exit code %s\n\n' "$id" "$code" ;;
    esac >> "$TFBUILD_SUMMARY"
fi
[ "$code" = 0 ] || exit "$code"
# shellcheck disable=SC2086
[ -z "${TFBUILD_REGISTRY:-}" ] || $invoke push "tfbuild:$id" $force ${TFBUILD_PUSH_OPTIONS:-}
