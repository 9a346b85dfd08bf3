# A vmlinux that is damaged is refused, and what must not be replaced is not, whoever asks: the
# program, and the module without it. Nothing is installed at the beginning nor at the end.

symbol() { awk -v name="$1" '$3 == name && $2 ~ /[tTdDbB]/ { print $1; exit }' /proc/kallsyms; }

# One bit of the table of exceptions: where control goes on after a fault in a function.
set -- $(cat /kl/ex-table-flip)
cp /kl/vmlinux /tmp/other
printf "\\$2" | dd of=/tmp/other bs=1 seek=$1 conv=notrunc 2>/dev/null
/kl/bad-pointers >/tmp/pointers
refused "a flipped bit of __ex_table" \
    "__ex_table differs from the running kernel's at .* ($3)" \
    $K apply --vmlinux /tmp/other --function $3
/kl/bad-pointers >/tmp/pointers2
check "bad pointers after that" cmp /tmp/pointers /tmp/pointers2
rm -f /tmp/other

# What vouches for the tables that memory does not show.
mkdir -p /var/lib/dpkg/info
listed() { echo "$1  kl/vmlinux" >/var/lib/dpkg/info/linux-image-guest-dbg.md5sums; }
listed 00000000000000000000000000000000
refused "a vmlinux that is not its package's" "not the file of the package linux-image-guest-dbg" \
    $K apply $V --function vfs_read
listed "$(md5sum </kl/vmlinux | cut -d ' ' -f 1)"
check "one that is" $K apply $V --function vfs_read --dry-run
grep -q 'vouches for' /tmp/out && failed "its package vouches for it" "$(cat /tmp/out)"
rm -r /var/lib/dpkg
check "one of no package" $K apply $V --function vfs_read --dry-run
grep -q 'neither a package nor a boot image vouches for /kl/vmlinux' /tmp/out &&
    passed "that nothing vouches for it is said" ||
    failed "that nothing vouches for it is said" "$(cat /tmp/out)"

# Addresses that are hidden from root.
hidden=$(cat /proc/sys/kernel/kptr_restrict)
echo 2 >/proc/sys/kernel/kptr_restrict
refused "addresses that are hidden" "sysctl kernel.kptr_restrict=1" $K apply $V --function vfs_read
echo $hidden >/proc/sys/kernel/kptr_restrict

# Names that do not exist are left out if the user says so.
refused "a name that does not exist" "no function no_such_thing" $K apply $V --function \
    no_such_thing,vfs_read
check "it is left out" $K apply $V --function no_such_thing,vfs_read --skip-unfit --dry-run
grep -q 'left out: .*no_such_thing' /tmp/out && passed "which is said" ||
    failed "which is said" "$(cat /tmp/out)"
$K apply $V --function no_such_thing --skip-unfit >/tmp/out 2>&1
[ $? = 2 ] && grep -q 'none of the functions is left' /tmp/out && passed "nothing else is left" ||
    failed "nothing else is left" "$(cat /tmp/out)"

# Kprobes' list of what must not be probed, as far as the tracer has sites there.
awk '{ print $2 }' /sys/kernel/debug/kprobes/blacklist | sort -u >/tmp/unprobed
awk 'NR == FNR { listed[$1]; next } $1 in listed { print $1 }' /tmp/unprobed \
    $T/available_filter_functions >/tmp/never
count=$(wc -l </tmp/never)
[ $count -ge 30 ] || failed "functions that must not be probed" "only $count with a site"
never=$(existing "$(tr '\n' , </tmp/never)")
$K apply $V --function $never --skip-unfit --dry-run >/tmp/out 2>&1
[ $? = 2 ] && grep -q 'no function is left that can be replaced' /tmp/out &&
    passed "none of $count functions that must not be probed is replaced" ||
    failed "functions that must not be probed" "$(grep '^jump' /tmp/out)"

