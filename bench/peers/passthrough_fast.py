"""One file behind raidx's own FUSE front end: the upper limit of an array's speed.

    passthrough_fast.py MOUNTPOINT BACKING_FILE

It has the front end of an array, but the volume is a file. Prints "ready" once mounted.
"""

from __future__ import annotations

import argparse
import mmap
import os
from typing import Any

import trio

from raidx_fuse.daemon import mount
from raidx_fuse.pool.volume import Volume

REQUEST_BYTES_MAX = 1 << 20


class OneFile:
    """A volume's three calls on one file, without suspending."""

    def __init__(self, backing: str) -> None:
        self.fd = os.open(backing, os.O_RDWR)
        self.size_bytes = os.lseek(self.fd, 0, os.SEEK_END)
        # One buffer serves all reads: the reply is sent before anything else runs.
        self._buffer = memoryview(mmap.mmap(-1, REQUEST_BYTES_MAX))

    async def read(self, offset: int, size: int) -> memoryview:
        """Read into the static buffer."""
        view = self._buffer[:size]
        os.preadv(self.fd, [view], offset)
        return view

    async def write(self, offset: int, data: bytes) -> None:
        """Write all of *data*."""
        os.pwrite(self.fd, data, offset)

    async def flush(self) -> None:
        """Flush the file."""
        os.fsync(self.fd)


async def no_control(command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an empty answer to every control command."""
    return {}


def main() -> None:
    """Serve until SIGTERM or unmount."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mountpoint")
    parser.add_argument("backing_file")
    args = parser.parse_args()
    disk = OneFile(args.backing_file)
    volume = Volume("disk", disk.size_bytes, read=disk.read, write=disk.write, flush=disk.flush)
    trio.run(
        mount.serve, [volume], args.mountpoint, no_control, lambda _: print("ready", flush=True)
    )


if __name__ == "__main__":
    main()
