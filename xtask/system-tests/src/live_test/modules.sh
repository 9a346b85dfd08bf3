#!/bin/sh
# Functions of a module are counted, measured, replaced and kept; the module stays as long as its
# copies.
. /kl/prelude.sh
serve
insmod /kl/kernlane.ko || failed "the module is loaded" "$?"
M="--modules /kernlane/modules"
head -c 8388608 /dev/urandom >/tmp/data
mknod /tmp/loop b 7 0 2>/dev/null
at() { sed 's/^0x//' /sys/module/$1/sections/.text; }
come() { insmod /kernlane/modules/loop.ko && losetup /tmp/loop /tmp/data; }
go() { losetup -d /tmp/loop && rmmod loop; }
check "a module comes" come
# Each function of it with a name of its own.
names() {
    awk '$4 == "[loop]" && $2 ~ /^[tT]$/ && $3 !~ /[.]cold|^__pfx|_module$|_init$|_exit$/ { n[$3]++ }
        END { for (name in n) if (n[name] == 1) { printf "%s%s [loop]", comma, name; comma = "," } }' \
        /proc/kallsyms
}
NAMES=$(names)
copied() { # SIZE: through the module, with the file as it is
    dd if=/tmp/loop of=/tmp/copied bs=$1 iflag=direct 2>/dev/null && cmp /tmp/copied /tmp/data
}
written() { dd if=/tmp/more of=/tmp/loop bs=4096 oflag=direct conv=fsync 2>/dev/null; }
head -c 1048576 /dev/urandom >/tmp/more
replaced() { # the number of the module's functions that are replaced
    $K status --json | grep -c '"entry"'
}
is_used() { ls /sys/module/loop/holders | grep -q '^kernlane_'; }
stays() { ! rmmod loop 2>/dev/null && ! rmmod -f loop 2>/dev/null && lsmod | grep -q '^loop '; }

check "its functions are replaced" $K apply $V $M --function "$NAMES" --skip-unfit --algorithm random \
    --seed 3
[ $(replaced) -ge 30 ] && passed "$(replaced) of them" || failed "30 of them" "$($K status)"
check "it is used by its copies" is_used
check "it reads right" copied 4096
check "it writes" written
dd if=/tmp/data bs=1048576 count=1 2>/dev/null | cmp - /tmp/more && passed "what it was told" ||
    failed "what it was told" "other data"
check "it is let go" losetup -d /tmp/loop
check "but stays with its copies, also by force" stays
check "it comes back to its file" losetup /tmp/loop /tmp/data
check "undone" $K undo
check "then it goes" go
check "it comes again" come

# Counted and measured, with what it calls in the kernel.
(while [ ! -e /tmp/enough ]; do copied 4096 || echo "FAILED: it reads"; done) &
loading=$!
check "an invocation is measured" $K time $V $M "loop_queue_rq [loop],vfs_read" --time 1
grep -q '[1-9].* loop_queue_rq \[loop\]$' /tmp/out && passed "with its module's name" ||
    failed "with its module's name" "$(cat /tmp/out)"
check "blocks are counted" $K count $V $M "loop_queue_rq [loop]" --time 1
grep -q '^[89ab].* [1-9][0-9]*$' /tmp/out && passed "by addresses that last" ||
    failed "by addresses that last" "$(cat /tmp/out)"
check "and those of what it calls" $K watch $V $M --root "loop_queue_rq,loop_workfn [loop]" --time 1 \
    -o /tmp/loop.klp
check "they are laid out" $K apply $V $M --profile /tmp/loop.klp --share 99.9 --skip-unfit --inline \
    --keep
of_both() { $K status >/tmp/out && grep -q '  loop_' /tmp/out && grep -q '  vfs_iter\|  blk_mq' /tmp/out; }
check "functions of the module and of the kernel" of_both
check "undone below the load" $K undo
check "20 cycles below the load" $K apply $V $M --profile /tmp/loop.klp --share 99.9 --skip-unfit \
    --cycles 20
touch /tmp/enough
wait $loading
rm /tmp/enough

