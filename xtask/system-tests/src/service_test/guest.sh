#!/bin/sh
# What the test types in the guest, with the package, the modules and the vmlinux files beside it.
# Prints a line a test, and at last that the step is done.
#
#   guest.sh install     install the package, keep a group, enable the service
#   guest.sh working     the service has installed the group: try it, stop it, kill it, learn
#   guest.sh other       another kernel was booted, which the group does not fit
#   guest.sh installed   the group is installed
#   guest.sh crashed     the power was lost
#   guest.sh off         kernlane=off was on the command line
#   guest.sh purge       remove the package
here=$(cd "$(dirname "$0")" && pwd)
K="kernlane live"
PATIENCE=600
LEARNED=/var/lib/kernlane/keep/learned.json

passed() { echo "passed: $step: $1"; }
failed() { echo "FAILED: $step: $1: $2"; }
check() { # NAME COMMAND…
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then passed "$name"; else failed "$name" "$(tail -n 3 /tmp/out)"; fi
}
await() { # COMMAND…
    left=$PATIENCE
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 1
    done
}

# Reads, writes and looks for files, and compares.
load() {
    dd if=/root/data of=/root/copy bs=3000 2>/dev/null
    cmp /root/data /root/copy || return 1
    [ "$(cat /root/data | cat | md5sum)" = "$(md5sum </root/data)" ] || return 1
    find /proc/self /sys/kernel/mm -xdev >/dev/null 2>&1
    return 0
}
busy() {
    rm -f /tmp/enough
    (while [ ! -e /tmp/enough ]; do load || echo wrong >>/root/wrong; done) &
    loading=$!
}
idle() {
    touch /tmp/enough
    wait $loading
    [ ! -e /root/wrong ] || failed "the load" "$(cat /root/wrong)"
}

installed() { grep -q '^group .* installed' /dev/kernlane; }
none_installed() { [ ! -e /dev/kernlane ] || ! installed; }
journal() { journalctl --boot --no-pager --output cat --unit kernlane "$@"; }
says() { # WORDS
    journal | grep -q "$1"
}
# The service ended as it should: nothing is installed, and the journal says why.
left_as_it_is() { # WORDS
    await says "$1" && passed "the journal says why" || failed "the journal says why" "$(journal)"
    await none_active || failed "the service ends" "$(systemctl status --no-pager kernlane)"
    none_installed && passed "nothing is installed" || failed "nothing is installed" "$(journal)"
}
none_active() { ! systemctl is-active --quiet kernlane; }
none_failed() {
    failing=$(systemctl --failed --no-legend --plain)
    [ -z "$failing" ] && passed "no unit failed" || failed "no unit failed" "$failing $(journal)"
}
is_installed() {
    await installed && passed "the service has installed the $(grep -m 1 '^group' /dev/kernlane)" ||
        failed "the service has installed the group" "$(journal)"
    for n in 1 2 3; do load || failed "the load" "$n"; done
    check "the service is active" systemctl is-active kernlane
}

install() {
    dpkg -i "$here"/*.deb >/tmp/out 2>&1 && passed "the package" ||
        failed "the package" "$(tail -n 5 /tmp/out)"
    for module in "$here"/*.ko; do
        release=$(basename "$module" .ko)
        mkdir -p /lib/modules/$release/updates/dkms /usr/lib/debug/boot
        mv "$module" /lib/modules/$release/updates/dkms/kernlane.ko
        mv "$here/vmlinux-$release" /usr/lib/debug/boot/
        depmod $release
    done
    for unit in kernlane kernlane-learn; do
        [ "$(systemctl is-enabled $unit)" = disabled ] && passed "$unit waits to be enabled" ||
            failed "$unit waits to be enabled" "$(systemctl is-enabled $unit)"
    done
    check "systemd finds nothing wrong in the units" systemd-analyze verify --man=no \
        kernlane.service kernlane-learn.service
    dd if=/dev/urandom of=/root/data bs=4096 count=300 2>/dev/null
    check "the module is loaded" modprobe kernlane
    busy
    check "hot blocks are counted" $K watch --root ksys_read,ksys_write,do_sys_openat2 --time 1 \
        --depth 2 -o /root/hot.klp
    idle
    check "a group is installed and kept" $K apply --profile /root/hot.klp \
        --root ksys_read,ksys_write --threshold 1 --skip-unfit --inline --keep
    check "the service is enabled" systemctl enable --now kernlane
    is_installed
    none_failed
}

working() {
    is_installed
    none_failed
    check "stopped" systemctl stop kernlane
    none_installed && passed "stopped, it takes everything back" ||
        failed "stopped, it takes everything back" "$(journal)"
    none_failed
    check "started" systemctl start kernlane
    is_installed
    before=$(systemctl show --value --property MainPID kernlane)
    kill -KILL "$before"
    other() {
        now=$(systemctl show --value --property MainPID kernlane)
        [ "$now" != 0 ] && [ "$now" != "$before" ]
    }
    await other && passed "killed, it is started again" ||
        failed "killed, it is started again" "$(journal)"
    is_installed
    check "learning is enabled" systemctl enable --now kernlane-learn
    busy
    # A round that changes nothing is silent, but it notes what it has sampled.
    await test -s $LEARNED && passed "a round of learning: $(head -c 80 $LEARNED)" ||
        failed "a round of learning" "$(journalctl --boot --no-pager --unit kernlane-learn)"
    idle
    check "learning is active" systemctl is-active kernlane-learn
    check "it is disabled" systemctl disable --now kernlane-learn
    is_installed
    none_failed
}

other() {
    left_as_it_is 'left as it is'
    none_failed
}

installed_again() {
    is_installed
    none_failed
}

crashed() {
    left_as_it_is 'ended without order'
    none_failed
    check "until somebody says so" $K keep --retry
    check "the service is started" systemctl restart kernlane
    is_installed
}

off() {
    mv /boot/grub/grub.cfg.was /boot/grub/grub.cfg
    none_installed && passed "nothing is installed" || failed "nothing is installed" "$(journal)"
    none_active && passed "the service is not active" || failed "the service is not active" yes
    none_failed
    check "it can be started by hand" $K restore
    installed && passed "and installs the group" || failed "and installs the group" "$(tail /tmp/out)"
    check "undone" $K undo
}

purge() {
    is_installed
    # By hand, beside the service.
    check "another group" $K apply --profile /root/hot.klp --root do_sys_openat2 --threshold 1 \
        --skip-unfit
    dpkg --purge kernlane >/tmp/out 2>&1 && passed "the package goes" ||
        failed "the package goes" "$(tail -n 5 /tmp/out)"
    none_installed && passed "nothing is installed" || failed "nothing is installed" "$(journal)"
    for path in /usr/bin/kernlane /lib/systemd/system/kernlane.service /var/lib/kernlane \
        /etc/systemd/system/multi-user.target.wants/kernlane.service; do
        [ ! -e $path ] && passed "$path is gone" || failed "$path is gone" "$(ls -lR $path)"
    done
    check "the load afterwards" load
    check "the module can go" rmmod kernlane
    none_failed
}

step=$1
case $step in
installed) installed_again ;;
*) $step ;;
esac
dmesg >/root/dmesg
sync
echo "step $step: done"
