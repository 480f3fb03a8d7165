#!/bin/sh
# compile.sh COMPILER...: compiles /probe.c with each line of flags on stdin, and prints a line of what came of it, its
# fields between tabs: the exit code; the macros in the object; the lines of /instructions.s that are refused, where
# there is that file; what was said first.
cd "$(mktemp -d)" || exit
while read -r flags; do
    # shellcheck disable=SC2086 # words
    "$@" -O3 -Werror $flags -c -o probe.o /probe.c 2> errors
    code=$?
    macros='' refused=''
    if [ "$code" = 0 ]; then
        macros=$(grep -a -o 'macros:[^;]*;' probe.o)
        if [ -f /instructions.s ]; then
            # shellcheck disable=SC2086
            "$@" $flags -c -o instructions.o /instructions.s 2> refused
            refused=$(sed -n 's/.*instructions\.s:\([0-9]*\):.*[Ee]rror:.*/\1/p' refused | tr '\n' ' ')
        fi
    fi
    printf '%s\t%s\t%s\t%s\n' "$code" "$macros" "$refused" "$(head -n 1 errors)"
done
