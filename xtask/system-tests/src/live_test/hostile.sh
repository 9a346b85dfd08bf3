#!/bin/sh
# Others get in the way of replaced functions, and requests are malformed: the kernel survives, and
# its text is what it was. Prints a line a test.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"

# The kernel's text, from the symbols around it.
symbol() { awk -v name="$1" '$3 == name && $2 ~ /[tTdDbB]/ { print $1; exit }' /proc/kallsyms; }
text() { requests text "$(symbol _stext)" "$(symbol _etext)"; }
# A static key may flip when something is used for the first time. So the text is compared
# after everything has been used once.
check_text() { # NAME
    after=$(text)
    [ "$after" = "$before" ] && passed "$1: the text is what it was" ||
        failed "$1: the text is what it was" "$before, then $after"
}
# What the plan says of a function: where its jump comes to lie, and the first call of it in
# another.
$K apply $V --function vfs_read,vfs_write --algorithm original --dry-run --keep-module \
    /tmp/copies.ko >/tmp/plan || failed "a plan" "$(cat /tmp/plan)"
jump() { awk -v name="$1" '$1 == "jump" && $4 == name { print $2 }' /tmp/plan; }
# The calls stand behind the jump of the function that they call.
site() { awk -v name="$1" -v from="$2" \
    '$1 == "jump" { now = $4 } $1 == "call" && now == name && $4 == from { print $2; exit }' \
    /tmp/plan; }
probe() { # ADDRESS: a kprobe that is not armed.
    echo "p:hostile 0x$1" >$T/kprobe_events || failed "a kprobe at $1" "not taken"
}
arm() { echo 1 >$T/events/kprobes/hostile/enable; }
disarm() { echo 0 >$T/events/kprobes/hostile/enable; }
remove() { disarm; echo >$T/kprobe_events; }
reads() { dd if=/tmp/data of=/dev/null bs=1000 count=${1:-300} 2>/dev/null; }
# The number in a plan.
number() { sed -n 's/^module .*, number \([0-9a-f]*\): .*/\1/p' $1; }
copies() { sed -n 's/^\(kernlane_[0-9]*\) .*/\1/p' /proc/modules; }
no_group() { ! $K status | grep -q 'functions, '; }
group_is_there() { $K status | grep -q 'functions, '; }

# The request must end so, with the address at fault, or 0.
asked() { # NAME RESULT ADDRESS REQUEST…
    what=$1 wanted="$2 $3"
    shift 3
    said=$(timeout 60 requests "$@" 2>&1)
    [ "$said" = "$wanted" ] && passed "malformed: $what" ||
        failed "malformed: $what" "$said, not $wanted"
}
EPERM=-1 ENOENT=-2 EFAULT=-14 EBUSY=-16 EEXIST=-17 EINVAL=-22 EUSERS=-87

# Everything is used once.
probe "$(jump vfs_read)"
arm
reads
remove
check "installed for the first time" apply vfs_read,vfs_write 1
echo vfs_read >$T/set_ftrace_filter && echo function >$T/current_tracer
reads
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "undone for the first time" undo
check "the load" load
sleep 2
before=$(text)
[ "$(text)" = "$before" ] || failed "the text stands still" "it does not"

# A kprobe at the jump, not armed, is seen by undo: it would execute the saved jump later.
check "installed" apply vfs_read 2
probe "$(jump vfs_read)"
refused "undo below a kprobe that is not armed" "a kprobe is registered at vfs_read+0x" $K undo
check "the group is still there" group_is_there
arm
reads
refused "undo below a kprobe that is armed" "a kprobe is registered at vfs_read+0x" $K undo
check "reads below that kprobe" load
remove
check "undone when the kprobe is gone" undo
check_text "a kprobe at the jump"

# A kprobe behind the jump may be in the middle of an instruction of the original.
check "installed" apply vfs_read 2
behind=$(printf %x $((0x$(jump vfs_read) + 5)))
if echo "p:hostile 0x$behind" 2>/dev/null >$T/kprobe_events; then
    refused "undo below a kprobe behind the jump" "a kprobe is registered at vfs_read+0x" $K undo
    arm
    check "reads with it" load
    remove
fi
check "undone without it" undo
check_text "a kprobe behind the jump"

