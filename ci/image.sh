#!/bin/sh
# ci/image.sh ID OPTIONS: build, verify and publish one row of `invoke matrix`, unless it is published.
#
# A published image is replaced if it was made from another context than this checkout's (a fact, a template or tfbuild
# itself has changed), or if its base was updated. Then nothing is compiled: TensorFlow is taken from the published image.
# If only its indexes are missing, they are computed; if its SBOM or its provenance is, it is built again, likewise
# without compiling. A yanked image is left alone until the tag ID.yanked is deleted.
#
# TFBUILD_REGISTRY            where to publish; empty: build and verify only
# TFBUILD_TIME_LIMIT          when to stop a compile cleanly (default 5h20m)
# TFBUILD_SIGNED              the signature that published images must have (ci/state.sh)
# TFBUILD_BUILD_OPTIONS       further options of `invoke build`: --base NAME --mirror URL --need-disk 40;
#                             a compile in links does not get them
# TFBUILD_PUSH_OPTIONS        further options of `invoke push`: --sign
# TFBUILD_CACHE               a folder that the CI keeps for the next job: a compile continues from it (ci/compile.sh)
# TFBUILD_REMOTE_CACHE        a server with Bazel's remote cache
# TFBUILD_REMOTE_HEADER_FILE  the cache's credentials
# TFBUILD_SUMMARY             a file to which the report's table, or the reason why there is none, is appended
#
# Exits with tfbuild's codes: 75 if the time limit stopped the compile and the next job can continue it, 23 if it cannot,
# because nothing keeps the cache; 24 without the signature that TFBUILD_SIGNED demands: nothing is replaced then.
set -eu
id=$1 options=$2
invoke=${INVOKE:-.venv/bin/invoke}

force='' rebuild=''
if [ -n "${TFBUILD_REGISTRY:-}" ]; then
    # Where the registry fails or the image was altered, hours of compiling would end in the same error.
    state=$("$(dirname "$0")/state.sh" "$id" "$options")
    case $state in
        published*)
            # With its digest, for an attestation that failed before.
            echo "$TFBUILD_REGISTRY:$id is published: ${state#published }"
            exit 0
            ;;
        yanked) exit 0 ;;
        replace*)
            rebuild=${state#replace}
            force=--force
            ;;
        finish*)
            # Often only its indexes are missing.
            code=0
            said=$($invoke push "$id" --registry "$TFBUILD_REGISTRY" --indexes) || code=$?
            # An earlier attempt of this job pushed it: print its digest, so that it gets an attestation.
            [ "$code" != 0 ] || [ "${GITHUB_RUN_ATTEMPT:-1}" = 1 ] || echo "$said"
            # A failing registry, or a conflict with another push, is no reason to compile again.
            [ "$code" = 30 ] || exit "$code"
            echo "$TFBUILD_REGISTRY:$id is not complete (see above), and is built again" >&2
            rebuild=${state#finish}
            force=--force
            ;;
    esac
    # Check this before hours of compiling.
    $invoke push "$id" --registry "$TFBUILD_REGISTRY" --access > /dev/null
fi

set -- --time-limit "${TFBUILD_TIME_LIMIT:-5h20m}"
code=0
case " $options $rebuild" in
*" --wheel "* | *" --reuse "*) ;; # compiles nothing
*)
    [ -z "${TFBUILD_REMOTE_CACHE:-}" ] || set -- "$@" --remote-cache "$TFBUILD_REMOTE_CACHE"
    [ -z "${TFBUILD_REMOTE_HEADER_FILE:-}" ] || set -- "$@" --remote-header-file "$TFBUILD_REMOTE_HEADER_FILE"
    if [ -n "${TFBUILD_CACHE:-}" ]; then
        rm -rf "dist/$id"
        "$(dirname "$0")/compile.sh" "$id" "$options" "$@" || code=$?
        case $code in
            # Only the Dockerfile can (CUDA of a base, before 2.18; a compiler of apt.llvm.org), and nothing keeps its cache.
            12) code=0 TFBUILD_CACHE='' ;;
            *) set -- --reuse "$(echo "dist/$id"/*.whl)" ;;
        esac
    fi
    ;;
esac
# The options of a row are quoted for a shell.
[ "$code" != 0 ] || eval "$invoke build $options ${TFBUILD_BUILD_OPTIONS:-} $rebuild \"\$@\"" > /dev/null || code=$?

# A summary that fails does not affect the exit code.
[ -z "${TFBUILD_SUMMARY:-}" ] || "$(dirname "$0")/summary.sh" "$id" "$code" >> "$TFBUILD_SUMMARY" || true
if [ "$code" = 75 ] && [ -z "${TFBUILD_CACHE:-}${TFBUILD_REMOTE_CACHE:-}" ]; then
    echo "ci/image.sh: the compile does not fit one job, and nothing keeps its cache (TFBUILD_CACHE)" >&2
    exit 23
fi
[ "$code" = 0 ] || exit "$code"
[ -z "${TFBUILD_REGISTRY:-}" ] || eval "$invoke push \"tfbuild:\$id\" $force ${TFBUILD_PUSH_OPTIONS:-}"
