#!/bin/sh
# What installing and undoing some 25 functions with some 500 calls costs. With one CPU a nanosecond
# of this guest's time is an instruction; with two, the interrupts that CPUs send each other are
# counted.
. /kl/prelude.sh
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
GROUP=dput,mntput,getname_flags,inode_permission,rw_verify_area,folio_mark_accessed,do_sys_openat2
GROUP=$GROUP,generic_permission,filename_lookup,do_filp_open
GROUP=$GROUP,path_openat,filemap_get_entry,vfs_open,step_into,path_lookupat,alloc_empty_file
GROUP=$GROUP,vfs_read,vfs_write,walk_component,lookup_fast,do_dentry_open
GROUP=$(existing $GROUP,path_init,ksys_read,ksys_write,shmem_file_read_iter)
CYCLES=10
echo "tasks: $(ls -d /proc/[0-9]*/task/* | wc -l)"
# The kernel's own threads: NAME NANOSECONDS, all CPUs.
threads() {
    for task in $(grep -L . /proc/[0-9]*/cmdline); do
        task=${task%/cmdline}
        read -r ran rest <$task/schedstat && echo "$(cat $task/comm) $ran"
    done 2>/dev/null | awk '{ sum[$1] += $2 } END { for (name in sum) print name, sum[name] }'
}
# Of each CPU: rescheduled, called, told of changed page tables.
interrupts() {
    awk '$1 ~ /^(RES|CAL|TLB):/ { for (n = 2; n < 2 + cpus; n++) printf "%s%s ", $1, $n }' \
        cpus="$(nproc)" /proc/interrupts
}
with() { # WORDS FROM COMMAND…
    echo "-- $1"
    from=$2
    shift 2
    threads >/tmp/threads
    before=$(interrupts)
    /kl/late $from /kl/kernlane live apply $V --function "$GROUP" --algorithm random --seed 1 \
        --skip-unfit "$@" >/tmp/out 2>/tmp/errors ||
        failed "applied" "$(tail -n 3 /tmp/errors)"
    echo "interrupts before: $before"
    echo "interrupts after:  $(interrupts)"
    threads | awk '
        NR == FNR { ran[$1] = $2; next }
        $2 - ran[$1] > 100000 { printf "thread %s ran for %d ns\n", $1, $2 - ran[$1] }
        ' /tmp/threads -
    grep 'functions, \|cycles\|undone\|processor time\|loading\|patching\|undoing\|woken\|ran for' \
        /tmp/out
}
with "prepared only" 0 --dry-run
# Preparing takes as long once more; what comes later is installing and undoing.
with "installed and undone $CYCLES times" \
    "$(awk '/^ran for/ { printf "%.0f", 1.05 * $3 }' /tmp/out)" --cycles $CYCLES
# What installing stands on: the kernel goes through all places that it can trace.
echo "-- the kernel's own tracer, for one function, switched on and off $CYCLES times"
mkdir -p $T
mount -t tracefs tracefs $T 2>/dev/null
echo dput >$T/set_ftrace_filter || failed "the kernel's tracer" "$?"
export T CYCLES
/kl/late 0 /bin/sh -ec '
    n=0
    while [ $n -lt $CYCLES ]; do
        echo function >$T/current_tracer; echo nop >$T/current_tracer; n=$((n + 1))
    done' ||
    failed "the kernel's tracer" "$?"
rmmod kernlane && passed "the module can go" || failed "the module can go" "$(lsmod)"
exit 0
