#!/bin/bash
# Runs inside the test machine, as the unit mainstay-tests.service: every line of /payload/plan is one test program on one
# cgroup driver. What `cargo xtask vm` reads goes to a port of its own; lines that begin with @@ are for it.
set -u
port=/dev/virtio-ports/mainstay
exec >"$port" 2>&1 </dev/null
echo "@@ up $(uname -r), systemd $(systemctl --version | awk 'NR == 1 { print $2 }'), $(awk '{ print int($1) }' /proc/uptime) s"

# Memory is quicker than an emulated disk, and files of tests need not survive.
mount -t tmpfs -o mode=1777,size=75% tmpfs /tmp
mkdir -p /payload/failed
# Swap, which a kubelet has to keep pods away from unless it is told otherwise.
mkswap -q /dev/disk/by-id/virtio-swap && swapon /dev/disk/by-id/virtio-swap
# An address and a default route, as a machine has them; nothing is at the other end.
ip link set lo up
ip link add uplink type dummy && ip address add 192.0.2.10/24 dev uplink && ip link set uplink up &&
    ip route add default via 192.0.2.1

# Nobody plugs anything in from now on, and every interface of a pod would cost it several processes.
systemctl stop systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udevd.service
# Collecting garbage is most of what containerd and its short-lived helpers would do on an emulated CPU.
export GOGC=400

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=0
export MAINSTAY_TEST_BUILD_DIR=/payload MAINSTAY_BIN=/payload/mainstay
# Here nothing is missing: a test that makes do with less elsewhere fails.
export MAINSTAY_TEST_WHOLE_MACHINE=1
# shellcheck source=/dev/null
. /payload/environment

# The workspace is where the tests were compiled to look for it.
mkdir -p "$(dirname "$WORKSPACE")" && ln -sfn /payload/workspace "$WORKSPACE"
# A foreign gRPC client: the machine's Python with packages of its own.
mkdir -p /payload/python/bin
printf '#!/bin/sh\nPYTHONPATH=/payload/python/packages exec /usr/bin/python3 "$@"\n' >/payload/python/bin/python
chmod 0755 /payload/python/bin/python

# An NFS server for the tests that want one.
if grep -q ' facilities ' /payload/plan; then
    mkdir -p /srv/nfs && echo '/srv/nfs 127.0.0.1(rw,fsid=0,no_root_squash,no_subtree_check,insecure)' >/etc/exports
    systemctl start nfs-server.service && export MAINSTAY_TEST_NFS=/srv/nfs
fi

while read -r driver name limit arguments; do
    echo "@@ begin $driver $name"
    start=$(date +%s)
    # The plan's words are arguments of libtest.
    # shellcheck disable=SC2086
    MAINSTAY_TEST_CGROUP_DRIVER=$driver timeout --kill-after=10 "$limit" "/payload/tests/$name" $arguments </dev/null
    echo "@@ end $driver $name $? $(($(date +%s) - start))"
done </payload/plan

dmesg --level=emerg,alert,crit,err,warn >/payload/failed/kernel.log 2>/dev/null
journalctl --no-pager --priority=warning >/payload/failed/journal.log 2>/dev/null
cd / && sync
mount -o remount,ro /payload
echo "@@ done"