# A kprobe that is not armed is seen where debugfs is not mounted, at each place that is written: by
# the program in a function, and by the module at a call.
umount /sys/kernel/debug
for place in "$(jump vfs_read)" "$(site vfs_read ksys_read)"; do
    probe "$place"
    refused "installing where a kprobe is that is not armed" \
        "a kprobe is registered at \|vfs_read belongs to a kprobe" $K apply $V --function vfs_read
    check "no group is there" no_group
    arm
    check "reads with the kprobe armed" load
    remove
done
mount -t debugfs debugfs /sys/kernel/debug
check "installed without it" apply vfs_read 3
check "undone" undo
check_text "kprobes before installing"

# A kprobe at a call to the copy would later call a copy that is gone.
check "installed" apply vfs_read,vfs_write 4
probe "$(site vfs_read ksys_read)"
refused "undo below a kprobe at a call" "a kprobe is registered at ksys_read+0x" $K undo
arm
check "reads through the call that has a kprobe" load
disarm
remove
check "undone when it is gone" undo
check_text "a kprobe at a call"

# A tracer sees the function that it traces also when a kprobe is at another call of the group.
check "installed" apply vfs_read,vfs_write 5
other=$(site vfs_write ksys_pwrite64)
[ -n "$other" ] || other=$(site vfs_write ksys_write)
probe "$other"
arm
traced() { $K status | grep -q 'vfs_read  traced'; }
echo vfs_read >$T/set_ftrace_filter && echo function >$T/current_tracer
check "the traced function's calls go to its entry" await traced
echo >$T/trace
reads 300
# Otherwise the reader of the trace would be traced, too.
echo 0 >$T/tracing_on
seen=$(grep -c vfs_read $T/trace)
echo 1 >$T/tracing_on
[ "$seen" -ge 200 ] && passed "a tracer sees the calls beside a foreign kprobe ($seen)" ||
    failed "a tracer sees the calls beside a foreign kprobe" "$seen events"
remove
# A call with a kprobe is aimed later.
probe "$(site vfs_read ksys_read)"
echo nop >$T/current_tracer
usleep 600000
remove
straight() { $K status | grep -q 'vfs_read$'; }
check "calls go straight again when the kprobe is gone" await straight
all_direct() {
    set -- $($K status | sed -n 's/.* \([0-9]*\) of \([0-9]*\) calls.*/\1 \2/p')
    [ -n "$1" ] && [ "$1" = "$2" ]
}
check "all of them" await all_direct
echo >$T/set_ftrace_filter
check "undone" undo
check_text "a tracer and a kprobe"

# A livepatch wins, or is not let in.
check "installed" apply cmdline_proc_show,vfs_read 6
probe "$(jump vfs_read)"
insmod /kl/overrule.ko 2>/tmp/out &&
    failed "a livepatch does not come beside a group that stays" "it came" ||
    passed "a livepatch does not come beside a group that stays"
dmesg | grep -q 'the livepatch overrule is refused: at vfs_read+0x' &&
    passed "the kernel's log says why" || failed "the kernel's log says why" "$(dmesg | tail -n 3)"
grep -q overruled /proc/cmdline && failed "it changes nothing" "$(cat /proc/cmdline)" ||
    passed "it changes nothing"
remove
check "it comes when the kprobe is gone" insmod /kl/overrule.ko
check "it wins" grep -q overruled /proc/cmdline
check "over no group" no_group
P=/sys/kernel/livepatch/overrule
leave_livepatch() {
    await grep -q 0 $P/transition && echo 0 >$P/enabled && await test ! -d $P && rmmod overrule
}
check "the livepatch goes" leave_livepatch
# While it is on its way nothing is installed.
insmod /kl/overrule.ko delay=15000 &
loading=$!
await grep -q '^overrule .*Loading' /proc/modules ||
    failed "a slow livepatch is on its way" "$(lsmod)"
refused "installing while a livepatch comes" "a livepatch is being loaded" $K apply $V --function \
    cmdline_proc_show,vfs_read
