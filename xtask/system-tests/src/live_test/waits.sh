# Others do not wait for Kernlane: a module that has nothing to do with it is removed at once while
# a group is being installed. What root sees is not shown to others.

remove_a_module() { timeout 15 sh -c 'insmod /kl/cookies.ko nr=1 && rmmod cookies'; }

# The request stays where user space does not supply its pages.
requests stall kernlane_1 >/tmp/stalled &
stalled=$!
await grep -q stalls /tmp/stalled || failed "a request stalls" "$(cat /tmp/stalled)"
sleep 1
check "a module is removed while a request waits for its pages" remove_a_module
check "status is told meanwhile" timeout 60 $K status
kill -9 $stalled
wait $stalled 2>/dev/null

# Installing waits for a task that does not sleep. The plan is made before that.
insmod /kl/occupy.ko seconds=${OCCUPIED:-60} 2>/dev/null &
occupied=$!
$K apply $V --function cmdline_proc_show >/tmp/out 2>&1 &
installing=$!
is_diverting() { grep -q '\[kernlane\]' $T/enabled_functions; }
patiently is_diverting || failed "an apply waits for RCU" "$(cat /tmp/out)"
check "a module is removed while a group is being installed" remove_a_module
is_diverting && passed "which waits still" || failed "which waits still" "$(cat /tmp/out)"
refused "a function that another is installing is known as that" \
    "cmdline_proc_show belongs to another program of Kernlane, which is installing it" \
    $K apply $V --function cmdline_proc_show --dry-run
wait $installing && passed "it is installed" || failed "it is installed" "$(cat /tmp/out)"
wait $occupied
check "undone" undo

# The file may be open in a process that may not see addresses.
(su nobody -c 'cat <&3') 3</dev/kernlane >/tmp/out 2>&1 &&
    failed "nobody reads the state" "$(cat /tmp/out)" ||
    passed "nobody reads the state"
grep -q 'ot permitted' /tmp/out && ! grep -q kernlane /tmp/out &&
    passed "and is told why" || failed "and is told why" "$(cat /tmp/out)"
