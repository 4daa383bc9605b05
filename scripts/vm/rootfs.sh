#!/usr/bin/env bash
# Makes the root file system of the test machine: Debian with systemd and what a node under test needs.
# rootfs.sh DIRECTORY puts root.img, vmlinuz and initrd there. This file is the key of the cache: change it, and the next
# `cargo xtask vm` makes a new one (about two minutes).
set -euo pipefail
out=$1
export PATH="$PATH:/usr/sbin:/sbin"

SUITE=bookworm
PACKAGES=(
    systemd systemd-sysv dbus udev linux-image-cloud-amd64 initramfs-tools kmod procps iproute2 iptables e2fsprogs
    containerd runc containernetworking-plugins busybox-static docker-registry apparmor
    criu nfs-kernel-server nfs-common python3
)
IMAGE_SIZE=2500M

# From where this machine has its own packages.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
work=$(mktemp -d "$out/make.XXXXXX")
root=$work/root
# debootstrap mounts /proc in there and, ended early, leaves it: whoever copies or removes the directory would go through it.
clean_up() {
    umount --lazy "$root/proc" "$root/sys" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# Services shall not start while the packages are set up, nor wait for a network afterwards.
include=$(IFS=,; echo "${PACKAGES[*]}")
debootstrap --variant=minbase --include="$include" "$SUITE" "$root" $mirror >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" "$root/debootstrap/debootstrap.log" >&2; echo "rootfs: debootstrap failed" >&2; exit 1; }

# An initrd with just what finds the disk: emulated CPUs unpack slowly.
sed -i 's/^MODULES=.*/MODULES=list/' "$root/etc/initramfs-tools/initramfs.conf"
printf '%s\n' virtio_pci virtio_blk >>"$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u >>"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
cp "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp "$root"/boot/initrd.img-* "$work/initrd"

echo node >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 node\n' >"$root/etc/hosts"
echo 'nameserver 192.0.2.53' >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
: >"$root/etc/fstab"
for unit in containerd.service docker-registry.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer getty@tty1.service serial-getty@ttyS0.service \
    systemd-pstore.service systemd-random-seed.service nfs-blkmap.service rpcbind.service rpcbind.socket \
    rpc-statd-notify.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

# A server that does without the port mapper; the tests that need it start it.
rm -f "$root"/etc/systemd/system/*.wants/nfs-server.service "$root"/etc/systemd/system/*.wants/nfs-client.target
mkdir -p "$root/etc/nfs.conf.d"
printf '[nfsd]\nthreads=2\nvers3=n\n' >"$root/etc/nfs.conf.d/tests.conf"

# What is run is on the second disk, so that it can change without a new root file system.
cat >"$root/etc/systemd/system/mainstay-tests.service" <<'UNIT'
[Unit]
Description=mainstay's tests
SuccessAction=poweroff-force
FailureAction=poweroff-force
After=systemd-udev-settle.service systemd-modules-load.service dbus.service
Wants=systemd-udev-settle.service

[Service]
Type=oneshot
ExecStartPre=/bin/mkdir -p /payload
ExecStartPre=/bin/mount LABEL=payload /payload
ExecStart=/payload/guest.sh
# Asks for every controller below the root, which the cgroupfs driver would otherwise find switched off.
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
KillMode=mixed
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../mainstay-tests.service "$root/etc/systemd/system/multi-user.target.wants/"

rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale,info} "$root"/boot/*
mke2fs -q -t ext4 -O ^has_journal -L root -d "$root" "$work/root.img" "$IMAGE_SIZE"
mv "$work/vmlinuz" "$work/initrd" "$work/root.img" "$out/"