wait $loading
check "the slow livepatch is there" grep -q overruled /proc/cmdline
check "it goes" leave_livepatch
# A task asleep in a copy is where the livepatch does not look for it.
asleep() { grep -q '^State:.S' /proc/$1/status && grep -q '_read[+.]' /proc/$1/stack; }
mkfifo /tmp/fifo
dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo &
sleeper=$!
await asleep $sleeper
reader=$(sed -n 's/^\[<0>\] *\([^+]*\)+.*/\1/p;q' /proc/$sleeper/stack)
kill $sleeper
wait $sleeper 2>/dev/null
check "functions that sleep" apply $reader,vfs_read,ksys_read,cmdline_proc_show 7
dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo &
sleeper=$!
await asleep $sleeper
dmesg -c >/dev/null
insmod /kl/overrule.ko 2>/tmp/out && failed "a livepatch waits for who is in a copy" "it came" ||
    passed "a livepatch waits for who is in a copy"
dmesg | grep -q 'a task may be in a copy' && passed "the kernel's log says what to do" ||
    failed "the kernel's log says what to do" "$(dmesg | tail -n 3)"
kill $sleeper
wait $sleeper 2>/dev/null
check "undone when it has gone" undo
check "then the livepatch comes" insmod /kl/overrule.ko
check "and goes" leave_livepatch
check_text "livepatches"

# Many tasks asleep in a copy: all CPUs are stopped for none of them.
check "functions in which many sleep" apply $reader,vfs_read,ksys_read 8
for n in $(seq 400); do dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo & done
last=$!
await asleep $last || failed "400 tasks sleep" "$(cat /proc/$last/stack)"
echo 'p:stops stop_machine' >$T/kprobe_events && echo 1 >$T/events/kprobes/stops/enable
stops() { awk '$1 == "stops" { print $2 }' $T/kprobe_profile; }
first=$(stops)
$K undo >/tmp/out 2>&1
[ $? = 1 ] && passed "undo ends although 400 tasks sleep in a copy" ||
    failed "undo ends although 400 tasks sleep in a copy" "$(cat /tmp/out)"
sleep 15
count=$(($(stops) - first))
[ $count -le 40 ] && passed "the machine was stopped $count times in 20 seconds" ||
    failed "the machine is stopped seldom" "$count times in 20 seconds"
echo 0 >$T/events/kprobes/stops/enable && echo >$T/kprobe_events
killall dd
wait
check "the group goes by itself when they have gone" await no_group
check "its module, too" undo
check_text "400 tasks"

# Malformed requests. The module of the copies is loaded, and nothing is installed.
insmod /tmp/copies.ko || failed "the copies" "not loaded"
module=$(copies | head -n 1)
copies=$module/$(number /tmp/plan)
base=$(sed 's/^0x//' /sys/module/$module/sections/.text)
entry=$(symbol vfs_read)
at=$((0x$(jump vfs_read) - 0x$entry))
copy_in() { # PLAN FUNCTION: behind $base
    offset=$(awk -v name=$2 '$1 == "jump" && $4 == name { sub(/.*[+]0x/, "", $6); print $6 }' $1)
    printf %x $((0x$base + 0x$offset))
}
copy=$(copy_in /tmp/plan vfs_read)
third=$(requests packed "$entry" $at)
from=$(site vfs_read ksys_read)
etext=$(symbol _etext)
# The right copy by a wrong name: of another module, or of another function.
asked "a module by no number" $ENOENT 0 install $module 1 0 $entry $copy $third
asked "a module by another's number" $ENOENT 0 install $module/$(number /tmp/plan | rev) 1 0 $entry \
    $copy $third
for place in "$(copy_in /tmp/plan vfs_write)" "$(printf %x $((0x$copy + 1)))"; do
    asked "the copy of another function" $EINVAL $entry install $copies 1 0 $entry $place $third
done
minus() { printf %x $((0x$1 - $2)); }
for place in fffffffffffffffc fffffffffffffffb ffffffffffffffff fffffffffffff000 8000000000000000 \
    0 8 7fffffff0000 ffff800000000000 "$(minus $etext 4)" \
    "$(symbol __noinstr_text_start)" "$(minus $(symbol __entry_text_start) 4)" "$(minus $base 4)";
    do
    asked "a call at $place" $EPERM $place install $copies 1 1 $entry $copy $third $place 0
done
for place in fffffffffffffffc fffffffffffffff2 8000000000000000 0 "$(minus $etext 4)" $base; do
    asked "a function at $place" $EPERM $place install $copies 1 0 $place $copy $third
