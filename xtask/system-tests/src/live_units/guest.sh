#!/bin/sh
# What the test types in a guest with systemd:
#
#   guest.sh keep       install what a package installs, keep a group, enable the units
#   guest.sh booted     what the units did at boot, and what systemctl does
#   guest.sh off        the kernel was started with kernlane=off
#
# Prints a line for each test.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
release=$(uname -r)
# Seconds. An emulated machine is slow.
patience=600

passed() { echo "passed: $1"; }
failed() { echo "FAILED: $1: $2"; }
check() { # NAME COMMAND…
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then passed "$name"; else failed "$name" "$(tail -n 3 /tmp/out)"; fi
}
await() { # COMMAND…
    left=$patience
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 1
    done
}
installed() { grep -q '^group .* installed' /dev/kernlane; }
none_installed() { ! installed; }
active() { systemctl -q is-active "$1"; }
guarded() { active kernlane && installed; }
# Reads, writes and searches, and compares.
load() {
    dd if=/usr/bin/kernlane of=/tmp/copy bs=3000 2>/dev/null && cmp /usr/bin/kernlane /tmp/copy &&
        find /proc/self /sys/kernel/mm -xdev >/dev/null 2>&1
    [ "$(cat /tmp/copy | md5sum)" = "$(md5sum </usr/bin/kernlane)" ]
}

keep() {
    install -m 755 "$here/kernlane" /usr/bin/kernlane
    install -D -m 644 "$here/vmlinux" "/usr/lib/debug/boot/vmlinux-$release"
    install -D -m 644 "$here/kernlane.ko" "/lib/modules/$release/extra/kernlane.ko"
    cp -r "$here"/systemd/. /lib/systemd/system/
    depmod && systemctl daemon-reload
    check "the module is loaded" modprobe kernlane
    (while [ ! -e /tmp/enough ]; do load; done) >/dev/null 2>&1 &
    roots=ksys_read,ksys_write,do_sys_openat2
    check "hot blocks are counted" kernlane live watch --root $roots --time 1 --depth 3 \
        -o /tmp/hot.klp
    touch /tmp/enough
    wait
    check "a group is installed" kernlane live apply --profile /tmp/hot.klp --root $roots \
        --threshold 1 --skip-unfit --inline
    check "it is kept" kernlane live keep
    check "the units are enabled" systemctl enable kernlane kernlane-learn
    sync
}

booted() {
    await guarded
    check "at boot the unit installs the group, and guards it" guarded
    check "the load in it" load
    check "the unit that learns is active" await active kernlane-learn
    sleep 20
    check "and stays active" active kernlane-learn
    systemctl stop kernlane-learn
    pid=$(systemctl show -p MainPID --value kernlane)
    kill -KILL "$pid"
    another() { [ "$(systemctl show -p MainPID --value kernlane)" != "$pid" ] && guarded; }
    check "killed, the guard is started again" await another
    check "the group is still installed" installed
    check "the unit stops" systemctl stop kernlane
    check "then nothing is installed" none_installed
    check "the load afterwards" load
    check "it starts" systemctl start kernlane
    check "and installs the group again" await guarded
    check "no unit has failed" test -z "$(systemctl --failed --no-legend --plain)"
    journalctl -b -u kernlane -u kernlane-learn --no-pager -o cat | sed 's/^/journal: /'
    denied=$(journalctl -b -u kernlane -u kernlane-learn --no-pager -o cat |
        grep -i 'permission denied\|not permitted')
    check "nothing is denied to the units" test -z "$denied"
    sed -i 's/no_timer_check/no_timer_check kernlane=off/' /boot/grub/grub.cfg
    sync
}

off() {
    check "the kernel was started with kernlane=off" grep -q -w kernlane=off /proc/cmdline
    check "the units did not start" test "$(systemctl is-active kernlane kernlane-learn |
        sort -u)" = inactive
    check "no module is loaded" test ! -e /dev/kernlane
    check "no unit has failed" test -z "$(systemctl --failed --no-legend --plain)"
}

"$1"
echo "units: $1 is done"
