#!/bin/sh
# ci/state.sh ID OPTIONS: prints what is to be done about a row of `invoke matrix` in the registry TFBUILD_REGISTRY:
#
#   build              it is not published yet
#   replace [OPTIONS]  it is to be built again, with these further options of `invoke build`, and pushed with --force
#   finish [OPTIONS]   its SBOM or its provenance is missing, which these options make again, or its indexes are old
#   published REF      nothing: it is there as a whole, from this checkout's context, on the base image of today
#   yanked             nothing: no push of it is accepted until the tag ID.yanked is deleted
#
# The reason goes to stderr. Exits with tfbuild's codes: 24 without the signature that TFBUILD_SIGNED demands.
#
# TFBUILD_BUILD_OPTIONS  further options of `invoke build`; those that shape the context count, such as --base NAME
# TFBUILD_SIGNED         options of `cosign verify`: a published image without such a signature is an error (24), so that
#                        no rebuild takes over what somebody else pushed
set -eu
id=$1 options=$2
invoke=${INVOKE:-.venv/bin/invoke}
# The options of a row are quoted for a shell.
plan=$(eval "$invoke build $options ${TFBUILD_BUILD_OPTIONS:-} --dry-run --json")
# field NAME: this text of the JSON on stdin.
field() { sed -n "s/^ *\"$1\": \"\([^\"]*\)\".*/\1/p" | head -n 1; }
named=$(printf '%s\n' "$plan" | field id)
if [ "$named" != "$id" ]; then
    echo "ci/state.sh: TFBUILD_BUILD_OPTIONS, or tfbuild.toml, turns $id into $named: list it as a [[build]]" >&2
    exit 2
fi
context=$(printf '%s\n' "$plan" | field context_digest)
if [ -z "$context" ]; then
    echo "ci/state.sh: the context of $id has no digest" >&2
    exit 1
fi
state() {
    code=0
    state=$($invoke verify "$id" --registry "$TFBUILD_REGISTRY" --context "$context" \
        ${TFBUILD_SIGNED:+"--signed=$TFBUILD_SIGNED"} --json) || code=$?
}
state
# Quay makes a repository when a push begins, and refuses to read it before.
if [ "$code" = 26 ] && $invoke push "$id" --registry "$TFBUILD_REGISTRY" --access > /dev/null; then
    state
fi
case $code in
    0) echo "published $(printf '%s\n' "$state" | field reference)" ;;
    32) echo yanked ;;
    25) echo build ;;
    30) echo "finish $(printf '%s\n' "$state" | field rebuild_options)" ;;
    33) echo "replace $(printf '%s\n' "$state" | field rebuild_options)" ;;
    *) exit "$code" ;;
esac