done
asked "a function that is none" $EINVAL "$(minus $entry -1)" install $copies 1 0 \
    "$(minus $entry -1)" $copy $third
for place in 0 ffffffffffffffff fffffffffffffffc 8000000000000000 $entry "$(minus $base 1)"; do
    asked "a copy at $place" $ENOENT 0 install $copies 1 0 $entry $place $third
done
low=$entry high=$(symbol vfs_write)
[ "$((0x$high - 0x$low))" -gt 0 ] || low=$high high=$entry
for place in 0 ffffffffffffffff fffffffffffffffc 8000000000000000 $entry "$(minus $base 1)"; do
    asked "a second copy at $place" $EINVAL $high install $copies 2 0 $low $copy \
        "$(requests packed $low $at)" $high $place "$(requests packed $high $at)"
done
[ $at = 9 ] && other=5 || other=9
asked "a jump on the tracer's site" $EINVAL $entry install $copies 1 0 $entry $copy \
    "$(requests packed "$entry" $other)"
asked "a jump elsewhere" $EINVAL $entry install $copies 1 0 $entry $copy \
    "$(requests packed "$entry" 200)"
asked "a reserved byte of a function" $EINVAL $entry install $copies 1 0 $entry $copy \
    "01$(printf %014x 0x$third)"
asked "a function that is neither carried nor not" $EINVAL $entry install $copies 1 0 $entry \
    $copy "$(printf %x $((0x$third | 2 << 48)))"
carried=$(printf %x $((0x$third | 1 << 48)))
asked "a group that nothing enters" $EINVAL 0 install $copies 1 0 $entry $copy $carried
both="$entry $copy $carried" index=0
second=$(symbol vfs_write)
second="$second $(copy_in /tmp/plan vfs_write) $(requests packed $second $at)"
[ $low = $entry ] && both="$both $second" || { both="$second $both"; index=1; }
asked "a call in the kernel of a copy that only copies call" $EINVAL $from install $copies 2 1 \
    $both $from $index
asked "a reserved word" $EINVAL 0 install $copies 1 200000000 $entry $copy $third
asked "other bytes than expected" $EBUSY "$(jump vfs_read | sed 's/^0*//')" install $copies 1 0 \
    $entry $copy "$(printf %x $((0x$third ^ 0x100)))"
asked "a reserved word of a call" $EINVAL $from install $copies 1 1 $entry $copy $third $from \
    100000000
for index in 1 ffffffff 80000000; do
    asked "a call of function $index" $EINVAL $from install $copies 1 1 $entry $copy $third $from \
        $index
done
asked "a call twice" $EINVAL $from install $copies 1 2 $entry $copy $third $from 0 $from 0
asked "calls that overlap" $EBUSY "$(minus $from 1)" install $copies 1 2 $entry $copy $third \
    "$(minus $from 1)" 0 $from 0
asked "a function twice" $EINVAL $entry install $copies 2 0 $entry $copy $third $entry $copy $third
asked "no function" $EINVAL 0 install $copies 0 0 $entry $copy $third
for number in 2001 ffffffff; do
    asked "$number functions" $EINVAL 0 install $copies $number 0 $entry $copy $third; done
for number in 40001 ffffffff; do
    asked "$number calls" $EINVAL 0 install $copies 1 $number $entry $copy $third; done
asked "calls that are not there" $EFAULT 0 install $copies 1 40000 $entry $copy $third
asked "a name without an end" $EINVAL 0 install \
    kernlane_890123456789012345678901234567890123456789012345678 1 0 $entry $copy $third
asked "a group without an end" $EINVAL 0 undo \
    kernlane_890123456789012345678901234567890123456789012345678