# The module by itself: a request that is right but for the function. Of the two places where a
# jump may be, the function has one.
$K apply $V --function vfs_read,vfs_write --algorithm original --dry-run --keep-module \
    /tmp/copies.ko >/tmp/plan 2>&1 || failed "a plan" "$(cat /tmp/plan)"
insmod /tmp/copies.ko || failed "the copies" "not loaded"
copies=$(sed -n 's/^\(kernlane_[0-9]*\) .*/\1/p' /proc/modules)
base=$(sed 's/^0x//' /sys/module/$copies/sections/.text)
copy=$base
copies=$copies/$(number /tmp/plan)
module_says() { # FUNCTION: the result and the address.
    at=$(symbol $1)
    for offset in 5 9; do
        said=$(timeout 60 requests install $copies 1 0 $at $copy "$(requests packed $at $offset)")
        [ "${said% *}" = -22 ] || break
    done
    echo "$said"
}
module_refuses() { # NAME RESULT FUNCTION
    said=$(module_says $3)
    [ "$said" = "$2 $(symbol $3)" ] && passed "the module refuses $1 ($3)" ||
        failed "the module refuses $1 ($3)" "$said"
}
for name in $(echo $never | tr , ' ' | cut -d ' ' -f 1-12) \
    $(existing kprobe_int3_handler,get_kprobe | tr , ' '); do
    module_refuses "what must not be probed" -1 $name
done
for name in $(existing stop_machine,smp_call_function_many,on_each_cpu_cond_mask | tr , ' '); do
    module_refuses "what pokes text" -1 $name; done
for name in $(existing kthread,worker_thread,smpboot_thread_fn | tr , ' '); do
    module_refuses "what every sleeper has on its stack" -1 $name; done
for name in $(existing "$(cat /kl/entered)" | tr , ' '); do
    module_refuses "a function that is entered behind its jump's first byte" -1 $name; done

# BPF programs, also where the tracer's files are mounted nowhere.
/kl/fentry entry vfs_read >/tmp/bpf 2>&1 &
bpf=$!
await grep -q attached /tmp/bpf || failed "a BPF program" "$(cat /tmp/bpf)"
umount /sys/kernel/debug
umount $T
refused "a function with a BPF program, without tracefs" \
    "vfs_read belongs to the BPF trampoline bpf_trampoline_" $K apply $V --function vfs_read
[ -e $T/enabled_functions ] && failed "nothing is mounted for others" "$(mount)" ||
    passed "nothing is mounted for others"
copy=$(copy_in /tmp/plan vfs_read)
said=$(module_says vfs_read)
[ "${said% *}" = -87 ] && passed "the module refuses a function with a BPF program" ||
    failed "the module refuses a function with a BPF program" "$said"
kill $bpf
wait $bpf 2>/dev/null
mount -t tracefs tracefs $T
mount -t debugfs debugfs /sys/kernel/debug
rmmod ${copies%/*}

# BPF programs that come and go: what installs waits, or says what is in its way.
rm -f /tmp/no-bpf
(while [ ! -e /tmp/no-bpf ]; do
    /kl/fentry entry vfs_read >/tmp/bpf 2>&1 &
    usleep 150000
    kill $!
    wait $! 2>/dev/null
done) &
coming=$!
installed=0 owned=0 other=0
for try in 1 2 3 4 5 6 7 8; do
    if apply vfs_read,vfs_write,ksys_read $try >/tmp/out 2>&1; then installed=$((installed + 1))
    elif grep -q 'BPF' /tmp/out; then owned=$((owned + 1))
    else
        other=$((other + 1))
        failed "installing beside BPF programs" "$(tail -n 2 /tmp/out)"
    fi
    undo >/dev/null 2>&1
done
touch /tmp/no-bpf
wait $coming
[ $other = 0 ] && passed "BPF programs come and go ($installed of 8 installed, $owned refused)"
check "undone after that" undo
