#!/bin/sh
# Calls are inlined, under load: the load's results stay right, stacks name the callers, who traces
# an inlined function sees every call while the rest of the group stays, and what is undone is
# undone.
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

trace() { echo $1 >$T/set_ftrace_filter && echo function >$T/current_tracer; }
trace_nothing() { echo nop >$T/current_tracer && echo >$T/set_ftrace_filter; }

# Under load, in the order of the counts and in random ones, while tracers come and go elsewhere:
# of a function that runs at each tick, and of stacks, which go through copies.
event=kmem/kmem_cache_free
tick=$(existing update_process_times)
rm -f /tmp/enough
for n in 1 2; do
    (mkdir -p /tmp/load$n; cd /tmp/load$n; while [ ! -e /tmp/enough ]; do load ||
        echo "FAILED: the load in process $n"; done) &
    renice -n 19 -p $! >/dev/null
    loading="$loading $!"
done
(while [ ! -e /tmp/enough ]; do
    echo 1 >$T/options/stacktrace && echo 1 >$T/events/$event/enable
    trace "$tick" && sleep 1 && grep -q "$tick <-" $T/trace && echo >>/tmp/times
    trace_nothing
    echo 0 >$T/events/$event/enable && echo 0 >$T/options/stacktrace
    echo >$T/trace
    sleep 2
done) &
loading="$loading $!"
cycles=$(cat /kl/cycles 2>/dev/null || echo 10)
check "$cycles cycles in the order of the counts" inline 0 --cycles $cycles
for seed in 1 2; do
    check "$cycles cycles in random order $seed" \
        inline $seed --algorithm random --cycles $cycles
done
touch /tmp/enough
wait $loading
times=$(wc -l </tmp/times)
[ "$times" -ge 3 ] && passed "tracers came, saw what ran and went $times times" ||
    failed "tracers come and go" "$times times"

check "installed" inline 0
sed -n 1p /tmp/out
check "the load in the copies" load

# Stacks through inlined code are whole, and name the function that it was inlined into.
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

# What is inlined, by what the kernel has.
$K status >/tmp/status
named=$(grep -c '^  inlined: ' /tmp/status)
[ "$named" -ge 20 ] && passed "status names what is inlined in what" ||
    failed "status names what is inlined in what" "$named lines"
planned=$(sed -n 's/^inlined: \(.*\), called .*/\1/p' /tmp/plan | sort -u)
found=$(sed -n 's/^  inlined: \(.*\) in .*/\1/p' /tmp/status | sort -u)
[ "$planned" = "$found" ] && passed "as the plan says" || failed "as the plan says" "$found"
$K status --ranges >/tmp/ranges
awk '$2 <= $1 || $1 < last { wrong++ } { last = $2 } END { exit !NR || wrong }' /tmp/ranges &&
    passed "$(wc -l </tmp/ranges) ranges of inlined code" ||
    failed "ranges of inlined code" "$(head -n 3 /tmp/ranges)"
# From each range the first address, as `k (inlined) in g (inlined) in f.kernlane+0x10`.
first=$(awk 'NR % 20 == 1 { printf "%s%s", comma, $1; comma = "," }' /tmp/ranges)
$K status --address $first >/tmp/frames 2>&1
awk 'NR == FNR { stacks[$1] = $3; next }
    { sub(":", "", $1); depth = split(stacks[$1], stack, ";"); at = 2
      for (n = depth; n > 1; n--) { wrong += $at != stack[n] || $(at + 1) != "(inlined)"; at += 3 }
      wrong += index($at, stack[1]) != 1; lines++ }
    END { exit !lines || wrong }' /tmp/ranges /tmp/frames && passed "addresses are translated" ||
    failed "addresses are translated" "$(head -n 3 /tmp/frames)"
$K status --json | grep -q '"ranges"' && passed "also in JSON" || failed "also in JSON" "no ranges"
$K status --address $(awk '$3 == "_stext" { print $1 }' /proc/kallsyms) >/tmp/out 2>&1 &&
    failed "an address in no copy is refused" "$(cat /tmp/out)" ||
    passed "an address in no copy is refused"
# Stacks go through inlined code.
echo 1 >$T/options/sym-addr && echo 1 >$T/options/stacktrace && echo 1 >$T/events/$event/enable
load
echo 0 >$T/events/$event/enable && echo 0 >$T/options/stacktrace
$K status --address $(awk '/=> .*[.]kernlane/ { gsub("[<>]", "", $NF); print $NF }' $T/trace |
    sort -u | tr '\n' , | sed 's/,$//') >/tmp/frames 2>&1
echo 0 >$T/options/sym-addr && echo >$T/trace
grep -q '(inlined) in .*[.]kernlane' /tmp/frames &&
    passed "stacks have $(wc -l </tmp/frames) addresses, $(grep -c inlined /tmp/frames) inlined" ||
    failed "addresses of stacks are inlined" "$(head -n 3 /tmp/frames)"

# A tracer at an inlined function: the copies that hold its code give way.
traced=$(sed -n 's/^inlined: \([fst][a-z_0-9]*\), .*/\1/p' /tmp/plan | sort | uniq -c | sort -rn |
    awk 'NR == 1 { print $2 }')
gone() { ! grep -q '^group .* installed' /dev/kernlane; }
away() { grep -c ' away$' /dev/kernlane; }
all() { grep -c '^function ' /dev/kernlane; }
# Whether the copies that hold a function's code give way, and most others stay.
give_way() { # FUNCTION
    $K status | awk -v traced=$1 '
        $1 == "inlined:" && $2 == traced { sub(/[.]kernlane:$/, "", $4); sub(/[.]cold$/, "", $4)
            holds[$4] }
        /gave way/ { away[$4] }
        END { for (name in holds) { lines++; missing += !(name in away) }
            exit !lines || missing }' && [ $(away) -lt $(($(all) / 2)) ] && ! gone
}
trace $traced
check "a tracer at $traced: copies with its code give way" await give_way $traced
echo "away: $(away) of $(all) copies, for $traced"
dmesg | grep -q "copies give way to their originals: a tracer is attached to $traced" &&
    passed "and the log says so" || failed "and the log says so" "$(dmesg | tail -n 3)"
