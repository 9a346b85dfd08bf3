# The kernel goes on changing its code, and others look into it, while copies are installed.

# BPF programs at the entry and at the exit of a function.
echo 1 >/proc/sys/kernel/bpf_stats_enabled
attach() { # entry|exit FUNCTION
    /kl/fentry $1 $2 >/tmp/bpf 2>&1 &
    bpf=$!
    await grep -q attached /tmp/bpf ||
        { failed "a BPF program at the $1 of $2" "$(cat /tmp/bpf)"; return 1; }
}
detach() { kill $bpf && wait $bpf 2>/dev/null; }
hits() { cat /proc/$bpf/fdinfo/* | sed -n 's/^run_cnt:[^0-9]*//p' | head -n 1; }
# It must be hit by 100 reads at least.
hit() { # NAME
    before=$(hits)
    dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null
    after=$(hits)
    [ $((after - before)) -ge 100 ] && passed "$1" || failed "$1" "run $before, then $after times"
}
attach entry vfs_read
refused "a function with a BPF program" "vfs_read belongs to the BPF trampoline bpf_trampoline_" \
    $K apply $V --function vfs_read
detach
await sh -c "! grep -q vfs_read $T/enabled_functions" ||
    failed "the BPF program goes" "$(cat $T/enabled_functions)"
check "and without it" apply vfs_read,ksys_read,vfs_write 11
for end in entry exit; do
    attach $end vfs_read
    await traced || failed "status says that vfs_read is traced" "$($K status)"
    hit "a BPF program at the $end of a replaced function"
    [ $end = entry ] || check "undone below a BPF program" undo
    [ $end = entry ] || hit "which is still hit"
    detach
done

# Tracepoints in copies: static keys that flip later, static calls that are aimed anew.
EVENTS="kmem/kmem_cache_alloc tcp/tcp_probe net/net_dev_queue"
TRACED=$(existing kmem_cache_alloc_noprof,kmem_cache_alloc),tcp_rcv_established,__dev_queue_xmit
mkdir $T/instances/second
switch() { # DIRECTORY 0|1
    for event in $EVENTS; do echo $2 >$1/events/$event/enable; done
    echo >$1/trace
}
# Every event is in the buffer, or none.
events() { # DIRECTORY
    for event in $EVENTS; do grep -q " ${event#*/}: " $1/trace || return 1; done
}
no_events() { ! grep -q '^[^#]' $1/trace; }
echo 1 >$T/options/stacktrace
switch $T 1
echo 0 >$T/events/kmem/kmem_cache_alloc/enable
check "functions with tracepoints" $K apply $V --function $TRACED --algorithm random --seed 12
switch $T 1
load
check "tracepoints in copies" events $T
for function in $(echo $TRACED | tr , ' '); do
    check "whose stacks name the copy of $function" grep -q "=> $function.kernlane" $T/trace
done
switch $T/instances/second 1
load
check "with a second probe each" events $T/instances/second
switch $T 0
switch $T/instances/second 1
load
check "without the first" events $T/instances/second
check "which sees nothing any more" no_events $T
switch $T/instances/second 0
load
check "nor the second" no_events $T/instances/second
echo 0 >$T/options/stacktrace
# Those that the kernel has. A real-time kernel has no choice.
MODES=$(tr -d '()' </sys/kernel/debug/sched/preempt)
[ -n "$MODES" ] || uname -v | grep -q PREEMPT_RT || failed "preemption can be switched" "nothing"
for mode in $MODES full; do
    [ -n "$MODES" ] || break
    echo $mode >/sys/kernel/debug/sched/preempt || failed "preempt=$mode" "not taken"
    check "the load with preempt=$mode" load
done
check "undone after that" undo
rmdir $T/instances/second

# Bad pointers: what faults in a copy ends as in the original.
/kl/bad-pointers >/tmp/pointers
grep -q 'getdents64 l -14' /tmp/pointers || failed "bad pointers" "$(cat /tmp/pointers)"
check "functions that access the user's memory" $K apply $V --function \
    filldir64,core_sys_select,do_sys_poll,read_zero --algorithm random --seed 13 --skip-unfit
/kl/bad-pointers >/tmp/pointers2
check "bad pointers in copies" cmp /tmp/pointers /tmp/pointers2
check "undone after bad pointers" undo

# A warning in a copy. The kernel warns once from each place.
dmesg -n 1
dmesg -c >/dev/null
warn() { insmod /kl/provoke.ko 2>/dev/null; dmesg -c >/tmp/warning; }
# FILE:LINE FUNCTION, as kernels before 6.18 print it, and since.
place() {
    sed -n -e 's/.*WARNING: CPU: .* at \([^ ]*\) \([^+]*\)+.*/\1 \2/p' \
        -e 's/.*WARNING: \([^ ]*:[0-9]*\) at \([^+]*\)+.*/\1 \2/p' /tmp/warning
}
warn
original=$(place)
check "functions that warn" apply kernel_read,__kernel_read 14
warn
case "$(place)" in
"${original% *} __kernel_read.kernlane"*) passed "a copy warns with file and line ($(place))" ;;
*) failed "a copy warns with file and line" "$original, then $(place)" ;;
esac
check "whose stack goes on" sh -c "grep 'Call Trace' -A 30 /tmp/warning | grep '^[^?]*provoke_init'"
check "undone after a warning" undo
warn
[ -z "$(place)" ] && passed "the original has warned before" ||
    failed "the original has warned before" "$(place)"
