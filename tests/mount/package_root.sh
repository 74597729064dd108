#!/usr/bin/env bash
# A root of its own in which only the package is installed, and in it what an administrator does:
# scan, a line of fstab, ext4, stop, start, a member missing, an event sent, the member back.
# Usage: unshare --mount package_root.sh PACKAGE.deb FOLDER
# The root is the programs of this machine (an overlay over /usr, so that nothing is written there)
# with an /etc, /var and /srv of its own; of raidx and its libraries it has the package only.
set -euo pipefail
deb=$1 root=$2/root

# A mount namespace begins with all mounts of its maker, and keeps them when the maker unmounts:
# loop devices of tests that run beside this one would stay busy until it ends.
while read -r _ at _; do
    case $at in "${TMPDIR:-/tmp}"/* | /dev/shm/*) umount -l "$(printf %b "$at")" ;; esac
done < <(tac /proc/mounts)

mkdir -p "$root"/{usr,etc,proc,sys,dev,tmp,run,mnt/disk,mnt/fs,srv,root} "$2"/{upper,work}
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$2/upper,workdir=$2/work" "$root/usr"
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then ln -s "usr/$name" "$root/$name"; fi
done
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
for name in passwd group nsswitch.conf ld.so.cache mke2fs.conf; do
    if [ -e "/etc/$name" ]; then cp "/etc/$name" "$root/etc/"; fi
done
cp -r /etc/alternatives "$root/etc/"
mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root/var/log"
cp /var/lib/dpkg/status "$root/var/lib/dpkg/status"   # so that dpkg sees what the package needs

dpkg --root="$root" --no-triggers --install "$deb" >"$2/dpkg.log" 2>&1 || { cat "$2/dpkg.log"; exit 1; }
dpkg --root="$root" --verify raidx

cat >"$root/srv/day" <<'DAY'
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
say() { printf '== %s\n' "$*"; }
cleanup() {
    umount /mnt/fs 2>/dev/null || true
    for loop in ${loop:-}; do losetup -d "$loop" 2>/dev/null || true; done
    raidx umount /mnt/disk --if-exists >/dev/null 2>&1 || true
}
trap cleanup EXIT

say "the package has what it needs: $(raidx --version)"
! python3 -c 'import numpy' 2>/dev/null
mkdir /srv/disks
raidx create --layout raid5 --size 32MiB --name vault /srv/disks/{a,b,c} >/dev/null
raidx scan /srv/disks

say "a line of fstab"
printf '#!/bin/sh\necho "$@" >>/srv/told\n' >/srv/hook
chmod +x /srv/hook
echo 'vault /mnt/disk raidx scan=/srv/disks,nofail 0 0' >/etc/fstab
mount /mnt/disk
raidx set /mnt/disk events.program=/srv/hook >/dev/null
raidx status /mnt/disk --check

say "what needs more libraries"
raidx stats /mnt/disk --prometheus | grep -c '^raidx_array_' >/dev/null
TERM=xterm-256color script -qec 'timeout --foreground --preserve-status -s INT 6 raidx watch /mnt/disk' /srv/screen \
    </dev/null >/dev/null || true
grep -a -q vault /srv/screen
raidx view --demo --port 0 >/srv/page &
page=$!
for _ in $(seq 300); do grep -q http /srv/page && break; sleep 0.1; done
python3 - "$(grep -o 'http://[^ ]*' /srv/page)" <<'PY'
import sys, urllib.request
assert b"<html" in urllib.request.urlopen(sys.argv[1], timeout=60).read()
PY
kill "$page"
wait "$page" || true
documents=/usr/share/doc/raidx/examples
raidx simulate "$documents/experiments/moving-hot-data.toml" >/dev/null
for file in lab/striping.md administration.md alerts.yml own-code/raidx_raid50.py; do
    [ -s "$documents/$file" ]
done
for page in mount.raidx raidx-set raidx; do [ -s "/usr/share/man/man8/$page.8.gz" ]; done

say "ext4"
loop=$(losetup --find --show /mnt/disk/vault)
mkfs.ext4 -q "$loop"
mount "$loop" /mnt/fs
cp -r /usr/lib/raidx/raidx_fuse/cli /mnt/fs/
(cd /mnt/fs && find . -type f -print0 | sort -z | xargs -0 sha256sum) >/srv/sums
umount /mnt/fs
losetup -d "$loop"
raidx umount /mnt/disk

say "started again, one member missing"
mv /srv/disks/b /srv/gone
mount /mnt/disk
if raidx status /mnt/disk --check; then exit 1; fi
for _ in $(seq 600); do [ ! -e /srv/told ] || break; sleep 0.1; done
cat /srv/told
raidx events vault | grep -c DegradedArray
loop=$(losetup --find --show /mnt/disk/vault)
e2fsck -fn "$loop" >/dev/null 2>&1
mount -o ro "$loop" /mnt/fs
(cd /mnt/fs && sha256sum --quiet -c /srv/sums)
umount /mnt/fs
losetup -d "$loop"
raidx umount /mnt/disk

say "the member is back"
mv /srv/gone /srv/disks/b
mount /mnt/disk
raidx wait /mnt/disk --state clean --timeout 120
raidx scrub /mnt/disk --wait
umount /mnt/disk
for _ in $(seq 600); do raidx scan /srv/disks | grep -q clean && break; sleep 0.1; done
raidx check /srv/disks/{a,b,c}
DAY
chroot "$root" /bin/bash /srv/day

dpkg --root="$root" --no-triggers --remove raidx >>"$2/dpkg.log" 2>&1 || { cat "$2/dpkg.log"; exit 1; }
left=$(find "$root/usr/lib/raidx" "$root/usr/bin/raidx" 2>/dev/null | head -3 || true)
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
echo "== removed, nothing left"
umount -R "$root/dev" "$root/sys" "$root/proc" "$root/usr"
