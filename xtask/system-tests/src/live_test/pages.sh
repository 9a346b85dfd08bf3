#!/bin/sh
# Copies lie in large pages where the kernel can place modules so, and nothing of that stays.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
dmesg -c >/dev/null
FUNCTIONS=$(existing vfs_read,vfs_write,ksys_read,ksys_write,rw_verify_area)
apply() { $K apply $V --function $FUNCTIONS --algorithm original --skip-unfit "$@"; }
undo() { $K undo >/tmp/undone 2>&1 || failed "undone" "$(cat /tmp/undone)"; }
pages() { awk '$1 == "group" { for (n = 2; n < NF; n++) if ($n == "page") print $(n + 1) }' /dev/kernlane; }
# Whether something of ours is at the kernel's function that allocates.
diverted() { grep -q '^execmem_alloc ' $T/enabled_functions; }

case "$(sed -n 2p /dev/kernlane)" in
'page 2097152') wanted=2097152 said='2 MB' ;;
*) wanted= said= ;;
esac
echo "modules can be placed in: $(sed -n 2p /dev/kernlane)"
check "installed" apply
[ -z "$said" ] || grep -q "^the copies lie in pages of $said$" /tmp/out &&
    passed "$(grep '^the copies lie in' /tmp/out)" || failed "pages of $said" "$(cat /tmp/out)"
[ -z "$wanted" ] || [ "$(pages)" = $wanted ] && passed "as the page tables say" ||
    failed "the page tables" "$(pages)"
$K status | grep -q "in pages of ${said:-[24]}" && passed "status says so" ||
    failed "status says so" "$($K status | head -n 1)"
check "the load in the copies" load
diverted && failed "nothing is diverted" "$(grep execmem $T/enabled_functions)" ||
    passed "nothing is diverted any more"
# A kprobe decodes its function: the filling is none of it.
last=$(awk '$3 ~ /[.]kernlane/ { print $1, $3 }' /proc/kallsyms | sort | awk 'END { print $2 }')
grep -q ' kernlane_filling' /proc/kallsyms && passed "the filling has a symbol" ||
    failed "the filling has a symbol" "$last"
undo
check "with small pages" apply --small-pages
[ "$(pages)" = 4096 ] || [ -z "$wanted" ] && passed "they are small" || failed "they are small" "$(pages)"
undo

[ -n "$wanted" ] || exit 0
# Under load, again and again: each time large pages, and all memory comes back.
free() { awk '$1 == "MemFree:" { print $2 }' /proc/meminfo; }
apply --cycles 2 >/dev/null 2>&1
before=$(free)
rm -f /tmp/enough
(mkdir -p /tmp/busy; cd /tmp/busy; while [ ! -e /tmp/enough ]; do load || echo "FAILED: the load"; done) &
loading=$!
check "20 cycles under load" apply --cycles 20
touch /tmp/enough
wait $loading
sleep 2
after=$(free)
[ $((before - after)) -lt 20000 ] && passed "no page is lost: $before, then $after KB are free" ||
    failed "pages are lost" "$before, then $after KB are free"
# Another module is loaded as ever, also while a command is killed that loads copies.
for round in 1 2 3 4 5 6; do
    apply >/dev/null 2>&1 &
    sleep 0.$round
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    diverted && failed "a killed command leaves nothing diverted" "round $round"
    undo
done
passed "killed commands leave nothing diverted"
rmmod kernlane && passed "the module goes" || failed "the module goes" "$(lsmod)"
check_log() { dmesg | grep -E 'WARNING|BUG|Oops|Call Trace' >/tmp/log; [ ! -s /tmp/log ]; }
check_log && passed "the log is clean" || failed "the log is clean" "$(dmesg | tail -n 20)"
exit 0
