#!/bin/sh
# A group is kept and made again as at boot; the guard takes it back after a warning in a copy; what
# is damaged, unknown or unproven leaves the kernel as it is. Prints a line a test.
. /kl/prelude.sh
. /kl/kept.sh
refused "nothing is installed that could be kept" "nothing is installed" $K keep $STATE
leaves "nothing is kept" 1 "nothing is kept" restore
load
(sleep 1; load) >/dev/null 2>&1
before=$(text)
make_kept
places >/tmp/before
[ "$(wc -l </tmp/before)" -ge 10 ] && passed "$(wc -l </tmp/before) functions" ||
    failed "functions" "$(cat /tmp/before)"
check "it is listed" $K keep $STATE --list
cat /tmp/out
$K keep $STATE --list --json >/tmp/out && grep -q '"__kernel_read"' /tmp/out &&
    passed "also as JSON" || failed "also as JSON" "$(head -n 5 /tmp/out)"
check "it is undone" undo
check "the load afterwards" load
check_text "undone"
refused "a group that is gone cannot be kept" "nothing is installed" $K keep $STATE

# As at boot.
check "a dry run" restore --dry-run
tail -n 1 /tmp/out
none_installed && passed "installs nothing" || failed "installs nothing" "$(cat /dev/kernlane)"
check "the group is made again" restore
tail -n 1 /tmp/out
places >/tmp/after
cmp -s /tmp/before /tmp/after && passed "every copy lies where it lay" ||
    failed "every copy lies where it lay" "$(diff /tmp/before /tmp/after | head -n 4)"
check "the load in it" load
check "and again: it is installed already" restore
grep -q 'installed already' /tmp/out || failed "it says so" "$(cat /tmp/out)"
check "it can be kept again" $K keep $STATE
check "undone" undo
check_text "made again and undone"

# What is not as it should be.
leaves "without a vmlinux" 1 "left as it is: no vmlinux" $K restore $STATE
cp /kl/vmlinux /tmp/other && printf '\1\2\3\4' |
    dd of=/tmp/other bs=1 seek="$(cat /kl/build-id-at)" conv=notrunc 2>/dev/null
leaves "the vmlinux of another build" 2 "build id" $K restore --vmlinux /tmp/other $STATE
head -c 3000000 /kl/vmlinux >/tmp/other
leaves "a vmlinux that is cut off" 2 "/tmp/other" $K restore --vmlinux /tmp/other $STATE
rm -f /tmp/other
cp $KEPT/kept.json /tmp/kept.json
size=$(wc -c </tmp/kept.json)
head -c $((size / 2)) /tmp/kept.json >$KEPT/kept.json
leaves "a file that is cut off" 2 "cut off" restore
sed 's/"seed":0/"seed":1/' /tmp/kept.json >$KEPT/kept.json
leaves "a file that was changed" 2 "checksum" restore
sed 's/"kernlane_kept":1/"kernlane_kept":9/' /tmp/kept.json >$KEPT/kept.json
leaves "a file of another format" 2 "format 9" restore
cp /tmp/kept.json $KEPT/kept.json
leaves "without rights" 2 "root\|ermission" su nobody -c \
    "/kl/kernlane live restore --vmlinux /kl/vmlinux --state $KEPT"
now=$(date +%s)
date -s @$((now + 400 * 86400)) >/dev/null
leaves "a profile of last year" 1 "400 days ago" restore
date -s @$now >/dev/null
# A full disk.
mkdir -p /tmp/full && mount -t tmpfs -o size=$((size + 65536)) none /tmp/full
mkdir /tmp/full/keep && cp /tmp/kept.json /tmp/full/keep/
dd if=/dev/zero of=/tmp/full/rest bs=4096 2>/dev/null
leaves "a full disk" 2 "No space left" $K restore $V --state /tmp/full/keep --guard
cmp -s /tmp/kept.json /tmp/full/keep/kept.json && passed "and the kept file is whole" ||
    failed "and the kept file is whole" "$(ls -l /tmp/full/keep)"