dmesg -n 7

# A task asleep in a copy: its stack, and undo has to wait.
asleep() { grep -q '^State:.S' /proc/$1/status && grep -q '_read+' /proc/$1/stack; }
functions() { sed -n 's/^\[<0>\] *\([^+]*\)+.*/\1/p'; }
mkfifo /tmp/fifo
dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo &
sleeper=$!
await asleep $sleeper
functions </proc/$sleeper/stack >/tmp/stack
kill $sleeper
wait $sleeper 2>/dev/null
reader=$(head -n 1 /tmp/stack)
check "functions that sleep" apply $reader,vfs_read,ksys_read 15
dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo &
sleeper=$!
await asleep $sleeper
functions </proc/$sleeper/stack | sed 's/ \[.*//' >/tmp/stack2
check "its stack leads through copies" grep -q "^$reader.kernlane" /tmp/stack2
sed 's/[.]kernlane.*//' /tmp/stack2 | cmp - /tmp/stack >/tmp/out 2>&1 &&
    passed "and is that of the original" ||
    failed "and is that of the original" "$(cat /tmp/stack2)"
check "/proc/kallsyms names the copies" grep -q "[tT] $reader.kernlane.\[kernlane_" /proc/kallsyms
$K undo --wait 0 >/tmp/out 2>&1
status=$?
[ $status = 1 ] && lsmod | grep -q kernlane_ && passed "undo tells who is asleep in a copy" ||
    failed "undo tells who is asleep in a copy" "status $status: $(cat /tmp/out)"
$K undo --wait 120 >/tmp/out 2>&1 &
waiting=$!
sleep 3
kill -0 $waiting && passed "and waits" || failed "and waits" "$(cat /tmp/out)"
kill $sleeper
wait $sleeper 2>/dev/null
wait $waiting && ! lsmod | grep -q kernlane_ && passed "and is done when the task has gone" ||
    failed "and is done when the task has gone" "$(cat /tmp/out)"

# A module that comes, uses copies, and goes.
FOLIO=shmem_get_folio_gfp
check "functions that a module calls" apply \
    "vfs_read,vfs_write,vfs_iter_read,vfs_iter_write,shmem_file_read_iter,filemap_read,$FOLIO" 16
check "a module comes" insmod /kernlane/modules/loop.ko
mknod /tmp/loop b 7 0 2>/dev/null
check "a file behind it" losetup /tmp/loop /tmp/data
check "which it reads right" cmp /tmp/loop /tmp/data
left_out() { # DIRECTORY REASON
    $K analyze $V --modules $1 2>&1 >/dev/null | grep -q "the module loop is left alone: $2"
}
$K analyze $V --modules /kernlane/modules >/tmp/out 2>/tmp/err
grep -q '[1-9][0-9]*  of [1-9].* in the module loop$' /tmp/out && ! grep -q 'left alone:' /tmp/err &&
    passed "the module is analyzed: $(grep 'in the module loop$' /tmp/out)" ||
    failed "the module is analyzed" "$(tail -n 2 /tmp/out /tmp/err)"
mkdir /tmp/others && cp /kl/kernlane.ko /tmp/others/loop.ko
check "with another file it is left out" left_out /tmp/others "its file is of another build"
rm -r /tmp/others
check "is let go" losetup -d /tmp/loop
check "and the module goes" rmmod loop
check "undone after that" undo

# A livepatch of a replaced function.
cat /proc/cmdline >/tmp/cmdline
check "a function that is patched later" apply cmdline_proc_show,vfs_read 17
check "whose copy does the same" cmp /proc/cmdline /tmp/cmdline
check "a livepatch comes" insmod /kl/overrule.ko
check "and wins" grep -q overruled /proc/cmdline
check "over no group" sh -c "! $K status | grep -q 'functions, '"
P=/sys/kernel/livepatch/overrule
await grep -q 0 $P/transition || failed "the livepatch is complete" "$(cat $P/transition)"
refused "a livepatched function" "cmdline_proc_show belongs to .*overrule" $K apply $V --function \
    cmdline_proc_show
echo 0 >$P/enabled
check "the livepatch goes" await test ! -d $P
check "and its module" rmmod overrule
check "without it" cmp /proc/cmdline /tmp/cmdline
check "replaced again" apply cmdline_proc_show,vfs_read 18
check "with the same to say" cmp /proc/cmdline /tmp/cmdline
check "undone at last" undo
