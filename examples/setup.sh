#!/usr/bin/env bash
# Installs system packages, a virtual environment in .venv, and raidx, on a bare Debian or Ubuntu.
# Can be repeated; what is installed already is skipped. Usage: examples/setup.sh [--dev [--browser]]
# --dev: also the tools for development and tests. --browser: also chromium and its driver (380 MB),
# for the tests of `raidx view` that need one.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extra="[package]" for_tests=""
[ "${1:-}" = "--dev" ] && extra="[dev,docs,package]" for_tests=yes

say() { printf 'setup: %s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else say "this needs root: $*"; exit 1
    fi
}

# Installs packages; the lists of packages are read once.
install() {
    [ -n "${lists_read:-}" ] || as_root apt-get update -qq || return 1
    lists_read=yes
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

# pyfuse3 is built from source and needs headers; the file system tools are for examples and tests.
wanted=(gcc libc6-dev pkg-config libfuse3-dev fuse3 util-linux e2fsprogs)
[ -n "$for_tests" ] && wanted+=(fio xfsprogs btrfs-progs nbd-server nbdkit libnbd-bin python3-libnbd qemu-utils openssl)
# For the test with a real guest (tests/mount/test_guest.py), which is skipped without them.
guest=()
[ -n "$for_tests" ] && [ "$(dpkg --print-architecture)" = amd64 ] && guest=(qemu-system-x86 busybox-static)
missing=()
for package in "${wanted[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done

# Prints a Python of 3.11 or later that has venv and its header files.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        command -v "$candidate" >/dev/null || continue
        "$candidate" - <<'PY' 2>/dev/null && { echo "$candidate"; return 0; }
import os, sys, sysconfig
import ensurepip, venv
assert sys.version_info >= (3, 11)
assert os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
PY
    done
    return 1
}
python=$(find_python) || missing+=(python3 python3-venv python3-dev)

if [ "${#missing[@]}" -gt 0 ]; then
    command -v apt-get >/dev/null || { say "please install: ${missing[*]}"; exit 1; }
    say "installing ${missing[*]}"
    install "${missing[@]}"
fi
if [ "${2:-}" = "--browser" ] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then
    say "installing chromium and its driver"
    install --no-install-recommends chromium chromium-driver \
        || say "there is no such browser here: the tests that need one are skipped"
fi
for package in "${guest[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
    say "installing $package"
    install --no-install-recommends "$package" \
        || say "there is no $package here: the test with a guest is skipped"
done
python=$(find_python) || { say "Python 3.11 or later is needed, with venv and headers"; exit 1; }

if [ ! -x "$top/.venv/bin/python" ]; then
    say "making the virtual environment .venv with $("$python" --version)"
    "$python" -m venv "$top/.venv"
fi
stamp="$top/.venv/.installed-for"
key="$extra $(cat "$top/pyproject.toml" | cksum) $top"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$key" ]; then
    say "installing raidx${extra} into .venv"
    "$top/.venv/bin/pip" install --quiet --disable-pip-version-check -e "$top$extra"
    printf '%s' "$key" > "$stamp"
fi
# The guest's kernel and the drivers of its disks are unpacked, not installed.
unpack_kernel() {
    local from="$1" package drivers
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
    [ -n "$package" ] && (cd "$from" && apt-get download -qq "$package") 2>/dev/null \
        && dpkg -x "$from"/linux-image-*.deb "$from/all" \
        && drivers=$(cd "$from/all" && echo lib/modules/*/kernel/drivers) \
        && mkdir -p "$from/guest/$drivers" \
        && mv "$from/all/boot" "$from/guest/" \
        && mv "$from/all/$drivers/virtio" "$from/all/$drivers/block" "$from/guest/$drivers/" \
        && mv "$from/guest" "$top/.venv/"
}
if [ "${#guest[@]}" -gt 0 ] && [ ! -d "$top/.venv/guest" ]; then
    say "unpacking a kernel for the test with a guest"
    from=$(mktemp -d)
    unpack_kernel "$from" || say "there is no such kernel here: the test with a guest is skipped"
    rm -rf "$from"
fi
