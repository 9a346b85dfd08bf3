# Blocks are counted with more counters than there is static per-CPU memory for modules, and what a
# killed command leaves is named by the next.

rm -f /tmp/enough
(mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load >/dev/null 2>&1 ||
    echo "FAILED: the load while blocks are counted"; done) &
loading=$!
dmesg -c >/dev/null
ROOTS=net_rx_action,handle_mm_fault,sock_write_iter,ksys_read,kernel_clone,__x64_sys_exit_group
ROOTS=$(existing $ROOTS)
$K watch $V --root $ROOTS --time 1 --depth 2 -o /tmp/many.klp >/tmp/out 2>&1 ||
    failed "many roots are counted, three levels deep" "$(tail -n 3 /tmp/out)"
tail -n 1 /tmp/out
most=$(sed -n 's/.* blocks by \([0-9]*\) counters .*/\1/p' /tmp/out)
[ "${most:-0}" -gt 2048 ] &&
    passed "many roots are counted, three levels deep ($most counters)" ||
    failed "many roots are counted, three levels deep" "$most counters"
grep -q "level 2: counting" /tmp/out && passed "the last level, too" ||
    failed "the last level, too" "$(cat /tmp/out)"
dmesg | grep -q 'percpu: ' &&
    failed "there is per-CPU memory for them" "$(dmesg | grep -m 1 'percpu: ')" ||
    passed "there is per-CPU memory for them"
check "nothing is left of it" no_group
check_text "counting"

# A command that is killed leaves its counting group behind.
$K auto $V --root vfs_read --time 60 --depth 0 </dev/null >/tmp/auto 2>&1 &
auto=$!
await group_is_there || await group_is_there || failed "auto counts" "$(cat /tmp/auto)"
kill -9 $auto
wait $auto 2>/dev/null
left=$($K status | sed -n 's/^\(kernlane_[0-9]*\): installed.*/\1/p')
refused "watch names what a killed auto left" "installed already: $left\..*kernlane live undo" \
    $K watch $V --root vfs_read --time 1 -o /tmp/x.klp
refused "count, too" "installed already: $left\..*kernlane live undo" $K count vfs_read $V --time 1
refused "auto, too" "installed already: $left\..*kernlane live undo" $K auto $V --root vfs_read \
    --time 1
refused "apply, too" \
    "vfs_read cannot be replaced: .*installed are $left, and .kernlane live undo." \
    $K apply $V --function vfs_read
# What it counts is read with care.
name=$left
left=$left/$(sed -n "s/^group $left .* number //p" /dev/kernlane)
asked "counters of a group by another's number" $ENOENT 0 counters $name 1 0 0
[ "$(requests counters $left 1 0 0)" = "0 0" ] && passed "its first counter is read" ||
    failed "its first counter is read" "$(requests counters $left 1 0 0)"
asked "no counters" $EINVAL 0 counters $left 0 0 0
asked "more counters than there are" $EINVAL 0 counters $left 10001 0 0
asked "all counters there could be" $EINVAL 0 counters $left ffffffff 0 0
asked "a reserved word of counters" $EINVAL 0 counters $left 1 1 0
for place in 8 7ffffffffff8 ffffffff81000000 fffffffffffffff8; do
    asked "sums to be written at $place" $EFAULT 0 counters $left 1 0 $place; done
asked "counters of a group that is not there" $ENOENT 0 counters kernlane_9999 1 0 0
asked "counters of a name without an end" $EINVAL 0 counters \
    kernlane_890123456789012345678901234567890123456789012345678 1 0 0
touch /tmp/enough
wait $loading
check "undone" undo
check_text "a killed command"
