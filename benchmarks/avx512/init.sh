#!/bin/busybox sh
# The first process of the emulated machine: starts the image from its disk, and says on the serial line how it ended.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
tries=0
while [ ! -b /dev/sda ] && [ $tries -lt 50 ]; do
    sleep 0.2
    tries=$((tries + 1))
done
mount -t ext4 -o ro /dev/sda /image
mount -t proc proc /image/proc
mount -t tmpfs tmp /image/tmp
mount -t devtmpfs dev /image/dev
say() { echo "avx512: $*" >/dev/ttyS0; }
# Each step's output goes to a file first: the kernel's messages come between the lines of a serial line.
step() {
    name=$1
    shift
    # shellcheck source=/dev/null
    . /environment
    HOME=/tmp chroot /image "$@" >/image/tmp/out 2>/image/tmp/err
    say "$name $? $(base64 -w0 /image/tmp/out) $(tail -c 4000 /image/tmp/err | base64 -w0)"
}
say "booted"
step cpuinfo cat /proc/cpuinfo
step entry_point /usr/local/bin/tfbuild-entrypoint true
step without_it /opt/tensorflow/bin/python -c "$(cat /program.py)"
step smoke /usr/local/bin/tfbuild-entrypoint tfbuild-smoke --json
say ended
poweroff -f