asked "no name" $EINVAL 0 install "" 1 0 $entry $copy $third
asked "Kernlane itself" $ENOENT 0 install kernlane 1 0 $entry $copy $third
asked "a group that is not there" $ENOENT 0 undo $copies
# What the kernel writes itself is not written: a static key behind the tracer's site, a static
# call. What is behind the site of each of these begins with a static key on some kernel.
found=0
KEYS=__check_object_size,__mod_memcg_state,arch_enable_hybrid_capacity_scale,psi_cgroup_alloc
KEYS=$KEYS,security_tun_dev_create,security_uring_sqpoll,swap_cgroup_swapoff,swap_cgroup_swapon
for name in $(existing $KEYS,vmpressure | tr , ' '); do
    start=$(symbol $name)
    for offset in 5 9; do
        bytes=$(requests packed "$start" $offset)
        [ "${bytes%??}" = 441f0f ] || continue
        asked "a static key of $name" $EINVAL $start install $copies 1 0 $start $copy $bytes
        found=$((found + 1))
    done
done
[ $found -gt 0 ] && passed "$found functions with static keys were tried" ||
    failed "a function with a static key" "none"
# What is never replaced, also when no program says so.
REFUSED=native_play_dead,load_module,blocking_notifier_call_chain_robust,notifier_call_chain
REFUSED=$REFUSED,__x64_sys_finit_module,x64_sys_call,worker_thread,kthread,text_poke_queue,smp_text_poke_batch_add
REFUSED=$REFUSED,stop_machine,get_kprobe,kprobe_dispatcher
for name in $(existing $REFUSED | tr , ' '); do
    place=$(symbol $name)
    asked "$name" $EPERM $place install $copies 1 0 $place $copy "$(requests packed "$place" $at)"
done
refused "also by name" "a CPU that is switched off waits in it" $K apply $V --function \
    native_play_dead

# A module that says that it counts, and has no room for its cookies.
for nr in 0 1 2048 4097 65537 18446744073709551615; do
    insmod /kl/cookies.ko nr=$nr || failed "malformed cookies" "not loaded"
    base=$(sed 's/^0x//' /sys/module/cookies/sections/.text)
    asked "cookies of $nr counters" $EINVAL 0 install cookies 1 0 $entry $base $third
    rmmod cookies
done
insmod /kl/cookies.ko nr=4096
base=$(sed 's/^0x//' /sys/module/cookies/sections/.text)
asked "cookies of 4096 counters, of which there are 4096, and no copy" $EINVAL $entry install \
    cookies 1 0 $entry $base $third
rmmod cookies

# Times of what is not there.
asked "no function to measure" $EINVAL 0 time 0 1 0 $entry
asked "513 functions to measure" $EINVAL 0 time 201 1 0 $entry
asked "no time" $EINVAL 0 time 1 0 0 $entry
asked "more than an hour" $EINVAL 0 time 1 36ee81 0 $entry
for place in 0 fffffffffffffffc ffffffffffffffff 8000000000000000 "$(minus $etext 4)" \
    "$(symbol __noinstr_text_start)"; do
    asked "a function to measure at $place" $EINVAL 0 time 1 1 0 $place
done
asked "functions to measure that do not ascend" $EINVAL 0 time 2 1 0 $entry $entry
asked "times to be written at 8" $EFAULT 0 time 1 1 8 $entry
check "the module answers" timeout 60 $K status
check "no group is there" no_group
check_text "malformed requests"
# The same, well formed; and a second group that claims what the first has.
$K apply $V --function vfs_read --algorithm original --dry-run --keep-module /tmp/second.ko \
    >/tmp/plan2 || failed "a second plan" "$(cat /tmp/plan2)"
insmod /tmp/second.ko || failed "a second module" "not loaded"
second=$(lsmod | sed -n 's/^\(kernlane_[0-9]*\) .*/\1/p' | grep -v "^$module$")
base=$(sed 's/^0x//' /sys/module/$second/sections/.text)
copy2=$(copy_in /tmp/plan2 vfs_read)
second=$second/$(number /tmp/plan2)
asked "a copy of another module" $ENOENT 0 install $copies 1 1 $entry $copy2 $third $from 0
asked "well formed" 0 0 install $copies 1 1 $entry $copy $third $from 0
check "reads" load
asked "installed twice" $EEXIST 0 install $copies 1 1 $entry $copy $third $from 0
asked "a group in front of another" $EBUSY $entry install $second 1 0 $entry $copy2 \
    "$(requests packed "$entry" $at)"
