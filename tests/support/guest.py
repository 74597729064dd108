"""A small Linux guest in qemu, without KVM: it boots, does what its script says, and powers off.

The kernel is Debian's for clouds, unpacked by examples/setup.sh --dev, or that of this machine; the
initial file system has busybox, /tools/mke2fs and the drivers of virtio disks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BOOT_S = 300.0  # generous: instructions are emulated, and the machine may be shared
DRIVERS = (
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci",
    "block/virtio_blk",
)
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /mnt /etc
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for driver in /drivers/*.ko; do insmod $driver; done
ln -sf /proc/mounts /etc/mtab
echo GUEST-BEGIN
(set -e; . /script) && echo GUEST-DONE || echo GUEST-FAILED
sync
poweroff -f
"""


def kernel() -> tuple[Path, Path]:
    """Return the kernel's image and its drivers' folder. Skips the test if there is none."""
    for top in (Path(sys.prefix) / "guest", Path("/")):
        for image in sorted(top.glob("boot/vmlinuz-*"), reverse=True):
            drivers = top / "lib/modules" / image.name.removeprefix("vmlinuz-") / "kernel/drivers"
            if all((drivers / f"{driver}.ko").exists() for driver in DRIVERS):
                return image, drivers
    pytest.skip("no kernel for a guest here: examples/setup.sh --dev unpacks one")


def needed(program: str) -> str:
    """Return the path of *program*. Skips the test if it is not installed."""
    found = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if found is None:
        pytest.skip(f"{program} is not installed (examples/setup.sh --dev)")
    return found


def boot(disk: str, script: str, folder: Path) -> str:
    """Boot a guest with qemu's *disk* as /dev/vda; return what it says when *script* has passed.

    *script* is for busybox's sh. Fails if a command of it fails.
    """
    qemu = needed("qemu-system-x86_64")
    image, drivers = kernel()
    files: dict[str, bytes] = {"init": INIT.encode(), "script": script.encode()}
    for number, driver in enumerate(DRIVERS):
        files[f"drivers/{number}.ko"] = (drivers / f"{driver}.ko").read_bytes()
    files["bin/busybox"] = Path(needed("busybox")).read_bytes()
    maker = needed("mke2fs")
    files["tools/mke2fs"] = Path(maker).read_bytes()
    linked = subprocess.run(["ldd", maker], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+\.so\S*)", linked):
        files[library.removeprefix("/")] = Path(library).read_bytes()
    initial = folder / "initramfs"
    initial.write_bytes(archive(files))
    command = [qemu, "-machine", "q35,accel=tcg", "-cpu", "max", "-m", "256", "-smp", "1"]
    command += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]
    command += ["-kernel", str(image), "-initrd", str(initial)]
    command += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    command += ["-drive", f"file={disk},format=raw,if=virtio,discard=unmap,cache=none"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=BOOT_S, check=False)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"the guest did not end: {(late.stdout or b'')[-2000:]!r}") from None
    said = done.stdout.decode(errors="replace")
    assert "GUEST-DONE" in said, said[-3000:] + done.stderr.decode(errors="replace")[-1000:]
    return said


def archive(files: dict[str, bytes]) -> bytes:
    """Return *files* by path as an initial file system (cpio, newc); all are executable."""
    folders = {str(folder) for path in files for folder in list(Path(path).parents)[:-1]}
    out = bytearray()
    entries = [(folder, 0o040755, b"") for folder in sorted(folders)]
    entries += [(path, 0o100755, data) for path, data in files.items()]
    for number, (path, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name = os.fsencode(path) + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)
