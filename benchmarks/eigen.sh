#!/bin/sh
# Answers each line of stdin with one: "compile NAME COMMAND..." builds /eigen.cc, "run NAME" runs what was built, pinned
# to one core. The core is the last that this process may use: the first takes most of a machine's interrupts.
core=$(taskset -cp $$ | sed 's/.*[-, ]//')
cd /tmp || exit
while read -r verb name words; do
    if [ "$verb" = compile ]; then
        # shellcheck disable=SC2086 # words
        $words -o "$name" /eigen.cc && echo compiled
    else
        taskset -c "$core" "./$name"
    fi || exit
done