check "both go" undo
echo vfs_read >$T/set_ftrace_filter && echo function >$T/current_tracer
insmod /tmp/copies.ko || failed "the copies come again" "$?"
base=$(sed 's/^0x//' /sys/module/${copies%/*}/sections/.text)
copy=$(awk '$1 == "jump" && $4 == "vfs_read" { sub(/.*[+]0x/, "", $6); print $6 }' /tmp/plan)
copy=$(printf %x $((0x$base + 0x$copy)))
asked "a function that a tracer has" $EUSERS "$(minus "$(jump vfs_read | sed 's/^0*//')" 5)" install \
    $copies 1 0 $entry $copy $third
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
rmmod ${copies%/*}
check_text "a well formed request"

. /kl/count.sh
. /kl/at-once.sh
. /kl/waits.sh
. /kl/refused.sh

# Others register kprobes while a group is being installed: it is refused late, when tasks have been
# sent to the copies, and sleep there.
(while [ ! -e /tmp/calm ]; do probe "$(site vfs_read ksys_read)" && echo >$T/kprobe_events; done) &
probing=$!
late=0
for try in 1 2 3 4 5 6; do
    for n in 1 2 3 4 5 6 7 8; do
        (usleep $((n * 60000)); exec dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo) & done
    apply $reader,vfs_read,ksys_read $try >/tmp/out 2>&1 || late=$((late + 1))
    undo >/dev/null 2>&1
    killall dd 2>/dev/null
    wait_for_dd() { ! pidof dd; }
    await wait_for_dd
done
touch /tmp/calm
wait $probing
passed "installed while kprobes came and went ($late of 6 refused)"
check "undone" undo
check "the load after that" load
check_text "kprobes that come while a group is installed"

# `rmmod -f` asks nobody who holds a module, but it removes none that another uses.
apply vfs_read,vfs_write,$reader 11 >/dev/null || failed "a group for rmmod -f" "not installed"
dd of=/dev/null bs=1 count=1 2>/dev/null <>/tmp/fifo &
sleeper=$!
await asleep $sleeper
for module in $(copies) kernlane; do
    rmmod -f $module 2>/dev/null && failed "rmmod -f of $module is refused" "it was not" ||
        passed "rmmod -f of $module is refused"
done
check "the group is still there" group_is_there
check "the load beside it" load
kill $sleeper
wait $sleeper 2>/dev/null
check "undone after that" undo
check_text "rmmod -f"

. /kl/itself.sh

# The tracer cannot be switched off while functions are measured: the kernel's records would break.
switch_tracer_off() { echo 0 2>/dev/null >/proc/sys/kernel/ftrace_enabled; }
$K time vfs_read $V --time 5 >/tmp/out 2>&1 &
measuring=$!
await grep -q '^vfs_read ' $T/enabled_functions
switch_tracer_off && failed "no tracer is switched off while functions are measured" "it was" ||
    passed "no tracer is switched off while functions are measured"
wait $measuring && passed "measured" || failed "measured" "$(cat /tmp/out)"
check "the tracer is switched off" switch_tracer_off
refused "measuring without a tracer" "kernel.ftrace_enabled" $K time vfs_read $V --time 1
echo 1 >/proc/sys/kernel/ftrace_enabled
check "the load after that" load

# The kernel neither takes nor removes modules any more: it is original all the same.
check "installed" apply vfs_read 9
check "and another" apply vfs_write 10
echo 1 >/proc/sys/kernel/modules_disabled
$K undo kernlane_1 >/tmp/out 2>&1
status=$?
[ $status = 0 ] &&
    grep -q 'kernlane_1: every byte is restored: the kernel is original.*until the next boot' \
    /tmp/out &&
    passed "undone although no module can be removed" ||
    failed "undone although no module can be removed" "status $status: $(cat /tmp/out)"
$K undo --json >/tmp/out 2>&1
status=$?
[ $status = 0 ] && [ "$(grep -c '"module": "until-boot"' /tmp/out)" = 2 ] &&
    [ "$(grep -c '"restored": true' /tmp/out)" = 1 ] &&
    passed "and in JSON" || failed "and in JSON" "status $status: $(cat /tmp/out)"
check "status says so" sh -c "$K status | grep -q 'they stay until the next boot'"
refused "nothing more is installed" "the kernel takes no modules until it boots again" $K apply $V \
    --function vfs_read
check_text "no modules"
check "the load at the end" load
exit 0
