#!/usr/bin/env bash
# Does each commit import and mount, so that a bisection can stop at any? Tries those of BASE..HEAD,
# the oldest first: create, mount, write, cmp, unmount (3 s of processor time each).
# Usage: tests/each-commit.sh [BASE]   (main; on main itself the 20 commits before HEAD)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="$PWD/.venv/bin/python"
if ! git rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
    echo "each-commit: skipped: there is no history of commits here"
    exit 0
fi
why=$("$python" -c 'from tests.support.machine import why_no_mounts; print(why_no_mounts() or "")')
if [ -n "$why" ]; then
    echo "each-commit: skipped: $why"
    exit 0
fi
base=${1:-}
if [ -z "$base" ] && git cat-file -e "${RAIDX_BASE:-}^{commit}" 2>/dev/null; then base=$RAIDX_BASE; fi
if [ -z "$base" ]; then
    base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || true)
    [ -n "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-list -1 --skip 20 HEAD)
fi
work=$(mktemp -d -t raidx-each-commit.XXXXXX)
raidx() { PYTHONPATH="$work/tree" "$python" -P -m raidx_fuse.cli.main "$@"; }
clean_up() {
    set +e
    if mountpoint -q "$work/mnt"; then raidx umount "$work/mnt" || umount -l "$work/mnt"; fi
    git worktree remove --force "$work/tree" 2>/dev/null
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

try() {
    local disks=("$work"/{a,b,c})
    rm -f "${disks[@]}"
    raidx create --layout raid5 --size 32MiB "${disks[@]}"
    raidx mount "${disks[@]}" "$work/mnt"
    dd if="$work/data" of="$work/mnt/disk" conv=notrunc,fsync status=none
    cmp --bytes=1048576 "$work/data" "$work/mnt/disk"
    raidx umount "$work/mnt"
}

mkdir "$work/mnt"
head -c 1M /dev/urandom >"$work/data"
git worktree add --quiet --detach "$work/tree" HEAD
tried=0
for commit in $(git rev-list --reverse "$base..HEAD"); do
    git -C "$work/tree" checkout --quiet "$commit"
    set +e # a failure inside ends the subshell; as the condition of an `if` it would not
    said=$(set -e; trap - EXIT; try 2>&1)
    status=$?
    set -e
    if [ "$status" != 0 ]; then
        printf '%s\n' "$said" >&2
        echo "each-commit: this one does not mount: $(git log -1 --format='%h %s' "$commit")" >&2
        exit 1
    fi
    tried=$((tried + 1))
done
echo "each-commit: $tried commits import and mount"
