#!/bin/sh
# run.sh QEMU CPUINFO-COMPILER COMPILER...: compiles /program.cc by the command, and runs it on each emulated CPU that
# stdin names, with the entry point /entrypoint.sh in front and without. The cpuinfo that the entry point reads is the
# emulated CPU's. Prints, for each CPU, lines NAME FIELD VALUE.
qemu=$1 cc=$2
shift 2
cd /tmp && "$cc" -static -O1 -o cpuinfo /cpuinfo.c && "$@" -static -O3 -I/usr/include/eigen3 -o program /program.cc || exit
while read -r cpu; do
    "$qemu" -cpu "$cpu" ./cpuinfo > /tmp/emulated.cpuinfo 2> /dev/null || exit
    printf '%s cpuinfo %s\n' "$cpu" "$(tr '\n' '|' < /tmp/emulated.cpuinfo)"
    said=$(sh /entrypoint.sh "$qemu" -cpu "$cpu" ./program 2>&1)
    printf '%s guarded %s\n%s guard-said %s\n' "$cpu" "$?" "$cpu" "$(echo "$said" | tail -n 1)"
    ("$qemu" -cpu "$cpu" ./program > /dev/null 2>&1)
    printf '%s alone %s\n' "$cpu" "$?"
done
