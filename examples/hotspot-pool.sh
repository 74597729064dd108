#!/usr/bin/env bash
# Two arrays in one mount, each on four modelled hard disks: a hotspot under a running load is
# found, explained and dissolved by moving the volume that relieves it with the fewest bytes.
# Usage: examples/hotspot-pool.sh [FOLDER]
# FOLDER: where to work (default: a temporary folder); the files are removed at the end.
# The members are files with the timing of 10k disks, and each read takes 12 ms more: then it counts
# little if other work on this machine lets answers come late. Takes about half a minute.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$top/examples/setup.sh"
export PATH="$top/.venv/bin:/usr/sbin:/sbin:$PATH"

if [ $# -gt 0 ]; then work=$(mkdir -p "$1/raidx-hotspot-pool" && cd "$1/raidx-hotspot-pool" && pwd)
else work=$(mktemp -d -t raidx-hotspot-pool.XXXXXX)
fi
mnt="$work/mnt"
load=""

clean_up() {
    set +e
    if [ -n "$load" ]; then kill "$load"; wait "$load" 2> /dev/null; fi
    if mountpoint -q "$mnt"; then raidx umount "$mnt" || umount -l "$mnt"; fi
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
load_lines() { raidx status "$mnt" | sed -n '/^load/,$p'; }
hotspots() {
    raidx status "$mnt" --json | "$top/.venv/bin/python" -c 'import json, sys
print(sum(array["hotspot"] for array in json.load(sys.stdin)["pool"]["arrays"]))'
}
# Other work on this machine can hold up the daemon. Clients that wait longer read less, which is a
# lower utilisation: two such seconds of five, and the hotspot is over until they are past. And the
# members count as slow for some seconds more. So each step waits for what it shows.
wait_for_hotspots() {
    for _ in $(seq 60); do
        if [ "$(hotspots)" = "$1" ]; then return; fi
        sleep 1
    done
    load_lines
    echo "the number of hotspots is not $1 after a minute" >&2
    return 1
}
# Runs `raidx balance` with its options, again as long as it has no complete plan; other errors count.
run_when_hot() {
    local said status
    printf '\033[2m$ %s\033[0m\n' "$*"
    for _ in $(seq 60); do
        status=0
        said=$("$@" 2>&1) || status=$?
        case "$said" in
            *"nothing is to be moved"* | *"found no complete plan"* | *"found no plan"*) sleep 1 ;;
            *) printf '%s\n' "$said"; return $status ;;
        esac
    done
    load_lines
    printf '%s\n' "$said" "there is no plan after a minute" >&2
    return 1
}

mkdir -p "$mnt"
cd "$work"
disk=model=sas10k,read_access_ms=12
east=(); west=()
for i in 0 1 2 3; do east+=("east$i.img,$disk"); west+=("west$i.img,$disk"); done

step "Two arrays, four volumes: mail and web on east, old and logs on west"
run raidx create --layout raid5 --chunk 16KiB --size 32MiB --no-volume --name east "${east[@]}"
run raidx create --layout raid5 --chunk 16KiB --size 32MiB --no-volume --name west "${west[@]}"
run raidx mount "${east[@]}" "${west[@]}" "$mnt"
for volume in mail:2MiB:east web:4MiB:east old:4MiB:west logs:2MiB:west; do
    IFS=: read -r name size array <<< "$volume"
    run raidx volume create "$mnt" "$name" --size "$size" --on "$array"
    dd if=/dev/urandom of="$mnt/$name" bs=1M count=$((${size%MiB})) conv=notrunc status=none
done
before=$(cat "$mnt"/{mail,web,old,logs} | sha256sum)

step "An observation every second; a hotspot is above 60 % in most of five"
run raidx set "$mnt" hot.interval=1s
run raidx set "$mnt" hot.window=5
run raidx set "$mnt" hot.tau=60%

step "Clients read mail and web; one reads old on west"
"$top/.venv/bin/python" - "$mnt" > "$work/load.txt" <<'PY' &
import os, random, sys, threading, time

def client(path, think_s, seed):
    rng, file = random.Random(seed), os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size >> 12
    while True:
        begin = time.monotonic()
        os.pread(file, 4096, rng.randrange(size) << 12)
        done.append(time.monotonic() - begin)
        time.sleep(rng.expovariate(1 / think_s))

done = []
clients = {"mail": 20, "web": 20, "old": 1}
for name, count in clients.items():
    for number in range(count):
        seed = f"{name}{number}"
        thread = threading.Thread(target=client, args=(f"{sys.argv[1]}/{name}", 0.15, seed))
        thread.daemon = True
        thread.start()
while True:
    time.sleep(2)
    seen, done = done, []
    print(f"{len(seen) / 2:.0f} reads a second, {1e3 * sum(seen) / len(seen):.1f} ms", flush=True)
PY
load=$!
sleep 6
wait_for_hotspots 1
load_lines

step "The hotspot, what would relieve it, and why"
run_when_hot raidx balance "$mnt" --dry-run

step "Do it, while the clients go on"
run_when_hot raidx balance "$mnt" --wait

sleep 6
wait_for_hotspots 0
step "Afterwards: no hotspot, and every byte as it was"
load_lines
run raidx volume list "$mnt"
echo "the clients, every two seconds:"; cat "$work/load.txt"
kill "$load"; wait "$load" 2> /dev/null || true; load=""
after=$(cat "$mnt"/{mail,web,old,logs} | sha256sum)
[ "$before" = "$after" ]
run raidx umount "$mnt"
step "Done: the hotspot is gone"
