#!/usr/bin/busybox sh
# /kernlane/main of a trial: settles, sets up, runs and checks a workload without marks. Everything
# that the scripts print appears at once. Lines that begin with the byte 1 are for Kernlane.
traced=
say() {
    echo "<1>kernlane: $1" > /dev/kmsg
    printf '\001%s\n' "$1"
}

fail() {
    say "failed in $1 with status $2"
    exit "$2"
}

# Runs one of the workload's scripts as the recording does. A traced one prints the number of each
# line before the line's command runs. A shell without line numbers prints each line that it reads.
# Some shells take PS4 from no environment.
mark=$(printf '\001')
script() {
    if [ "$traced" = "$1" ]; then
        trace=-x
        [ -n "$(/bin/sh -c 'echo $LINENO')" ] || trace=-xv
        mark=$mark trace=$trace /bin/sh -e -c \
            'PS4="${mark}line \$LINENO: "; set "$trace"; unset mark trace; . "$0"' "/kernlane/$1"
    else
        /bin/sh -e "/kernlane/$1"
    fi
}

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
script set-up || fail set-up $?
sync
sleep 5

say "phase run"
sleep 1
: > /run/output
tail -n +1 -f /run/output &
follower=$!
script run > /run/output 2>&1
status=$?
# The follower looks once a second.
sleep 3
kill $follower
[ $status = 0 ] || fail run $status
say "phase check"
script check || fail check $?
