export PATH=$PATH:/kl
cat /proc/version; grep -c . /proc/kallsyms
insmod /kl/kernlane.ko; echo insmod $?
cat /dev/kernlane
K=/kl/kernlane
time $K live apply --vmlinux /kl/vmlinux --function vfs_read,vfs_write,ksys_read --algorithm original --dry-run
time $K live apply --vmlinux /kl/vmlinux --function vfs_read,vfs_write,ksys_read --algorithm reverse; echo apply $?
$K live status
grep kernlane_1 /proc/kallsyms | head
dd if=/dev/zero of=/tmp/f bs=4k count=500 2>/dev/null; md5sum /tmp/f
$K live undo; echo undo $?
$K live status; lsmod
dmesg | grep -v 'audit' | tail -30
