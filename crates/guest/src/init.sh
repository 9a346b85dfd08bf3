#!/usr/bin/busybox sh
# The guest's first process: prepares the system, runs /kernlane/main, says on the kernel's log how
# that ended, stops the machine. The console is the first serial line; what /kernlane/main prints
# goes to the second.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/kernlane/bin HOME=/root \
    LC_ALL=C PWD=/
/usr/bin/busybox mkdir -p /kernlane/bin
/usr/bin/busybox --install -s /kernlane/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts 2>/dev/null
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mkdir -p /run/lock
hostname guest
ip link set lo up 2>/dev/null

# The serial line must hand on bytes as they are.
stty -F /dev/ttyS1 raw
echo "<1>kernlane: booted" > /dev/kmsg
setsid /kernlane/main < /dev/null > /dev/ttyS1 2>&1
status=$?
# The line's buffer must be empty before the machine stops.
stty -F /dev/ttyS1 cooked
echo "<1>kernlane: exit $status" > /dev/kmsg
sync
reboot -f
