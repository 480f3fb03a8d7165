#!/bin/sh
# ci/notes.sh VERSION: prints what CHANGELOG.md says of a version; fails if it does not name it.
set -eu
awk -v version="$1" '
    /^## / { within = index($0, "## [" version "]") == 1; found = found || within; next }
    within
    END { exit !found }
' "$(dirname "$0")/../CHANGELOG.md" || {
    echo "ci/notes.sh: CHANGELOG.md has no section [$1]" >&2
    exit 1
}
