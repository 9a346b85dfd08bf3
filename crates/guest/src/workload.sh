#!/usr/bin/busybox sh
# /kernlane/main of a recording: settles, sets up, and runs the workload between the marks.
say() { echo "<1>kernlane: $1" > /dev/kmsg; }

fail() {
    /kernlane/mark-failed
    say "failed in $1 with status $2"
    exit "$2"
}

# Late boot work (module requests, the crypto manager's self-tests) must be over. The guest's clock
# jumps while it is idle.
say "phase settle"
sleep 5
while grep -q -x -E 'cryptomgr_test|modprobe|\(udev-worker\)' /proc/[0-9]*/comm 2>/dev/null; do
    sleep 1; done
sleep 5

say "phase set-up"
while read -r module; do
    insmod "$module" || fail "loading $module" 1
done < /kernlane/modules/order
mkdir -p /guest
cd /guest || fail set-up 1
/bin/sh -e /kernlane/set-up || fail set-up $?
sync
sleep 5

say "phase counting"
sleep 1
# Where a checkpoint is made; else nothing.
/kernlane/pause
/kernlane/mark-start
/bin/sh -e /kernlane/run > /run/output 2>&1
status=$?
/kernlane/mark-end
say "phase check"
cat /run/output
[ $status = 0 ] || fail run $status
/bin/sh -e /kernlane/check || fail check $?
