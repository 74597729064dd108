"""The few Linux calls that Python's os module lacks, and helpers on lists of buffers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import struct
from collections.abc import Iterator, Sequence

from raidx_fuse.errors import Reason, UsageError

IOV_MAX = 1024  # buffers that one preadv or pwritev takes

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
MAP_NORESERVE = 0x4000  # in Python's mmap module from 3.13 on only

_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}  # linux/magic.h
_BLKROGET = 0x125E  # linux/fs.h
_SIOCOUTQ = 0x5411  # linux/sockios.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]


def try_fallocate(fd: int, mode: int, offset_bytes: int, length_bytes: int) -> bool:
    """Call fallocate(2) with the FALLOC_ bits of *mode*; return False where it is not supported.

    Repeats after EINTR. Raises OSError.
    """
    while _libc.fallocate(fd, mode, offset_bytes, length_bytes) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def lives_in_memory(fd: int) -> bool:
    """Return whether the file system of *fd* is in memory (f_type is first in struct statfs)."""
    answer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(fd, answer) != 0:
        return False
    (kind,) = struct.unpack_from("@l", answer.raw)
    return (kind & 0xFFFFFFFF) in _MEMORY_FILE_SYSTEMS


def check_file_limit(path: str, size_bytes: int) -> None:
    """Raise UsageError if this process must not write *size_bytes* into a file (`ulimit -f`).

    Otherwise the writes behind the limit fail, and the array excludes members that are not broken.
    """
    limit_bytes, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < size_bytes:
        raise UsageError(
            f"{path} has {size_bytes} bytes, and only {limit_bytes} bytes of a file may be written",
            action="lift the limit on the size of files (`ulimit -f unlimited`)",
            reason=Reason.SHORTAGE,
        )


def block_device_is_read_only(fd: int) -> bool:
    """Return whether the block device *fd* is read-only, however it was opened. Raises OSError."""
    answer = bytearray(4)
    fcntl.ioctl(fd, _BLKROGET, answer)
    return any(answer)


def unacknowledged_bytes(fd: int) -> int:
    """Return how much was sent to the socket *fd* and not acknowledged yet. Raises OSError."""
    answer = bytearray(4)
    fcntl.ioctl(fd, _SIOCOUTQ, answer)
    return int(struct.unpack("@i", answer)[0])


def data_extents(fd: int, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the allocated parts of a range of the file, in order.

    A file system without holes yields the whole range. Raises OSError.
    """
    position, end = offset_bytes, offset_bytes + length_bytes
    while position < end:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            raise
        if start >= end:
            return
        position = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        yield start, position - start


def after(
    buffers: Sequence[bytes | bytearray | memoryview], done_bytes: int
) -> list[memoryview | bytes | bytearray]:
    """Return the rest of *buffers* after the first *done_bytes*, without copying."""
    rest: list[memoryview | bytes | bytearray] = []
    for buffer in buffers:
        size = len(buffer)
        if done_bytes >= size:
            done_bytes -= size
        elif done_bytes:
            rest.append(memoryview(buffer)[done_bytes:])
            done_bytes = 0
        else:
            rest.append(buffer)
    return rest
