"""A real guest on an export: its kernel makes a file system, writes, discards, and powers off."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.support.command import checked
from tests.support.guest import boot, needed

pytestmark = [pytest.mark.mount]

SCRIPT = """
/tools/mke2fs -q -t ext4 /dev/vda
mount -t ext4 /dev/vda /mnt
mkdir /mnt/kept /mnt/gone
for i in 1 2 3 4 5 6; do dd if=/dev/urandom of=/mnt/kept/$i bs=100k count=$i 2>/dev/null; done
for i in 1 2 3; do dd if=/dev/urandom of=/mnt/gone/$i bs=1M count=2 2>/dev/null; done
sync
dd if=/dev/urandom of=/mnt/kept/3 bs=4k seek=7 count=5 conv=notrunc,fsync 2>/dev/null
rm -r /mnt/gone
sync
fstrim -v /mnt
(cd /mnt/kept; sha256sum *) > /mnt/sums
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 /dev/vda /mnt
(cd /mnt/kept; sha256sum -c ../sums)
echo SUMS-BEGIN; cat /mnt/sums; echo SUMS-END
umount /mnt
"""


def test_a_guest_with_ext4_on_an_export_finds_what_it_wrote_and_so_does_the_host(
    tmp_path: Path,
) -> None:
    checker = needed("e2fsck")
    checked(tmp_path, "create --layout raid5 --name disk --size 24M m1 m2 m3")
    checked(tmp_path, "serve m1 m2 m3 --nbd unix:s")
    uri = f"nbd+unix:///disk?socket={tmp_path}/s"
    try:
        said = boot(f"nbd:unix:{tmp_path}/s:exportname=disk", SCRIPT, tmp_path)
        assert int(said.partition("/mnt: ")[2].split()[0]) > 16 << 20, "bytes trimmed"
        totals = [needed("nbdinfo"), "--map", "--totals", "--json", uri]
        extents = json.loads(subprocess.run(totals, check=True, capture_output=True).stdout)
        assert sum(each["size"] for each in extents if each["type"] == 0) < 8 << 20, "given back"
        sums = said.partition("SUMS-BEGIN")[2].partition("SUMS-END")[0].split()
        copy = tmp_path / "copy"
        subprocess.run([needed("nbdcopy"), uri, str(copy)], check=True)
    finally:
        checked(tmp_path, f"umount {tmp_path}/s")
    checked(tmp_path, "check m1 m2 m3")
    subprocess.run([checker, "-f", "-n", str(copy)], check=True, capture_output=True)
    found = tmp_path / "found"
    found.mkdir()
    dump = f"rdump /kept {found}"
    subprocess.run([needed("debugfs"), "-R", dump, str(copy)], check=True, capture_output=True)
    digests = dict(zip(sums[1::2], sums[::2], strict=True))
    assert len(digests) == 6
    for name, digest in digests.items():
        assert hashlib.sha256((found / "kept" / name).read_bytes()).hexdigest() == digest