# At a later boot the module lies elsewhere, or is not there.
before=$(at loop)
check "it goes" go
check "another module takes its place" insmod /kl/cookies.ko
check "it comes" come
[ "$(at loop)" != "$before" ] && passed "where it was not" || failed "where it was not" "$before"
check "what was kept is installed" $K restore $V $M
check "for both" of_both
check "it reads right there" copied 65536
check "undone" $K undo
check "it goes with nothing installed" go
rmmod cookies
$K restore $V $M >/tmp/out 2>&1
grep -q "left out: loop_queue_rq \[loop\]" /tmp/out && passed "without it, its functions are left out" ||
    failed "without it, its functions are left out" "$(cat /tmp/out)"
check "the others are installed" sh -c "$K status | grep -q 'functions, '"
check "undone" $K undo
$K apply $V $M --profile /tmp/loop.klp --share 99.9 --skip-unfit --dry-run >/tmp/out 2>&1
grep -q "counts of the module loop (.*) are left out" /tmp/out &&
    passed "and its counts of a profile" || failed "and its counts of a profile" "$(cat /tmp/out)"

# While a program reads it, it stays; the program may die.
check "it comes" insmod /kernlane/modules/loop.ko
$K watch $V $M --root "loop_queue_rq [loop]" --time 60 -o /tmp/none.klp >/dev/null 2>&1 &
watcher=$!
check "it is counted" await is_used
check "it stays meanwhile" stays
kill -9 $watcher
wait $watcher 2>/dev/null
check "and longer, if nobody takes the copies back" stays
check "which undo does" await $K undo
check "then it goes" rmmod loop

# It comes and goes while others try to replace it.
(while [ ! -e /tmp/enough ]; do insmod /kernlane/modules/loop.ko; usleep 300000; rmmod loop; done) >/dev/null 2>&1 &
coming=$!
installed=0
for n in $(seq 25); do
    $K apply $V $M --function "loop_queue_rq [loop],vfs_read" --skip-unfit >/tmp/out 2>&1
    case $? in
    0) grep -q 'of module\|left out' /tmp/out || installed=$((installed + 1)) ;;
    *) grep -q 'two modules lie at one address' /tmp/out || failed "it comes and goes" "$(cat /tmp/out)" ;;
    esac
    $K undo >/tmp/out 2>&1 || failed "taken back" "$(cat /tmp/out)"
done
touch /tmp/enough
wait $coming
passed "it came and went; its functions were replaced $installed times of 25"
rmmod loop 2>/dev/null

# A driver under load: two network cards, wired to each other, one in a namespace of its own.
for module in failover net_failover virtio_net; do
    [ ! -e /kernlane/modules/$module.ko ] || check "$module" insmod /kernlane/modules/$module.ko
