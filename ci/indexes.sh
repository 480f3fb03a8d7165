#!/bin/sh
# ci/indexes.sh: computes the indexes of the rows on stdin (`invoke matrix --format github` or `gitlab`) once more, after
# all pushes: one that was killed just after it wrote an index can have left another one's image out.
#
# TFBUILD_REGISTRY  where the images are published
set -eu
invoke=${INVOKE:-.venv/bin/invoke}
ids=$(mktemp)
# One identifier for each release and target.
tr ',{}' '\n' | sed -n 's/.*"\(TFBUILD_ID\|id\)": *"\([^"]*\)".*/\2/p' | LC_ALL=C sort -u -t- -k1,2 > "$ids"
code=0
while read -r id; do
    own=0
    $invoke push "$id" --registry "$TFBUILD_REGISTRY" --indexes >&2 < /dev/null || own=$?
    # The image itself may have failed, or be yanked (25, 30, 32): its release's indexes are computed all the same.
    case $own in 0 | 25 | 30 | 32) ;; *) code=$own ;; esac
done < "$ids"
rm "$ids"
exit "$code"
