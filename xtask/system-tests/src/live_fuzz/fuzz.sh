#!/bin/sh
# Groups of several kinds are captured, and then everything asks the module for everything at once.
# Prints the requests by kind and result.
. /kl/prelude.sh
[ -d /sys/kernel/debug/tracing ] || mount -t debugfs debugfs /sys/kernel/debug
# The host may be busy.
echo 60 >/proc/sys/kernel/watchdog_thresh
echo 280 >/proc/sys/kernel/hung_task_timeout_secs
# It warns when a processor goes, with nothing installed too (away.sh).
for server in /sys/kernel/debug/sched/fair_server/cpu*; do
    [ ! -d $server ] || echo 0 >$server/runtime
done
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
# A module that can be held. A kernel that was built for the fuzzer has none.
[ ! -e /kernlane/modules/loop.ko ] || insmod /kernlane/modules/loop.ko ||
    failed "a module to hold" "not loaded"
mkdir /tmp/groups
number=0

# The module that is loaded again keeps its name, so that the next group gets another.
keep() { # COMMAND…
    fuzz capture /tmp/groups kernlane live "$@" --vmlinux /kl/vmlinux >/tmp/out 2>&1 ||
        failed "captured: $*" "$(tail -n 3 /tmp/out)"
    grep ' functions, ' /tmp/out
    name=$(sed -n 's/^\(kernlane_[0-9]*\): .*/\1/p' /tmp/out)
    # What only counts has gone by itself. Without a name, undo would remove the modules of all
    # groups.
    [ -z "$name" ] || await $K undo "$name" || failed "undone: $*" "$($K status)"
    insmod /tmp/groups/$number.ko || failed "the module of $*" "not loaded again"
    number=$((number + 1))
}
group() { # FUNCTIONS SEED
    keep apply --function "$(existing "$1")" --algorithm random --seed "$2" --skip-unfit
}
group vfs_read,vfs_write 1
# The same function, and its callers.
group vfs_read,ksys_read,ksys_write,rw_verify_area 2
PIPES=pipe_read,pipe_write,anon_pipe_read,anon_pipe_write
group cmdline_proc_show,$PIPES,unix_stream_sendmsg,unix_stream_read_generic 3
keep count vfs_open --time 0.1
[ "$(cat /kl/fuzz-groups)" = few ] || group $FUNCTIONS 4
exec fuzz run /tmp/groups "$(cat /kl/fuzz-seed)" "$(cat /kl/fuzz-seconds)"