echo >$T/trace
load
# Reading the trace is traced as well.
echo 0 >$T/tracing_on
hits=$(grep -c " $traced" $T/trace)
echo 1 >$T/tracing_on
[ "$hits" -gt 0 ] && passed "the tracer sees the calls" || failed "the tracer" "$hits calls"
trace_nothing
before=$(away)
sleep 1
[ "$(away)" = $before ] && ! gone && passed "what gave way stays away, the rest is installed" ||
    failed "what gave way stays away, the rest is installed" "$(away) instead of $before"
check "the load in the copies that are left" load
check "nothing is left" undo
check "it is installed again" inline 0
[ "$(away)" = 0 ] && passed "with all copies" || failed "with all copies" "$(away)"
# Each call is seen: dd reads as often as it is told, and each read calls these.
for name in vfs_read rw_verify_area security_file_permission fdget_pos __fdget_pos __fget_light; do
    grep -q "^inlined: $name, " /tmp/plan && whole=$name
done
if [ -n "$whole" ]; then
    trace $whole
    check "a tracer at $whole" await give_way $whole
    echo >$T/trace
    dd if=/dev/zero of=/dev/null bs=1 count=3000 2>/dev/null
    echo 0 >$T/tracing_on
    hits=$(grep -c " $whole <-" $T/trace)
    echo 1 >$T/tracing_on
    [ "$hits" -ge 3000 ] && passed "it sees all calls of 3000" ||
        failed "it sees all calls of 3000" "$hits"
    trace_nothing
else
    echo "nothing that each read calls is inlined"
fi
check "nothing is left of ${whole:-the group}" undo
# At a function that cannot be replaced, but was inlined.
carried=$(sed -n 's/^inlined: \(_raw_spin_[a-z_]*\), .*/\1/p' /tmp/plan | head -n 1)
check "it is installed for ${carried:-a lock}" inline 0
trace "${carried:-none}"
check "a tracer at ${carried:-a lock}: copies with its code give way" await give_way $carried
echo "away: $(away) of $(all) copies, for $carried"
check "they are undone beside the tracer" undo
# Who installs then leaves the traced function out.
check "it comes back without $carried" inline 0
sleep 1
[ "$(away)" = 0 ] && ! gone && passed "and stays" || failed "and stays" "$(dmesg | tail -n 2)"
trace_nothing
check "nothing is left of that" undo
# Tracers come and go under load.
rm -f /tmp/enough
(mkdir -p /tmp/load1; cd /tmp/load1; while [ ! -e /tmp/enough ]; do load ||
    echo "FAILED: the load beside tracers"; done) &
loading=$!
renice -n 19 -p $loading >/dev/null
rounds=$((cycles / 20 + 5))
for n in $(seq $rounds); do
    inline $n >/tmp/out 2>&1 || failed "installed in round $n" "$(tail -n 3 /tmp/out)"
    for name in $traced $carried; do
        trace $name
        await give_way $name || failed "$name in round $n" "$(dmesg | tail -n 2)"
        trace_nothing
    done
    undo >/tmp/out 2>&1 || failed "undone in round $n" "$(cat /tmp/out)"
done
touch /tmp/enough
wait $loading
passed "$rounds rounds with tracers under load"
check "without the tracer it comes" inline 0
# And at a function that calls inlined code, but is not inlined itself.
other=$(awk '/^jump / { print $4 } /^inlined: / { sub(",", "", $2); print "-", $2 }' /tmp/plan |
    awk '$1 == "-" { gone[$2]; next } { all[$1] } END {
        for (name in all) if (!(name in gone) && name ~ /^(ksys_|tcp_)/) print name }' |
    sort | head -n 1)
echo $other >$T/set_ftrace_filter && echo function >$T/current_tracer
load
sleep 1
[ "$(away)" = 0 ] && ! gone && passed "a tracer at $other leaves the copies" ||
    failed "a tracer at $other leaves the copies" "$(dmesg | tail -n 2)"
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "undone" undo
check "the load afterwards" load
# Everything in one command.
rm -f /tmp/enough
(mkdir -p /tmp/load1; cd /tmp/load1; while [ ! -e /tmp/enough ]; do load; done) &
loading=$!
check "auto inlines" $K auto $V --root $ROOTS --time 1 --depth 3 --inline --report /tmp/report.json
touch /tmp/enough
wait $loading
grep ' calls inlined: ' /tmp/out || failed "auto inlines calls" "$(tail -n 3 /tmp/out)"
grep -q '"inlined"' /tmp/report.json && passed "its report says so" ||
    failed "its report says so" "$(head -c 200 /tmp/report.json)"
# It has measured the roots, with a tracer at each.
[ "$(away)" = 0 ] && ! gone && passed "measuring leaves the copies" ||
    failed "measuring leaves the copies" "$(away) away"
check "auto is undone" undo
lsmod | grep -q kernlane_ && failed "no module is left" "$(lsmod | grep kernlane_)" ||
    passed "no module is left"
dmesg | grep -qi 'warning:\|bug:\|oops\|unreliable' &&
    failed "the log is clean" "$(dmesg | grep -i -m 3 'warning:\|bug:\|oops\|unreliable')" ||
    passed "the log is clean"
exit 0
