"""A plain pass-through of one file on pyfuse3's own main loop: the baseline for raidx.

    passthrough_stock.py MOUNTPOINT BACKING_FILE

Shows BACKING_FILE as MOUNTPOINT/disk with direct I/O. Prints "ready" once mounted.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import stat

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError

FILE_INODE = pyfuse3.ROOT_INODE + 1
NAME = b"disk"


class PassThrough(pyfuse3.Operations):
    """One directory, one file."""

    def __init__(self, backing: str) -> None:
        super().__init__()
        self.fd = os.open(backing, os.O_RDWR)
        self.size_bytes = os.lseek(self.fd, 0, os.SEEK_END)

    def init(self) -> None:
        """Print "ready": the mount can be used."""
        print("ready", flush=True)

    async def getattr(self, inode, ctx):  # type: ignore[no-untyped-def]
        """Attributes of the directory or the file."""
        entry = EntryAttributes()
        entry.st_ino = inode
        if inode == pyfuse3.ROOT_INODE:
            entry.st_mode = stat.S_IFDIR | 0o755
            entry.st_nlink = 2
        else:
            entry.st_mode = stat.S_IFREG | 0o600
            entry.st_size = self.size_bytes
        return entry

    async def lookup(self, parent_inode, name, ctx):  # type: ignore[no-untyped-def]
        """The one name."""
        if name != NAME:
            raise FUSEError(errno.ENOENT)
        return await self.getattr(FILE_INODE, ctx)

    async def open(self, inode, flags, ctx):  # type: ignore[no-untyped-def]
        """Open with direct I/O."""
        return FileInfo(fh=inode, direct_io=True)

    async def read(self, fh, off, size):  # type: ignore[no-untyped-def]
        """Read from the backing file."""
        return os.pread(self.fd, size, off)

    async def write(self, fh, off, buf):  # type: ignore[no-untyped-def]
        """Write to the backing file."""
        return os.pwrite(self.fd, buf, off)

    async def fsync(self, fh, datasync):  # type: ignore[no-untyped-def]
        """Flush the backing file."""
        os.fsync(self.fd)


async def main() -> None:
    """Serve until SIGTERM or unmount."""
    async with trio.open_nursery() as nursery:

        async def end_on_signal() -> None:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    pyfuse3.terminate()

        nursery.start_soon(end_on_signal)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mountpoint")
    parser.add_argument("backing_file")
    args = parser.parse_args()
    disk = PassThrough(args.backing_file)
    pyfuse3.init(disk, args.mountpoint, {"default_permissions", "fsname=stock"})
    try:
        trio.run(main)
    finally:
        pyfuse3.close()
