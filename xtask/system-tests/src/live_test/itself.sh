# What removes modules, undoes groups and loads livepatches may itself run through copies: it never
# waits for itself. hostile.sh comes before.

# The command's status, or 99 when it does not end in time.
bounded() { # SECONDS COMMAND…
    left=$(($1 * 5))
    shift
    "$@" >/tmp/bounded 2>&1 &
    running=$!
    while [ -d /proc/$running ] && ! grep -qs "^State:.Z" /proc/$running/status; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 99
        usleep 200000
    done
    wait $running
}
# It must end in that time with that status.
ends() { # NAME STATUS SECONDS COMMAND…
    name=$1 wanted=$2
    shift 2
    bounded "$@"
    status=$?
    [ $status = $wanted ] && passed "$name" ||
        failed "$name" "status $status: $(tail -n 3 /tmp/bounded) $(cat /proc/$running/stack)"
}

# Modules are removed through copies.
GOING=$(existing __x64_sys_delete_module,__do_sys_delete_module,blocking_notifier_call_chain,)
check "functions through which modules go" apply $GOING,notifier_call_chain,vfs_read 31
ends "rmmod -f of their module is refused" 1 20 rmmod -f $(copies)
ends "rmmod -f of Kernlane's module is refused" 1 20 rmmod -f kernlane
check "the group is still there" group_is_there
check "reads through it" load
ends "another module comes" 0 20 insmod /kl/cookies.ko nr=1
ends "and goes" 0 20 rmmod -f cookies
check "undone after that" undo
check_text "modules that are removed through copies"
gone() { ! grep -q "^$1 " /proc/modules; }
exec 5</dev/kernlane
ends "rmmod -f of Kernlane's module with a file that is open is refused" 1 20 rmmod -f kernlane
exec 5<&-
ends "without that file it goes" 0 20 rmmod kernlane
insmod /kl/kernlane.ko || failed "it comes again" "$?"

# Undo comes through a copy of ioctl(), and the work that looks for tasks through one of what works.
check "functions through which undo comes" apply __x64_sys_ioctl,process_one_work,vfs_read 32
ends "undone through them" 0 60 $K undo
check "functions through which undo comes, in cycles" apply __x64_sys_ioctl,process_one_work 33 \
    --cycles 5
grep -q 'undone 5 times; a task in a copy held up 0 of them' /tmp/out &&
    passed "undo does not hold itself up" || failed "undo does not hold itself up" "$(cat /tmp/out)"
check_text "undo through copies"

# A livepatch is loaded through what is left of these.
LOADING=__x64_sys_init_module,__x64_sys_finit_module,idempotent_init_module,init_module_from_file
LOADING=$LOADING,load_module,blocking_notifier_call_chain_robust,notifier_call_chain
check "functions through which modules come" apply $(existing $LOADING,do_init_module),vfs_read 34
ends "a livepatch comes" 0 30 insmod /kl/overrule.ko
check "it wins" grep -q overruled /proc/cmdline
check "over no group" no_group
check "it goes" leave_livepatch
for function in $(existing $LOADING | tr , ' '); do
    # Some are on kprobes' list as well, which is looked at first.
    refused "$function" "livepatches are loaded through it\|code that may not be probed" \
        $K apply $V --function $function
done
check "undone" sh -c "$K undo || [ \"\$(lsmod | grep -c kernlane_)\" = 0 ]"
check_text "a livepatch that is loaded through copies"

# A tracer may let entries pass that ought to be diverted.
echo vfs_read >$T/set_ftrace_filter && echo function >$T/current_tracer
refused "a function that is traced" "vfs_read belongs to a tracer (which" $K apply $V --function \
    vfs_read
echo nop >$T/current_tracer && echo >$T/set_ftrace_filter
check "without the tracer" apply vfs_read 35
check "undone after the tracer" undo
check_text "a tracer that was there before"

# More invocations are under way than the kernel's probe can follow: none is forgotten.
crowds() { # NAME: the sum of all such numbers
    awk -v name="\"$1\":" '$1 == name { sum += $2 } END { print sum + 0 }' /tmp/times
}
mkfifo /tmp/gate
crowd 6000 >/tmp/crowd <>/tmp/gate &
crowd=$!
await grep -q there /tmp/crowd || failed "a crowd of 6000" "not there"
$K time vfs_read $V --time 20 --json >/tmp/times 2>&1 &
measuring=$!
await grep -q '^vfs_read ' $T/enabled_functions || failed "the crowd is measured" "it is not"
sleep 1
echo >/tmp/gate
wait $measuring
kill $crowd
wait $crowd 2>/dev/null
followed=$(crowds entered) missed=$(crowds missed)
# The kernel counts what it misses without a lock.
[ $((followed + missed)) -ge 5900 ] && [ $missed -ge 1800 ] &&
    passed "of 6000 reads at once $missed were missed, and none forgotten" ||
    failed "6000 reads at once" "$followed followed, $missed missed: $(cat /tmp/times)"
