#!/bin/sh
# A layout follows the load: nothing is installed at first, then what the load needs, and a round
# without a change leaves it. Prints a line a test.
. /kl/prelude.sh
. /kl/kept.sh
learn() { $K learn $V $STATE --sample 8 --time 0.5 --once "$@"; }
load
before=$(text)
(mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load >/dev/null 2>&1; done) &
loading=$!
check "a dry run says what it would do" learn --dry-run
tail -n 2 /tmp/out
none_installed && passed "and installs nothing" || failed "and installs nothing" "$(cat /dev/kernlane)"
check "a first round installs" learn
tail -n 3 /tmp/out
installed && passed "something is installed" || failed "something is installed" "$(tail -n 5 /tmp/out)"
$K keep $STATE --list >/tmp/out 2>&1 && passed "it is kept" || failed "it is kept" "$(cat /tmp/out)"
first=$(head -n 1 /dev/kernlane)
check "a second round" learn
tail -n 2 /tmp/out
[ "$(head -n 1 /dev/kernlane)" = "$first" ] && passed "leaves what still fits" ||
    failed "leaves what still fits" "$(tail -n 3 /tmp/out)"
touch /tmp/enough
wait $loading
check "undone" undo
check "the load afterwards" load
check_text "learned and undone"
rmmod kernlane && passed "the module can go" || failed "the module can go" "$(lsmod)"
exit 0
