#!/bin/sh
# Calls are inlined, under load: the load's results stay right, stacks name the callers, who traces
# an inlined function sees every call, and what is undone is undone.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
dmesg -c >/dev/null

# What is hot: counted under the load.
rm -f /tmp/enough
(mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load >/dev/null 2>&1 ||
    echo "FAILED: the load while blocks are counted"; done) &
loading=$!
ROOTS=$(existing ksys_read,ksys_write,do_sys_openat2,handle_mm_fault,sock_write_iter,net_rx_action)
check "hot blocks are counted" $K watch $V --root $ROOTS --time 1 --depth 3 -o /tmp/hot.klp
touch /tmp/enough
wait $loading
# These cannot be replaced, and are known by their calls only.
LOCKS=$(existing _raw_spin_lock,_raw_spin_unlock,_raw_spin_lock_irqsave,_raw_spin_unlock_irqrestore)
inline() { # SEED [OPTION]…
    seed=$1
    shift
    $K apply $V --profile /tmp/hot.klp --root $ROOTS --threshold 1 --function $LOCKS --skip-unfit \
        --inline --seed $seed "$@"
}

inline 0 --dry-run >/tmp/plan 2>&1 || failed "a plan" "$(tail -n 3 /tmp/plan)"
calls=$(grep -c '^inlined: ' /tmp/plan)
[ "$calls" -ge 50 ] && passed "$(grep " calls inlined: " /tmp/plan)" || failed "$calls calls" "$(tail /tmp/plan)"

# Under load, in the order of the counts and in random ones.
rm -f /tmp/enough
for n in 1 2; do
    (mkdir -p /tmp/load$n; cd /tmp/load$n; while [ ! -e /tmp/enough ]; do load ||
        echo "FAILED: the load in process $n"; done) &
    renice -n 19 -p $! >/dev/null
    loading="$loading $!"
done
cycles=$(cat /kl/cycles 2>/dev/null || echo 10)
check "$cycles cycles in the order of the counts" inline 0 --cycles $cycles
for seed in 1 2; do
    check "$cycles cycles in random order $seed" \
        inline $seed --algorithm random --cycles $cycles
done
touch /tmp/enough
wait $loading

check "installed" inline 0
sed -n 1p /tmp/out
check "the load in the copies" load

# Stacks through inlined code are whole, and name the function that it was inlined into.
event=kmem/kmem_cache_free
echo 1 >$T/options/stacktrace && echo 1 >$T/events/$event/enable
load
echo 0 >$T/events/$event/enable && echo 0 >$T/options/stacktrace
grep -q '=> [a-z_0-9]*\.kernlane' $T/trace && passed "stacks name copies" ||
    failed "stacks name copies" "$(grep -m 3 '=>' $T/trace)"
# Each stack begins at the entry code, in an interrupt's, or with a thread.
awk '/^#/ { next } /=> / { last = $2 } /^ *[a-z].*kmem_cache_free: / { if (last != "") ends[last]++ }
    END { for (end in ends) print ends[end], end }' $T/trace | sort -rn >/tmp/ends
grep -v 'entry_SYSCALL_64_after_hwframe\|asm_\|ret_from_fork\|_startup_64' /tmp/ends >/tmp/cut
[ -s /tmp/ends ] && [ ! -s /tmp/cut ] && passed "no stack is cut short" ||
    failed "no stack is cut short" "$(head -n 5 /tmp/cut)"
echo >$T/trace

# A tracer at an inlined function.
traced=$(sed -n 's/^inlined: \([fst][a-z_0-9]*\), .*/\1/p' /tmp/plan | sort | uniq -c | sort -rn |
    awk 'NR == 1 { print $2 }')
gone() { ! grep -q '^group .* installed' /dev/kernlane; }
echo $traced >$T/set_ftrace_filter && echo function >$T/current_tracer
check "a tracer at $traced undoes what it is inlined into" await gone
dmesg | grep -q "was undone: a tracer is attached to $traced" && passed "and the log says so" ||
    failed "and the log says so" "$(dmesg | tail -n 3)"
echo >$T/trace
load
# Reading the trace is traced as well.
echo 0 >$T/tracing_on
hits=$(grep -c " $traced" $T/trace)
echo 1 >$T/tracing_on
[ "$hits" -gt 10 ] && passed "the tracer sees the calls" || failed "the tracer" "$hits calls"
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "nothing is left" undo
check "it is installed again" inline 0
# At a function that cannot be replaced, but was inlined.
carried=$(sed -n 's/^inlined: \(_raw_spin_[a-z_]*\), .*/\1/p' /tmp/plan | head -n 1)
echo "${carried:-none}" >$T/set_ftrace_filter && echo function >$T/current_tracer
check "a tracer at ${carried:-a lock} undoes what it is inlined into" await gone
# Who installs then leaves the traced function out.
check "it comes back without $carried" inline 0
sleep 1
gone && failed "and stays" "$(dmesg | tail -n 2)" || passed "and stays"
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "nothing is left of that" undo
check "without the tracer it comes" inline 0
# And at a function that calls inlined code, but is not inlined itself.
other=$(awk '/^jump / { print $4 } /^inlined: / { sub(",", "", $2); print "-", $2 }' /tmp/plan |
    awk '$1 == "-" { gone[$2]; next } { all[$1] } END {
        for (name in all) if (!(name in gone) && name ~ /^(ksys_|tcp_)/) print name }' |
    sort | head -n 1)
echo $other >$T/set_ftrace_filter && echo function >$T/current_tracer
load
sleep 1
gone && failed "a tracer at $other leaves the group" "$(dmesg | tail -n 2)" ||
    passed "a tracer at $other leaves the group"
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "undone" undo
check "the load afterwards" load
lsmod | grep -q kernlane_ && failed "no module is left" "$(lsmod | grep kernlane_)" ||
    passed "no module is left"
dmesg | grep -qi 'warning:\|bug:\|oops\|unreliable' &&
    failed "the log is clean" "$(dmesg | grep -i -m 3 'warning:\|bug:\|oops\|unreliable')" ||
    passed "the log is clean"
exit 0
