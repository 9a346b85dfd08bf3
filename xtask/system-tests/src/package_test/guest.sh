#!/bin/sh
# What the test types in the guest:
#
#   guest.sh install    install the package beside this script, and boot again
#   guest.sh work       say which kernel runs, work in it, give the results to the test
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=$here/results
mkdir -p "$results"

install() {
    uname -r >"$results/before"
    release=$(dpkg-deb --contents "$here"/kernel.deb | sed -n 's|.* \./boot/vmlinuz-||p')
    # By GRUB's order, Debian's own kernel may be the newer one.
    entry="Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux $release"
    dpkg -i "$here"/kernel.deb && grub-reboot "$entry" && sync
}

# Every file of the packages' programs and libraries is what it should be.
verify() {
    cat /var/lib/dpkg/info/*.md5sums | grep -E '  (usr/)?(bin|sbin|lib)/' | sort -u |
        (cd / && md5sum --quiet -c -)
}

# Tar and gzip in a pipe give the same bytes on both sides.
archive() {
    direct=$(tar -C /usr -cf - bin sbin | sha256sum)
    piped=$(tar -C /usr -cf - bin sbin | gzip -1 | gzip -d | sha256sum)
    [ "$direct" = "$piped" ]
}

sorts() {
    [ "$(seq 50000 | sort -R | sort -n | sha256sum)" = "$(seq 50000 | sha256sum)" ]
}

# The modules of the package fit its kernel. systemd's options would give dummy no device.
modules() {
    modprobe loop && modprobe veth && modprobe dummy numdummies=1 || return 1
    for module in loop veth dummy; do
        grep -q "^$module " /proc/modules || return 1
    done
    ls -d /sys/class/net/dummy0 >/dev/null
}

work() {
    uname -r >"$results/release"
    cp /proc/cmdline /proc/kallsyms "$results"
    cmp "$here/notes" /sys/kernel/notes >"$results/notes" 2>&1 && echo same >>"$results/notes"
    for part in verify archive sorts modules; do
        $part >"$results/$part" 2>&1 && echo done >>"$results/$part"
    done
    systemctl --failed --no-legend --plain >"$results/failed"
    dmesg >"$results/dmesg"
}

case $1 in
install)
    if install; then echo "the package is installed"; else echo "the package is refused"; fi
    ;;
work)
    work
    tar -C "$results" -cf /dev/vdb . && sync
    echo "the results are there"
    ;;
esac
