#!/usr/bin/env bash
# An array over three NBD servers of this machine. One is killed under load and comes back in time;
# then it is killed for longer, is given up, comes back, and gets only what changed meanwhile.
# Usage: examples/network.sh [FOLDER]
# FOLDER: where to work (default: a temporary folder); the files are removed at the end.
# Needs nbdkit; takes about 25 seconds.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/examples/setup.sh"
export PATH="$top/.venv/bin:/usr/sbin:/sbin:$PATH"
command -v nbdkit >/dev/null || { echo "network.sh: nbdkit is missing: apt install nbdkit" >&2; exit 1; }

if [ $# -gt 0 ]; then work=$(mkdir -p "$1/raidx-network" && cd "$1/raidx-network" && pwd)
else work=$(mktemp -d -t raidx-network.XXXXXX)
fi
mnt="$work/mnt"
servers=() members=() writer=""

clean_up() {
    set +e
    [ -z "$writer" ] || kill "$writer" 2>/dev/null
    if mountpoint -q "$mnt"; then raidx umount "$mnt" || umount -l "$mnt"; fi
    for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null; done
    wait
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
start() {  # the server of member $1
    rm -f "$work/s$1"
    printf '\033[2m$ nbdkit -f -U s%s file member%s &\033[0m\n' "$1" "$1"
    nbdkit -f -U "$work/s$1" file "$work/member$1" &
    servers[$1]=$!
    for _ in $(seq 500); do [ -S "$work/s$1" ] && break; sleep 0.02; done
}
kill_server() {
    printf '\033[2m$ kill -9 %s   # the server of member %s\033[0m\n' "${servers[$1]}" "$1"
    kill -9 "${servers[$1]}"
    wait "${servers[$1]}" 2>/dev/null || true
}
# Writes $1 MiB of the source to the same place of the image, in the background.
write_some() {
    dd if="$work/source" of="$mnt/disk" bs=64K count=$((16 * $1)) iflag=fullblock conv=notrunc,fsync \
        status=none &
    writer=$!
}
written() {
    wait "$writer"
    writer=""
    run cmp -n $(($1 << 20)) "$work/source" "$mnt/disk"
    echo "what was written is there"
}
new_source() { head -c $(($1 << 20)) /dev/urandom > "$work/source"; }

mkdir -p "$mnt"
step "Three servers, and an array over their exports"
for number in 0 1 2; do
    truncate -s 1G "$work/member$number"
    start "$number"
    members+=("nbd+unix:///?socket=$work/s$number")
done
run raidx create --layout raid5 --name disk "${members[@]}"
run raidx mount "${members[@]}" "$mnt"

step "The server of member 1 is killed while 96 MiB are written, and is back at once"
new_source 96
write_some 96
kill_server 1
start 1
written 96
run raidx status "$mnt"

step "It is killed again, and stays away: requests wait for io.timeout_s, then go on without it"
run raidx set "$mnt" io.timeout_s=2s
sleep 15  # regions that were written lately would count as changed
new_source 20
kill_server 1
write_some 20
written 20
run raidx set "$mnt" io.timeout_s=30s
run raidx status "$mnt"

step "It is back: member 1 gets what changed, not its share of all 96 MiB"
start 1
for attempt in $(seq 60); do  # the mount sees within seconds that the killed server's writes ended
    if run raidx replace-disk "$mnt" 1 "${members[1]}" --wait 2>&1; then break; fi
    [ "$attempt" -lt 60 ] || exit 1
    sleep 1
done

step "Nothing is wrong"
run raidx scrub "$mnt" --wait
run cmp -n $((20 << 20)) "$work/source" "$mnt/disk"
run raidx umount "$mnt"
run raidx check "${members[@]}"
