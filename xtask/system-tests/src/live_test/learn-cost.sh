#!/bin/sh
# What following the load costs: a group is kept and installed, as behind a boot, and `kernlane live
# learn` runs for an hour beside a load. Prints its processor time. For trials:
# cargo xtask live-test 6.12-cloud xtask/system-tests/src/live_test/learn-cost.sh
. /kl/prelude.sh
. /kl/kept.sh
minutes=60
load
(mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load >/dev/null 2>&1; done) &
loading=$!
check "a first round installs and keeps" $K learn $V $STATE --sample 20 --once
tail -n 3 /tmp/out
$K learn $V $STATE >/tmp/learned 2>&1 &
learner=$!
sleep $((60 * minutes))
# Hundredths of a second, of all threads and ended children.
set -- $(cut -d ' ' -f 14-17 /proc/$learner/stat)
spent=$(($1 + $2 + $3 + $4))
echo "$spent hundredths of a second of processor time in $minutes minutes"
cat /tmp/learned
[ $spent -gt 0 ] && [ $spent -le $((30 * minutes)) ] && passed "at most 0.5 % of one CPU's" ||
    failed "at most 0.5 % of one CPU's" "$spent"
installed && passed "the group is installed" || failed "the group is installed" "$(cat /dev/kernlane)"
kill -TERM $learner
ended $learner && none_installed && passed "stopped, it takes everything back" ||
    failed "stopped, it takes everything back" "$(cat /tmp/learned)"
touch /tmp/enough
wait $loading
check "the load afterwards" load
exit 0
