#!/usr/bin/env bash
# Installs what is missing on a Debian machine: `setup.sh run` for `make run`, `setup.sh test` for `make test`.
# What is there is left as it is. No service of the machine is started, stopped or enabled.
set -euo pipefail
cd "$(dirname "$0")/.."

CARGO_DENY_VERSION=0.20.2
POLICY=/usr/sbin/policy-rc.d

fail() {
    echo "setup: $1" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# probe PACKAGE: whether what the package is needed for is there, whoever installed it. Asking for the thing and not
# for the package spares machines with, say, Docker's containerd.io, which Debian's containerd would replace.
probe() {
    case "$1" in
    ca-certificates) [ -s /etc/ssl/certs/ca-certificates.crt ] ;;
    gcc) has cc ;;
    libc6-dev) [ -f /usr/include/stdio.h ] ;;
    protobuf-compiler) has protoc ;;
    containerd) has containerd && has ctr && has containerd-shim-runc-v2 ;;
    runc) has runc ;;
    containernetworking-plugins) [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] ;;
    # A dynamic busybox would not run in an image of its own.
    busybox-static) has busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1 ;;
    iproute2) has ip ;;
    iptables) has iptables && has iptables-save ;;
    docker-registry) has docker-registry ;;
    procps) has ps ;;
    qemu-system-x86) has qemu-system-x86_64 ;;
    debootstrap) has debootstrap ;;
    e2fsprogs) has mke2fs && has debugfs ;;
    binutils) has strip ;;
    nginx-light) has nginx ;;
    libseccomp-dev) [ -f /usr/include/seccomp.h ] ;;
    pkg-config) has pkg-config ;;
    prometheus) has prometheus && has promtool ;;
    python3-venv) has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *) fail "no probe for $1" ;;
    esac
}

remove_policy() {
    rm -f "$POLICY"
}

# Debian starts the services of new packages unless this file says no. An existing one is the machine's own decision.
forbid_service_starts() {
    if [ ! -e "$POLICY" ]; then
        trap remove_policy EXIT
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod 0755 "$POLICY"
    fi
}

APT_UPDATED=
install_package() {
    local log
    forbid_service_starts
    log=$(mktemp)
    if [ -z "$APT_UPDATED" ]; then
        apt-get update -qq >"$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed; is the network there?"; }
        APT_UPDATED=yes
    fi
    # Only busybox-static may push another package out: its dynamic twin, which has the same program.
    local keep=--no-remove
    [ "$1" = busybox-static ] && keep=
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $keep "$1" >"$log" 2>&1 ||
        { cat "$log" >&2; fail "cannot install $1; install it by hand and run this again"; }
    rm -f "$log"
    # A service that came with the package shall not start with the next boot either; without systemd none does.
    if [ -f "/lib/systemd/system/$1.service" ] && has systemctl; then
        systemctl disable --quiet "$1.service" >/dev/null 2>&1 || echo "setup: $1.service stays enabled" >&2
    fi
}

COUNT=0
TOTAL=0
# thing NAME STATE
thing() {
    COUNT=$((COUNT + 1))
    printf '[%2d/%d] %-28s %s\n' "$COUNT" "$TOTAL" "$1" "$2"
}

packages() {
    local package
    for package in "$@"; do
        if probe "$package"; then
            thing "$package" present
        else
            thing "$package" "missing, installing"
            install_package "$package"
        fi
    done
}

# A foreign gRPC client: Python's own implementation, in a place of its own, of the versions that are pinned.
python() {
    local place=.build/python wanted=examples/grpc/requirements.txt
    if cmp -s "$wanted" "$place/requirements.txt"; then
        thing "Python's grpcio" present
        return
    fi
    thing "Python's grpcio" "missing, installing into $place"
    mkdir -p .build
    python3 -m venv --clear "$place"
    "$place/bin/python" -m pip install --quiet --requirement "$wanted" ||
        fail "pip could not install what $wanted names; is the network there?"
    cp "$wanted" "$place/requirements.txt"
}

main() {
    local mode=${1:-}
    local run_packages=(ca-certificates gcc libc6-dev protobuf-compiler containerd runc containernetworking-plugins
        busybox-static iproute2 iptables)
    local test_packages=(docker-registry procps qemu-system-x86 debootstrap e2fsprogs binutils libseccomp-dev pkg-config prometheus python3-venv)
    # Beside which /pods is measured.
    local bench_packages=(nginx-light)

    case "$mode" in
    run) TOTAL=${#run_packages[@]} ;;
    test) TOTAL=$((${#run_packages[@]} + ${#test_packages[@]} + 3)) ;;
    bench) TOTAL=$((${#run_packages[@]} + ${#test_packages[@]} + ${#bench_packages[@]} + 3)) ;;
    *) fail "usage: setup.sh run|test|bench" ;;
    esac
    export PATH="$PATH:/usr/sbin:/sbin"
    [ -f /etc/debian_version ] && has apt-get ||
        fail "this is not Debian; install by hand what ${run_packages[*]} ${test_packages[*]} are on it"
    [ "$(id -u)" -eq 0 ] ||
        fail "containers need root; run: sudo env PATH=\"\$PATH\" make $mode"
    has cargo ||
        fail "no cargo on PATH; install Rust (https://rustup.rs), and with sudo keep PATH: sudo env PATH=\"\$PATH\" make $mode"
    if [ "$mode" != run ]; then
        has go || fail "no go on PATH; the tests build real peers with it: install Go 1.26 or newer (https://go.dev/dl)"
    fi

    packages "${run_packages[@]}"
    [ "$mode" != run ] || return 0
    packages "${test_packages[@]}"
    [ "$mode" != bench ] || packages "${bench_packages[@]}"

    if has cargo-deny; then
        thing cargo-deny present
    else
        thing cargo-deny "missing, building (minutes)"
        # Into cargo's own directory, so that the next checkout finds it.
        cargo install --quiet --locked --version "$CARGO_DENY_VERSION" cargo-deny
    fi
    python
    thing "containerd 2.4, runc 1.3, crictl, upstream's kubelet, API server, controllers, scheduler, kubectl, streaming client and sample device plugin, etcd, metrics-server, OpenTelemetry's collector" "built from tools/ if they changed (minutes on the first time)"
    cargo xtask tools containerd crictl etcd kube-apiserver kubelet kubernetes metrics-server otel-collector probe-target runc sample-device-plugin streamclient
}

main "$@"
