#!/bin/sh
# Makes the disk of a minimal Debian 12 with two kernels. Its first boot, with setup.sh as its first
# process, installs the boot loaders.
#
#   disk.sh SCRIPT <SOURCES
#
# SCRIPT is setup.sh. SOURCES are lines of a sources.list. The results are in the working directory:
# disk.raw, and boot/ with both kernels.
set -eu
setup=$1
megabytes=1400
# The sectors at which the system's partition begins.
begin=135168

# Small initial file systems: only what the guest's disk needs.
# shellcheck disable=SC2016 # mmdebstrap expands $1
mmdebstrap --quiet --mode=root --variant=minbase \
    --include=systemd-sysv,udev,dbus,kmod,linux-image-cloud-amd64,linux-image-6.12-cloud-amd64 \
    --include=grub-pc,systemd-boot,dosfstools,kexec-tools,e2fsprogs,binutils \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-confold \
    --dpkgopt=path-exclude=/usr/share/doc/* --dpkgopt=path-exclude=/usr/share/man/* \
    --dpkgopt=path-exclude=/usr/share/locale/* \
    --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"
        echo MODULES=list >"$1/etc/initramfs-tools/conf.d/small"
        printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules"
        echo grub-pc grub-pc/install_devices_empty boolean true |
            chroot "$1" debconf-set-selections' \
    bookworm tree -

cp -r tree/boot boot
install -m 755 "$setup" tree/root/setup.sh
echo 'LABEL=system / ext4 defaults,noatime 0 1' >tree/etc/fstab
echo ab >tree/etc/hostname
mkdir tree/efi
# Other work on this machine makes the guest slow: systemd must not give up, and the kernel must not
# test whether the timer's interrupts come in time.
options='console=ttyS0 mitigations=off no_timer_check systemd.default_timeout_start_sec=900'
sed -i "s/^GRUB_TIMEOUT=.*/GRUB_TIMEOUT=0/
    s/^GRUB_CMDLINE_LINUX=.*/GRUB_CMDLINE_LINUX=\"$options\"/" tree/etc/default/grub
echo "root=LABEL=system ro quiet $options" >tree/etc/kernel/cmdline

# Root is logged in on the serial line, on which the test types.
login=tree/etc/systemd/system/serial-getty@ttyS0.service.d
mkdir "$login"
printf '[Service]\nExecStart=\nExecStart=-/sbin/agetty --autologin root --noclear %%I dumb\n' \
    >"$login/autologin.conf"
# What takes time in an emulated machine, and is not needed.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-timesyncd.service getty@tty1.service; do
    ln -sf /dev/null "tree/etc/systemd/system/$unit"
done

# A BIOS boots GRUB from the first partition; UEFI boots systemd-boot from the second one.
truncate -s "${megabytes}M" disk.raw
sfdisk -q disk.raw <<END
label: gpt
start=2048, size=2048, type=21686148-6449-6E6F-744E-656564454649
start=4096, size=131072, type=U
start=$begin, type=L
END
mke2fs -q -t ext4 -L system -d tree -E offset=$((begin * 512)) disk.raw \
    $((megabytes * 1024 - begin / 2 - 1024))k
rm -rf tree
