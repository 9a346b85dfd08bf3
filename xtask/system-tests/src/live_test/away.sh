# Processors, and the machine as a whole, go and come back while functions are replaced.

CPU=/sys/devices/system/cpu/cpu1
processor() { echo $1 >$CPU/online && [ "$(cat $CPU/online)" = $1 ]; }
if [ -d $CPU ]; then
    # The deadline server of 6.12 warns when a processor goes offline, also without replaced
    # functions (task_non_contending() in kernel/sched/deadline.c). So the test switches it off.
    # Earlier kernels have none.
    for server in /sys/kernel/debug/sched/fair_server/cpu*; do
        [ -e $server ] || continue
        echo 0 >$server/runtime || failed "without a deadline server" "$server"
    done
    apply $FUNCTIONS 22 >/tmp/out 2>&1 ||
        failed "installed before a processor goes" "$(tail -n 3 /tmp/out)"
    loads 2
    for round in 1 2; do
        check "a processor goes, round $round" processor 0
        sleep 1
        check "and comes back, round $round" processor 1
        sleep 1
    done
    check "undone under load" undo
    check "gone once more" processor 0
    check "installed while it is away" apply $FUNCTIONS 23
    check "it comes to copies" processor 1
    sleep 1
    touch /tmp/enough
    wait $loading
    check "the load on that processor" taskset 2 sh -c ". /kl/prelude.sh; sum='$sum'; load"
    check "undone with both" undo
    # It comes when counting has begun, and goes before that ends.
    check "away before counting" processor 0
    $K count vfs_read $V --time 15 >/tmp/counted 2>&1 &
    counting=$!
    await grep -q '^kernlane_.*Live' /proc/modules || failed "counting begins" "$(cat /tmp/counted)"
    check "there while it counts" processor 1
    check "which reads" taskset 2 dd if=/dev/zero of=/dev/null bs=1 count=3000
    check "and goes" processor 0
    wait $counting
    most=$(grep -v counting /tmp/counted | awk '$2 + 0 > most { most = $2 + 0 } END { print most + 0 }')
    [ "$most" -ge 3000 ] && passed "what it has counted is there ($most)" ||
        failed "what it has counted is there" "$most"
    check "both are there again" processor 1
fi

# The machine sleeps (S3), all processors but one switched off, until its clock wakes it.
sleep_and_wake() {
    clock=/sys/class/rtc/rtc0
    slept=$(cat /sys/power/suspend_stats/success)
    echo deep >/sys/power/mem_sleep && echo 0 >$clock/wakealarm && echo +15 >$clock/wakealarm &&
        echo mem >/sys/power/state &&
        [ "$(cat /sys/power/suspend_stats/success)" = $((slept + 1)) ]
}
apply $FUNCTIONS 21 >/tmp/out 2>&1 ||
    failed "installed before the machine sleeps" "$(tail -n 3 /tmp/out)"
loads 1
check "the machine sleeps and wakes with functions replaced" sleep_and_wake
sleep 1
touch /tmp/enough
wait $loading
check "the load after that" load
check "undone after that" undo
