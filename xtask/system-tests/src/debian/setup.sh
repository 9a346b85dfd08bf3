#!/bin/sh
# The first process of the first boot of the image: installs both boot loaders.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb

install() {
    set -ex
    mount -o remount,rw /
    mount -t proc proc /proc || mountpoint /proc
    mount -t sysfs sys /sys || mountpoint /sys
    systemd-machine-id-setup
    grub-install --target=i386-pc /dev/vda
    update-grub
    mkfs.vfat -n ESP /dev/vda2
    modprobe vfat
    mount -t vfat /dev/vda2 /efi
    bootctl install --esp-path=/efi --make-entry-directory=yes --no-variables
    for kernel in /boot/vmlinuz-*; do
        version=${kernel#/boot/vmlinuz-}
        kernel-install add "$version" "$kernel" "/boot/initrd.img-$version"
    done
    rm /root/setup.sh
    echo "setup: done"
}

(install)
umount /efi
sync
# Everything is on the disk, although the shell's own file keeps the file system in use.
echo u >/proc/sysrq-trigger
echo o >/proc/sysrq-trigger
sleep 1000
