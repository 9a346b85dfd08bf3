#!/bin/sh
# What the test types in the guest:
#
#   guest.sh begin METHOD    plan a run, then begin it
#   guest.sh watch           wait until the run has ended
#   guest.sh measuring       wait until a benchmark runs
#   guest.sh resume | stop   what a user types
#   guest.sh ignore          from now on GRUB's entry for the next boot is lost at every shutdown
#   guest.sh end             give the results to the test
set -u
unit=kernlane-bench-ab.service
directory=/var/lib/ab
results=/root/results
mkdir -p $results

bench() {
    /usr/local/bin/kernlane-bench --ab $directory "$@"
}

# What a run must leave as it was.
facts() {
    uname -r
    sha256sum /boot/grub/grub.cfg
    grub-editenv - list | grep -v '^next_entry=$'
    find /etc/systemd/system | sort
    echo "kexec: $(cat /sys/kernel/kexec_loaded)"
    [ -d /sys/firmware/efi ] || return 0
    sha256sum /efi/loader/loader.conf /efi/loader/entries/*
    for variable in BootOrder LoaderEntryDefault LoaderEntryOneShot; do
        sha256sum /sys/firmware/efi/efivars/$variable-* 2>/dev/null
    done
    return 0
}

# How this method names the kernel of a release.
kernel() {
    case $method in
    kexec) echo "/boot/vmlinuz-$1" ;;
    grub) echo "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux $1" ;;
    systemd-boot) echo "$(cat /etc/machine-id)-$1.conf" ;;
    esac
}

begin() {
    method=$1
    before=$(uname -r)
    after=$(cd /boot && ls -d vmlinuz-* | sed 's/vmlinuz-//' | grep -vxF "$before")
    [ "$(echo "$after" | wc -l)" = 1 ] || { echo "not two kernels: $after"; return 1; }
    set -- --kernels "$(kernel "$before")" "$(kernel "$after")" --boot-by "$method" --boots 2 \
        --settle 10 --time 5 --filter call/getpid --filter pipe/switch
    facts >$results/before
    bench "$@" --dry-run >$results/plan || return 1
    facts >$results/planned
    find / -xdev -newer $results/before ! -path '/root*' ! -path '/var/log*' >$results/touched
    seen
    bench "$@"
}

# Notes this boot and what the kernel says of itself.
seen() {
    notes=$(od -An -v -tx1 /sys/kernel/notes | tr -d ' \n')
    echo "$(uname -r) $(cat /proc/sys/kernel/random/boot_id) $notes" >>$results/boots
    sync
}

is_running() {
    [ -e /etc/systemd/system/$unit ] || systemctl -q is-active $unit
}

case $1 in
begin) begin "$2" || echo "the run has failed" ;;
watch)
    seen
    while is_running; do sleep 1; done
    echo "the run has ended"
    ;;
measuring)
    until grep -qs -- --worker /proc/[0-9]*/cmdline; do sleep 0.2; done
    echo "a benchmark runs"
    ;;
resume)
    bench --resume || echo "the run has failed"
    is_running || echo "the run has ended"
    ;;
stop)
    seen
    bench --stop || echo "the run has failed"
    is_running || echo "the run has ended"
    ;;
ignore)
    cat >/etc/systemd/system/ignore.service <<END
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=true
ExecStop=grub-editenv - unset next_entry
[Install]
WantedBy=multi-user.target
END
    systemctl enable --now ignore.service && echo "the entry will be ignored"
    ;;
end)
    facts >$results/after
    journalctl -o cat -u $unit >$results/journal
    cp -r $directory/. $results 2>/dev/null
    tar -cf /dev/vdb -C $results . && sync && echo "the results are there" && poweroff
    ;;
esac
