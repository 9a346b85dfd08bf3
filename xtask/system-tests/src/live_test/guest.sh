#!/bin/sh
# Replaces functions of the running kernel and looks at what the rest of the kernel makes of it.
# Prints a line a test.
. /kl/prelude.sh
serve

# Bad input, before the module is there and after.
refused "without the module" "load Kernlane's module" $K status
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
check "the load itself" load
refused "no vmlinux" "give --vmlinux" $K analyze
printf 'text' >/kl/text
refused "a text file" "not a readable ELF file" $K apply --vmlinux /kl/text --function vfs_read
cp /kl/vmlinux /tmp/other && printf '\1\2\3\4' |
    dd of=/tmp/other bs=1 seek="$(cat /kl/build-id-at)" conv=notrunc 2>/dev/null
refused "another build id" "build id" $K apply --vmlinux /tmp/other --function vfs_read
rm -f /tmp/other
refused "an unknown function" "no function no_such_thing" $K apply $V --function no_such_thing
refused "the scheduler" "cannot be replaced" $K apply $V --function __schedule
refused "what pokes text" "cannot be replaced" $K apply $V --function $POKING
refused "entry code" "cannot be replaced" $K apply $V --function entry_SYSCALL_64
refused "an unknown group" "no group kernlane_77" $K undo kernlane_77
refused "without root" "root" su nobody -c "/kl/kernlane live apply $V --function vfs_read"

# Installing and undoing under load.
for cycle in $(seq 1 "${CYCLES:-3}"); do
    apply $FUNCTIONS $cycle >/tmp/out 2>&1 ||
        failed "installed, cycle $cycle" "$(tail -n 3 /tmp/out)"
    [ $cycle = 1 ] && grep -v '^left out' /tmp/out
    check "load in the copies, cycle $cycle" load
    [ $cycle = 1 ] && $K status >/tmp/out && head -n 1 /tmp/out
    (load >/tmp/out2 2>&1 || echo "FAILED: load during undo, cycle $cycle") &
    $K undo >/tmp/out 2>&1
    wait $!
    for again in 1 2 3 4 5; do lsmod | grep -q kernlane_ ||
        break; sleep 1; $K undo >/dev/null 2>&1; done
    lsmod | grep -q kernlane_ && failed "undone, cycle $cycle" "$(lsmod | grep kernlane_)"
    check "load after undo, cycle $cycle" load
done

. /kl/endure.sh
endure 6 2 3

# The rest of the kernel.
T=/sys/kernel/tracing
apply vfs_read,ksys_read,vfs_write 3 >/dev/null
traced() { $K status | grep -q 'vfs_read  traced'; }
straight() { $K status | grep -q 'vfs_read$'; }
echo vfs_read >$T/set_ftrace_filter && echo function >$T/current_tracer
check "status says that it is traced" await traced
cat /tmp/data >/dev/null
check "the function tracer sees calls that went to a copy" grep -q 'vfs_read' $T/trace
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "and calls go straight again" await straight
echo 'p:kl vfs_read' >$T/kprobe_events && echo 1 >$T/events/kprobes/kl/enable
await traced
echo >$T/trace
cat /tmp/data >/dev/null
check "a kprobe at the entry is hit" grep -q 'kl: (vfs_read' $T/trace
echo 0 >$T/events/kprobes/kl/enable && echo >$T/kprobe_events
$K undo >/dev/null
check "the load after tracing" load
# Its copy would jump to that of ksys_read, past the tracer's site.
apply __x64_sys_read,ksys_read 3 >/dev/null
echo ksys_read >$T/set_ftrace_filter && echo function >$T/current_tracer
gave_way() { $K status | grep -q '__x64_sys_read .*gave way'; }
check "a copy that jumps to a traced function gives way" await gave_way
echo >$T/trace
dd if=/dev/zero of=/dev/null bs=1 count=3000 2>/dev/null
echo 0 >$T/tracing_on
hits=$(grep -c ' ksys_read <-' $T/trace)
echo 1 >$T/tracing_on
[ "$hits" -ge 3000 ] && passed "the tracer sees all of 3000 calls" ||
    failed "the tracer sees all of 3000 calls" "$hits"
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
$K undo >/dev/null
check "the load after a copy gave way" load

echo 'p:kl vfs_read' >$T/kprobe_events && echo 1 >$T/events/kprobes/kl/enable
refused "a function with a kprobe" "a kprobe" $K apply $V --function vfs_read
echo 0 >$T/events/kprobes/kl/enable && echo >$T/kprobe_events

. /kl/neighbours.sh
. /kl/away.sh