umount /tmp/full

# A boot that crashed.
echo another-boot >$KEPT/unproven
leaves "a boot that did not end in order" 1 "ended without order" restore
leaves "nor at later boots" 1 "ended without order" restore
check "until somebody says so" $K keep $STATE --retry
# What is said and what is written have whole seconds.
sleep 2
mkdir -p /var/crash/1 && printf '%s\n' '[  1.5] BUG: kernel NULL pointer dereference' \
    '[  1.6] RIP: 0010:vfs_read.kernlane+0x10/0x200 [kernlane_1]' >/var/crash/1/dmesg.1
leaves "a crash that kdump saw" 1 "crashed in installed code" restore
$K keep $STATE --retry >/dev/null
check "which is forgiven as well" restore --dry-run

# The guard.
guarded() { # [OPTION]…
    # Not by the function above: what is killed must be the program.
    $K restore $V $STATE --guard "$@" >/tmp/guard 2>&1 &
    guard=$!
    await installed && usleep 500000
}
check "the group is guarded" guarded --proven-after 0.05
[ -e $KEPT/unproven ] && passed "at first it is unproven" ||
    failed "at first it is unproven" "$(ls $KEPT)"
check "the load in the guarded group" load
check "then it is proven" await test ! -e $KEPT/unproven
# The console, from which the test is judged, does not show what is provoked from here on.
dmesg -n 1
# Not about installed code.
echo '<4>WARNING: CPU: 0 PID: 1 at fs/a.c:1 a_function+0x1/0x2' >/dev/kmsg
echo '<4>---[ end trace 0000000000000000 ]---' >/dev/kmsg
sleep 1
installed && passed "other warnings leave it" || failed "other warnings leave it" "$(cat /tmp/guard)"
kill -TERM $guard
ended $guard
[ $? = 0 ] && none_installed && passed "stopped, it takes everything back" ||
    failed "stopped, it takes everything back" "$(cat /tmp/guard)"
[ ! -e $KEPT/unproven ] && passed "which is in order" || failed "which is in order" "$(ls $KEPT)"
check_text "guarded and stopped"
# A service that was killed is started again in the same boot.
check "guarded again" guarded
kill -KILL $guard
wait $guard 2>/dev/null
[ -e $KEPT/unproven ] && passed "killed, the boot is unproven" || failed "killed" "$(ls $KEPT)"
check "a guard of what is installed" guarded --proven-after 100
# A real warning in a copy.
check "the copy that will warn is installed" sh -c "$K status | grep ' __kernel_read'"
insmod /kl/provoke.ko 2>/dev/null
check "a warning in a copy: it is taken back" await none_installed
ended $guard
status=$?
[ $status = 2 ] && grep -q 'complained about installed code: WARNING.* __kernel_read.kernlane+' \
    /tmp/guard && passed "the guard says why" || failed "the guard says why" "$status: $(cat /tmp/guard)"
tail -n 1 /tmp/guard
check_text "taken back after a warning"
leaves "and later boots start without it" 1 "complained about installed code" restore
$K keep $STATE --list | grep 'not installed any more' || failed "the list says so" "nothing"
check "the load afterwards" load
$K keep $STATE --retry >/dev/null
# A lockup, by what the kernel prints about it.
check "guarded once more" guarded
echo '<1>watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [dd:77]' >/dev/kmsg
echo '<4>RIP: 0010:vfs_read.kernlane+0x12/0x44 [kernlane_1]' >/dev/kmsg
check "a lockup in a copy: it is taken back" await none_installed
ended $guard
check_text "taken back after a lockup"
dmesg -n 7
check "dropped" $K keep $STATE --drop
leaves "what was dropped" 1 "nothing is kept" restore
lsmod | grep -q kernlane_ && failed "no module is left" "$(lsmod | grep kernlane_)" ||
    passed "no module is left"
rmmod kernlane && passed "the module can go" || failed "the module can go" "$(lsmod)"
exit 0
