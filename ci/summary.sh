#!/bin/sh
# ci/summary.sh ID CODE: prints in Markdown how a build ended: its report, or why there is none. CODE: the exit code of
# `invoke build`, which wrote the report to reports/.
set -eu
id=$1 code=$2
report=reports/$id.md
[ "$code" != 24 ] || report=reports/$id-failed.md
case $code in
    0 | 24) cat "$report" ;;
    75) printf '# %s: not finished within the time limit\n\n' "$id" ;;
    *) printf '# %s: no image, exit code %s\n\n' "$id" "$code" ;;
esac
