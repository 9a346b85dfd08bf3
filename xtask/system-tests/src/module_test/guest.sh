# Loads modules, uses them and unloads them.
exec 2>&1
set -x
for module in loop dummy veth; do insmod /kernlane/modules/$module.ko || exit 1; done
ip link add v0 type veth && ip link set v0 up && ip link set $(ls /sys/class/net | grep veth) up || exit 1
ip addr add 10.9.8.1/24 dev v0 || exit 1
ip link add d0 type dummy && ip addr add 10.9.9.1/24 dev d0 && ip link set d0 up || exit 1
ping -c 2 -q 10.9.9.1 > /dev/null || exit 1
ip link del v0 && ip link del d0 || exit 1
dd if=/dev/zero of=/tmp/disk bs=1M count=4 2> /dev/null
losetup /dev/loop0 /tmp/disk && mke2fs /dev/loop0 > /dev/null || exit 1
mkdir -p /tmp/mnt && mount -t ext4 /dev/loop0 /tmp/mnt && echo data > /tmp/mnt/file || exit 1
umount /tmp/mnt && losetup -d /dev/loop0 || exit 1
insmod /kernlane/modules/livepatch_sample.ko || exit 1
patch=/sys/kernel/livepatch/livepatch_sample
for i in $(seq 60); do [ "$(cat $patch/transition)" = 0 ] && break; sleep 1; done
grep -q 'this has been live patched' /proc/cmdline || exit 1
echo 0 > $patch/enabled
for i in $(seq 60); do [ -e $patch ] || break; sleep 1; done
rmmod livepatch_sample || exit 1
# A warning in a moved function names its place, in a part of its own if it is cold.
insmod /kernlane/modules/lkdtm.ko || exit 1
dmesg | grep -e 'WARNING: ' -e 'BUG: ' -e Oops -e 'ORC unwinder' && exit 1
mount -t debugfs none /sys/kernel/debug 2> /dev/null
echo WARNING > /sys/kernel/debug/provoke-crash/DIRECT
dmesg | grep -q 'WARNING: .* lkdtm_WARNING[.a-z0-9]*+' || exit 1
dmesg | grep -e 'RIP: 0010:lkdtm_WARNING' || exit 1
dmesg | grep -e 'direct_entry' || exit 1
for module in lkdtm loop dummy veth; do rmmod $module || exit 1; done
echo "@@ all modules work"
