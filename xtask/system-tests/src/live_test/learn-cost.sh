#!/bin/sh
# What following the load costs: a first layout, a sample, and an hour of `kernlane live learn`
# behind it. The load runs whenever it samples or counts, and once a minute; after half of the hour
# it is another load, for which a new layout is due. Prints processor time each ten minutes. By instructions:
# cargo xtask live-test 6.12-cloud xtask/system-tests/src/live_test/learn-cost.sh --cost
. /kl/prelude.sh
. /kl/kept.sh
minutes=60
# Files and TCP at first, then random numbers, whose code the first layout hardly has.
first_load() { load >/dev/null 2>&1; }
other_load() { dd if=/dev/urandom of=/dev/null bs=4096 count=3000 2>/dev/null; }
seconds() { cut -d ' ' -f 1 /proc/uptime; }
# Hundredths of a second of processor time: of all threads, and of children that have ended.
spent() {
    set -- $(cut -d ' ' -f 14-17 /proc/$1/stat)
    echo $(($1 + $2 + $3 + $4))
}

load
echo "-- a first layout"
(while [ ! -e /tmp/enough ]; do first_load; done) &
loading=$!
check "a first round installs and keeps" $K learn $V $STATE --sample 12 --time 0.3 --once
tail -n 3 /tmp/out
touch /tmp/enough
wait $loading

echo "-- a sample"
# A fixed amount of work in the kernel, without and with sampling.
work() { dd if=/dev/zero of=/dev/null bs=1 count=5000000 2>/dev/null; }
begun=$(seconds)
work
without=$(seconds)
$K learn $V $STATE --sample 30 --once --dry-run >/tmp/sampled 2>&1 &
sampler=$!
sleep 5
own=$(spent $sampler) from=$(seconds)
work
to=$(seconds)
echo "$begun $without $from $to $own $(spent $sampler)" | awk '{
    printf "work of %.2f s took %.2f s while it was sampled, %.2f s of it in the sampler\n",
        $2 - $1, $4 - $3, ($6 - $5) / 100 }'
wait $sampler
cat /tmp/sampled

echo "-- $minutes minutes"
$K learn $V $STATE >/tmp/learned 2>&1 &
learner=$!
# Between its rounds it has fewer files open.
files() { set -- /proc/$learner/fd/*; echo $#; }
until=$(($(cut -d . -f 1 /proc/uptime) + 15))
while [ "$(cut -d . -f 1 /proc/uptime)" -lt $until ]; do first_load; done
sleep 45
pausing=$(files)
echo "after the first round: $(spent $learner) hundredths of a second"
minute=1
while [ $minute -lt $minutes ]; do
    [ $minute -ge $((minutes / 2)) ] && present=other_load || present=first_load
    $present
    until=$(($(cut -d . -f 1 /proc/uptime) + 60))
    while [ "$(cut -d . -f 1 /proc/uptime)" -lt $until ]; do
        set -- /proc/$learner/fd/*
        if [ $# -gt $pausing ]; then $present; else sleep 1; fi
    done
    minute=$((minute + 1))
    [ $((minute % 10)) = 0 ] &&
        echo "after $minute minutes: $(spent $learner) hundredths of a second, $(wc -l </tmp/learned) lines"
done
spent=$(spent $learner)
echo "$spent hundredths of a second of processor time in $minutes minutes"
cat /tmp/learned
[ $spent -gt 0 ] && [ $spent -le $((30 * minutes)) ] && passed "at most 0.5 % of one CPU's" ||
    failed "at most 0.5 % of one CPU's" "$spent"
grep -q 'the copies hold .* instead of' /tmp/learned && passed "a new layout was due" ||
    failed "a new layout was due" "$(cat /tmp/learned)"
installed && passed "the group is installed" || failed "the group is installed" "$(cat /dev/kernlane)"
kill -TERM $learner
ended $learner && none_installed && passed "stopped, it takes everything back" ||
    failed "stopped, it takes everything back" "$(cat /tmp/learned)"
check "the load afterwards" load
exit 0