# Counting.
(sleep 2; while :; do dd if=/tmp/data of=/tmp/busy bs=3000 2>/dev/null; done) &
busy=$!
$K count vfs_read $V --time 4 >/tmp/out 2>&1 || failed "blocks are counted" "$(tail -n 1 /tmp/out)"
most=$(grep -v counting /tmp/out | awk '$2 + 0 > most { most = $2 + 0 } END { print most + 0 }')
[ "$most" -gt 50 ] && passed "blocks are counted (vfs_read ran $most times)" ||
    failed "blocks are counted" "$most"
$K watch $V --root vfs_read --time 1 --depth 1 -o /tmp/live.klp >/tmp/out 2>&1 &&
    tail -n 1 /tmp/out || failed "watched" "$(tail -n 1 /tmp/out)"
check "a counted group is laid out and installed" $K apply $V --profile /tmp/live.klp --root \
    vfs_read
check "load in the optimized copies" load
$K undo >/dev/null || { sleep 1; $K undo >/dev/null; }

# Measuring, and everything as one command. The load's dd reads 1 228 800 bytes by 3000.
reads() { $K time vfs_read $V --time 3 --json | sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p"; }
entered=$(reads entered)
[ "$entered" -gt 50 ] && passed "vfs_read is measured ($entered calls)" ||
    failed "vfs_read is measured" "$entered"
apply vfs_read,ksys_read 4 >/dev/null
entered=$(reads entered)
[ "$entered" -gt 50 ] && passed "and so is its copy" || failed "and so is its copy" "$entered"
$K undo >/dev/null || { sleep 1; $K undo >/dev/null; }
refused "what the tracer has no site in" "no site" $K time entry_SYSCALL_64 $V
$K time vfs_read $V --time 60 >/dev/null 2>&1 &
await grep -q '^vfs_read ' $T/enabled_functions
refused "measured twice at once" "another process is measuring" $K time vfs_read $V --time 1
kill -9 $!
wait $! 2>/dev/null
check "measured again after that was killed" $K time vfs_read $V --time 1
before=$(md5sum </proc/kallsyms)
$K auto $V --sample 2 --time 0.5 --depth 1 --share 5 --dry-run </dev/null >/tmp/out 2>&1
grep -q '^jump .* in .*ksys_read' /tmp/out && passed "auto finds ksys_read" ||
    failed "auto finds ksys_read" "$(tail -n 5 /tmp/out)"
[ "$(md5sum </proc/kallsyms)" = "$before" ] && passed "a dry run leaves nothing" ||
    failed "a dry run leaves nothing" "$(lsmod)"
$K auto $V --sample 2 --time 0.5 --depth 2 --share 5 </dev/null >/tmp/out 2>&1 ||
    failed "auto" "$(tail -n 3 /tmp/out)"
grep 'functions on\|lines (\|calls in the kernel\|_read$\|once more in' /tmp/out
grep -q 'entered by the roots only: [1-9][0-9]* functions of .*, [1-9][0-9]* hot blocks' \
    /tmp/out && passed "auto counts once more in the optimized code" ||
    failed "auto counts once more in the optimized code" "$(tail -n 5 /tmp/out)"
check "auto leaves its group installed" sh -c "$K status | grep -q kernlane_"
check "load in what auto installed" load
$K undo >/dev/null || { sleep 1; $K undo >/dev/null; }
kill $busy
wait $busy 2>/dev/null

# Killed anywhere: original or installed, and undo works.
now() { cut -d ' ' -f 1 /proc/uptime | tr -d .; }
begin=$(now)
apply vfs_read,ksys_read,vfs_write 5 >/dev/null
took=$(($(now) - begin))
$K undo >/dev/null 2>&1
for part in 3 6 8 9 10 11; do
    apply vfs_read,ksys_read,vfs_write 5 >/dev/null 2>&1 &
    usleep $((took * part * 1000))
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    state=$($K status | grep -c 'functions, ')
    calls=$($K status | sed -n 's/.* \([0-9]*\) of \([0-9]*\) calls.*/\1 \2/p')
    [ "${calls% *}" = "${calls#* }" ] || failed "killed at $part tenths" "half installed: $calls"
    $K undo >/dev/null 2>&1 || { sleep 1; $K undo; } >/dev/null 2>&1
    check "killed at $part tenths (installed groups: $state)" load
done
lsmod | grep -q kernlane_ && failed "nothing is left" "$(lsmod)" || passed "nothing is left"
refused "undo of nothing" "there is no group" $K undo kernlane_1
rmmod kernlane && passed "the module can go" || failed "the module can go" "$(lsmod)"
exit 0
