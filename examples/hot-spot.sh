#!/usr/bin/env bash
# A hot spot on an SSD and a hard disk: nine of ten reads go to a tenth of the image. Compares raid0
# on these two with raidx-zero on the same two, before and after the tuner has moved the hot chunks.
# Usage: examples/hot-spot.sh [FOLDER]
# FOLDER: where to work (default: a temporary folder); the files are removed at the end.
# The members are files with the speed of an SSD and of a 7200 rpm disk; takes about 30 seconds.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/examples/setup.sh"
export PATH="$top/.venv/bin:/usr/sbin:/sbin:$PATH"

if [ $# -gt 0 ]; then work=$(mkdir -p "$1/raidx-hot-spot" && cd "$1/raidx-hot-spot" && pwd)
else work=$(mktemp -d -t raidx-hot-spot.XXXXXX)
fi
mnt="$work/mnt"

clean_up() {
    set +e
    if mountpoint -q "$mnt"; then raidx umount "$mnt" || umount -l "$mnt"; fi
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
# Writes the first 80 MiB: 320 chunks of 256 KiB, of which 32 are hot.
begin() {
    run raidx create --layout "$1" --chunk 256KiB --name hot "$disk" "$ssd" --overwrite-signature
    run raidx mount "$disk" "$ssd" "$mnt"
    run dd if=/dev/zero of="$mnt/hot" bs=1M count=80 conv=notrunc,fsync status=none
}
# Sets "rate" to the reads a second of a fixed load, four at a time.
load() {
    raidx replay hotspot "$mnt" --as-fast-as-possible --depth 4 --requests 500 --seed 1 --lose-data \
        --number read_share=1 --number span_bytes=83886080 --number slots=320 --json > "$work/load.json"
    rate=$("$top/.venv/bin/python" -c 'import json, sys
run = json.load(open(sys.argv[1]))
print(round(run["requests"] / run["seconds"]))' "$work/load.json")
    echo "$rate reads a second"
}

mkdir -p "$mnt"
truncate -s 256M "$work/disk.img"
truncate -s 64M "$work/ssd.img"
disk="$work/disk.img,model=hdd"
ssd="$work/ssd.img,model=ssd"

step "raid0: every second chunk is on the hard disk, hot or not"
begin raid0
load
striped=$rate
run raidx umount "$mnt"

step "raidx-zero on the same two: its chunks begin on the members in turn, too"
begin raidx-zero
load

step "What the tuner has measured, and what it would move"
run raidx tune "$mnt"
run raidx tune "$mnt" --dry-run
step "Move it now; automatically it would happen a second after the last request"
run raidx tune "$mnt" --now --wait
run raidx tune "$mnt"

step "The same reads again"
load
tuned=$rate
run raidx umount "$mnt"

step "Done"
"$top/.venv/bin/python" -c 'import sys
striped, tuned = map(int, sys.argv[1:])
print(f"raid0 {striped} reads a second, raidx-zero tuned {tuned}: {tuned / striped:.1f} times as fast")
sys.exit(tuned < 2.5 * striped)' "$striped" "$tuned"