done
unshare -n sleep 1000 &
other=$!
check "a namespace" await sh -c "[ \$(readlink /proc/$other/ns/net) != \$(readlink /proc/self/ns/net) ]"
there() { nsenter -t $other -n "$@"; }
wired() {
    ip link set eth1 netns $other && ip addr add 10.7.0.1/24 dev eth0 && ip link set eth0 up &&
        there ip addr add 10.7.0.2/24 dev eth1 && there ip link set eth1 up
}
check "two cards" await ip link show eth1
check "are wired" wired
check "and reach each other" await ping -c 1 -W 1 10.7.0.2
sent() { rm -f /tmp/received; wget -q -O /tmp/received http://10.7.0.2/data && cmp /tmp/received /tmp/data; }
check "a server" there httpd -p 10.7.0.2:80 -h /tmp
check "what is sent arrives" sent
(while [ ! -e /tmp/enough ]; do ping -c 20 -A -s 1400 -q 10.7.0.2 >/dev/null || echo "FAILED: lost"; done) &
loading=$!
check "the driver is counted" $K watch $V $M --root "virtnet_poll [virtio_net],start_xmit [virtio_net]" \
    --time 1 -o /tmp/net.klp
check "the driver and the network are replaced" $K apply $V $M --profile /tmp/net.klp --share 99.9 \
    --skip-unfit --inline
$K status | grep -q '  virtnet_poll' && passed "its hot path" || failed "its hot path" "$($K status)"
check "what is sent arrives through the copies" sent
rmmod virtio_net 2>/dev/null && failed "the driver stays" "gone" || passed "the driver stays"
check "undone below the load" $K undo
check "20 cycles below the load" $K apply $V $M --profile /tmp/net.klp --share 99.9 --skip-unfit \
    --cycles 20
touch /tmp/enough
wait $loading
rm /tmp/enough
check "what is sent arrives afterwards" sent
killall httpd
kill $other
wait $other 2>/dev/null
check "the driver goes" await rmmod virtio_net

# Requests for functions of a module that the file does not hold, or that is gone.
asked() { # NAME RESULT ADDRESS REQUEST…
    what=$1 wanted="$2 $3"
    shift 3
    said=$(timeout 60 requests "$@" 2>&1)
    [ "$said" = "$wanted" ] && passed "malformed: $what" ||
        failed "malformed: $what" "$said, not $wanted"
}
EPERM=-1 ENOENT=-2 EINVAL=-22
check "it comes" insmod /kernlane/modules/loop.ko
asked "no module there" $ENOENT 0 hold loop 0
asked "the kernel's text" $ENOENT 0 hold loop $(awk '$3 == "_stext" { print $1 }' /proc/kallsyms)
asked "another module" $ENOENT 0 hold loop $(at kernlane)
asked "Kernlane itself" $EPERM 0 hold kernlane $(at kernlane)
asked "no name" $EINVAL 0 hold "" $(at loop)
asked "a name without an end" $EINVAL 0 hold \
    kernlane_890123456789012345678901234567890123456789012345678 $(at loop)
asked "twice is once" 0 0 hold loop $(at loop)
check "a file that is closed holds nothing" rmmod loop
check "it comes" insmod /kernlane/modules/loop.ko
entry=$(awk '$3 == "loop_queue_rq" && $4 == "[loop]" { print $1 }' /proc/kallsyms)
asked "measuring what is not held" $EINVAL 0 time 1 10 0 $entry
$K apply $V $M --function "loop_queue_rq [loop]" --dry-run --keep-module /tmp/copies.ko >/tmp/plan 2>&1 ||
    failed "a plan" "$(cat /tmp/plan)"
number=$(sed -n 's/^module .*, number \([0-9a-f]*\): .*/\1/p' /tmp/plan)
insmod /tmp/copies.ko 2>/dev/null && failed "copies that no program loads" "loaded" ||
    passed "copies that no program loads are not loaded"
dmesg | grep -q 'of a module that no program works on' && passed "the kernel's log says why" ||
    failed "the kernel's log says why" "$(dmesg | tail -n 3)"
requests keep loop $(at loop) >/tmp/out &
keeper=$!
check "a program works on it" await grep -q '^0 0' /tmp/out
check "its copies" insmod /tmp/copies.ko
kill $keeper
wait $keeper 2>/dev/null
module=$(sed -n 's/^\(kernlane_[0-9]*\) .*/\1/p' /proc/modules)
check "use what they copy" is_used
check "which stays when the program is gone" stays
asked "copies hold no further copies" $EPERM 0 hold $module $(at $module)
jump=$(awk '$1 == "jump" { print $2 }' /tmp/plan)
patch_at=$((0x$jump - 0x$entry))
copy=$(awk '$1 == "jump" { sub(/.*[+]0x/, "", $NF); print $NF }' /tmp/plan)
asked "a function of a module that the file does not hold" $EPERM 0 install $module/$number 1 0 \
    $entry $(printf %x $((0x$(at $module) + 0x$copy))) $(requests packed $entry $patch_at)
check "without the copies" rmmod $module
check "it goes" rmmod loop
insmod /tmp/copies.ko 2>/dev/null && failed "copies of a module that is gone" "loaded" ||
    passed "copies of a module that is gone are not loaded"
check "Kernlane's module goes" rmmod kernlane
