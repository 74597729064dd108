#!/usr/bin/env bash
# The main job from end to end: a RAID-5 array of four member files, a real file
# system on it, a failed disk, a replacement, a rebuild, a scrub; compares the checksum of every file.
# Usage: examples/quickstart.sh [--no-loop] [FOLDER]
# FOLDER: where to work (default: a temporary folder); the files are removed at the end.
# Without root or loop devices, or with --no-loop, the image is used directly, without a file system.
set -euo pipefail
with_loop=yes
if [ "${1:-}" = --no-loop ]; then with_loop=""; shift; fi
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/examples/setup.sh"
export PATH="$top/.venv/bin:/usr/sbin:/sbin:$PATH"

if [ $# -gt 0 ]; then work=$(mkdir -p "$1/raidx-quickstart" && cd "$1/raidx-quickstart" && pwd)
else work=$(mktemp -d -t raidx-quickstart.XXXXXX)
fi
mnt="$work/mnt"; fs="$work/fs"; loop=""; mounted=""

clean_up() {
    set +e
    [ -n "$mounted" ] && { umount "$fs" || umount -l "$fs"; }
    [ -n "$loop" ] && losetup -d "$loop"
    if mountpoint -q "$mnt"; then raidx umount "$mnt" || umount -l "$mnt"; fi
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

bold="" dim="" plain=""
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
fi
step() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() { printf '%s$ %s%s\n' "$dim" "$(printf '%s ' "$@" | fold -s -w 76 | sed -e 's/ *$//' -e '$!s/$/ \\/' -e '2,$s/^/    /')" "$plain"; "$@"; }
# Prints the loop device of the image; returns 1 if there is none. Direct I/O is preferred, not needed.
attach() {
    [ -n "$with_loop" ] && [ "$(id -u)" = 0 ] || return 1
    losetup --find --show --direct-io=on "$image" 2>/dev/null || losetup --find --show "$image" 2>/dev/null
}
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }

mkdir -p "$mnt" "$fs" "$work/files"
disks=("$work"/disk{0,1,2,3}.img)

step "Four member files of 96 MiB become a RAID-5 array"
run raidx create --layout raid5 --chunk 64KiB --size 96MiB --name disk "${disks[@]}"
run raidx mount "${disks[@]}" "$mnt"
run raidx status "$mnt"
image="$mnt/disk"

step "Real files to store: this project and its Python environment's standard library"
stdlib=$("$top/.venv/bin/python" -c 'import json; print(json.__path__[0])')/..
cp -r "$top/raidx_fuse" "$top/layouts" "$top/cli" "$top/README.md" "$work/files/"
mkdir -p "$work/files/stdlib"
cp -r "$stdlib"/{json,email,asyncio,unittest,encodings} "$work/files/stdlib/"
find "$work/files" -name __pycache__ -type d -prune -exec rm -rf {} +
sums "$work/files" > "$work/sums.before"
printf '%s files, %s\n' "$(wc -l < "$work/sums.before")" "$(du -sh "$work/files" | cut -f1)"

if loop=$(attach); then
    step "A loop device on the image, ext4 on the loop device"
    run mkfs.ext4 -q "$loop"
    run mount "$loop" "$fs"
    mounted=yes
    run cp -r "$work/files/." "$fs/"
    sync -f "$fs"
    store="$fs"
    compare() { sums "$store" | grep -v ' ./lost+found' > "$work/sums.after"; diff "$work/sums.before" "$work/sums.after"; }
    forget_cache() { sync; echo 1 > /proc/sys/vm/drop_caches 2>/dev/null || true; }
else
    loop=""; with_loop=""
    step "Without a loop device (none here, not root, or not wanted): the image itself is used, the files go in as one archive"
    tar -C "$work/files" --sort=name -cf "$work/files.tar" .
    bytes=$(stat -c %s "$work/files.tar")
    run dd if="$work/files.tar" of="$image" bs=1M conv=notrunc,fsync status=none
    compare() {
        rm -rf "$work/back"; mkdir "$work/back"
        head -c "$bytes" "$image" | tar -C "$work/back" -xf -
        sums "$work/back" > "$work/sums.after"; diff "$work/sums.before" "$work/sums.after"
    }
    forget_cache() { :; }
fi

step "What one small write costs, and why"
run raidx explain "$mnt" 0 4KiB --write

step "Disk 2 fails; everything is still readable"
run raidx fail-disk "$mnt" 2
run raidx status "$mnt"
forget_cache
compare
echo "every checksum equal, with one disk gone"

step "A new disk replaces it and is rebuilt: only written chunks are copied"
run raidx replace-disk "$mnt" 2 "$work/disk4.img" --create --wait
run raidx status "$mnt"

step "Scrub: read all written chunks, compare the parity"
run raidx scrub "$mnt" --check --wait
run raidx stats "$mnt"
forget_cache
compare
echo "every checksum equal, after failure, replacement and rebuild"

step "Unmount, examine and check the members, mount again"
if [ -n "$loop" ]; then umount "$fs"; mounted=""; losetup -d "$loop"; loop=""; fi
run raidx umount "$mnt"
run raidx examine "${disks[0]}"
run raidx check "${disks[0]}" "${disks[1]}" "$work/disk4.img" "${disks[3]}"
run raidx mount "${disks[0]}" "${disks[1]}" "$work/disk4.img" "${disks[3]}" "$mnt"
run raidx status "$mnt" --brief
if [ -n "$with_loop" ]; then
    loop=$(attach)
    run mount "$loop" "$fs"; mounted=yes
fi
compare
echo "every checksum equal, after a remount"

step "Done: nothing stays mounted"
