# On processors whose mitigations change calls and returns: that these are in force, and that copies
# are right all the same.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
cd /sys/devices/system/cpu/vulnerabilities
check "the kernel says: $(cat /kl/mitigation)" grep -q -F "$(cat /kl/mitigation)" retbleed \
    spec_rstack_overflow
cd /tmp
for cycle in 1 2; do
    apply $FUNCTIONS $cycle >/tmp/out 2>&1 ||
        failed "installed, cycle $cycle" "$(tail -n 3 /tmp/out)"
    grep -v '^left out' /tmp/out
    check "load in the copies, cycle $cycle" load
    /kl/bad-pointers >/tmp/pointers
    (load >/tmp/out2 2>&1 || echo "FAILED: load during undo, cycle $cycle") &
    undo >/dev/null || failed "undone, cycle $cycle" "$(lsmod | grep kernlane_)"
    wait $!
    /kl/bad-pointers >/tmp/pointers2
    check "bad pointers in the copies, cycle $cycle" cmp /tmp/pointers /tmp/pointers2
    check "load after undo, cycle $cycle" load
done
rmmod kernlane && passed "the module can go" || failed "the module can go" "$(lsmod)"
exit 0
