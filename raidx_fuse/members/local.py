"""Members on storage of the kernel: files (also sparse ones) and block devices.

An operation is done inline if the kernel can do it in memory, in a thread (members/threads.py) if
it would block:

    read    preadv2(RWF_NOWAIT) inline; EAGAIN or a short answer means "not in the page cache", and
            a thread reads. tmpfs refuses the flag but never blocks: plain preadv inline. Other file
            systems that refuse it (some network ones) always use a thread.
    write   pwritev into the page cache inline, as long as that is quick. One that took longer than
            SLOW_WRITE_S (the kernel throttles writers to slow disks) sends the next
            SLOW_WRITES_SKIPPED to a thread, so that a slow disk does not stop the event loop. Where
            RWF_NOWAIT is refused, the look at the size (0.2 us) might block, too: always a thread.
    flush   fdatasync in a thread (enough, because the size never changes). It does nothing if
            nothing was written since the last flush.

Inline calls, `reserve` and `data_extents` have no time limit: the watchdog runs on the event loop
that a blocked call stops. A write of 4 KiB takes 29 us of CPU through a thread and 1.1 us inline.

After a failed flush every flush fails until the member is opened again: Linux drops the lost pages
once it has reported them, so a second fdatasync would succeed although data never reached the disk.

Locks: a file is locked by flock (exclusive, or shared when read-only), a block device by O_EXCL,
which mounts and other arrays use as well. Both end with the descriptor, also when the process is
killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import perf_counter

from raidx_fuse.errors import InUseError, MemberError, Reason, ShorterError, UsageError
from raidx_fuse.members import syscalls
from raidx_fuse.members.base import (
    SECTOR_BYTES,
    HostSpace,
    Identity,
    Member,
    ReadBuffer,
    WriteBuffer,
    host_error,
    host_errors,
)
from raidx_fuse.members.kernel_files import lock_holder, rotates
from raidx_fuse.members.threads import Workers

SLOW_WRITE_S = 0.004
SLOW_WRITES_SKIPPED = 64
DEPTH = 4  # threads at most: enough for a disk to sort requests; more compete for the GIL

_NEVER_INLINE = -1


def create_file(path: str, size_bytes: int) -> None:
    """Make a sparse file of *size_bytes*, durably; it then reads as zero (``reads_zero=True``).

    Raises UsageError for a size that is not a multiple of 512 and for a path that already exists
    (existing files are never truncated), MemberError for errors of the host.
    """
    if size_bytes <= 0 or size_bytes % SECTOR_BYTES:
        raise UsageError(f"{path}: a member's size is a multiple of {SECTOR_BYTES} bytes")
    syscalls.check_file_limit(path, size_bytes)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{path}: exists already and is not touched", reason=Reason.EXISTS
        ) from None
    except OSError as error:
        raise host_error(path, "create", error) from None
    try:
        os.ftruncate(fd, size_bytes)
        os.fsync(fd)
        _sync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise host_error(path, "create", error) from None
    finally:
        os.close(fd)


class LocalMember(Member):
    """A file or a block device, opened and locked.

    *reads_zero* is stated by the caller: true for a file that `create_file` made and that only
    arrays have written since. *lock* is false to examine a member that may be in use (*read_only*
    should then be true). The size is fixed when the member is opened.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        reads_zero: bool = False,
        lock: bool = True,
        depth: int = DEPTH,
    ) -> None:
        """Open *path*.

        Raises BusyError if it is in use, MemberError if it cannot be opened, and UsageError if this
        process must not write all of it.
        """
        self.path = path
        self.read_only = read_only
        self.reads_zero = reads_zero
        self.depth = depth
        self._fd = _open(path, read_only, lock)
        try:
            self.kind = _kind(path, self._fd)
            self.size_bytes = os.lseek(self._fd, 0, os.SEEK_END)
            if self.kind == "file" and not read_only:
                syscalls.check_file_limit(path, self.size_bytes)
            self.identity = identity_of(os.fstat(self._fd))
            self.rotates = rotates(os.fstat(self._fd))
            if not read_only:
                _drop_cached_pages(self._fd)
            self._read_flags = self._probe_nowait()
        except BaseException:
            os.close(self._fd)
            raise
        # Closed when the last thread is done, not earlier: a stuck thread would write to another
        # file that gets the same descriptor number, and another mount would get the lock while a
        # write of this one may still arrive.
        self._workers = Workers(path, depth, lambda: os.close(self._fd))
        # One comparison on the hot path checks range, permission and "not closed" together.
        self._readable_bytes = self.size_bytes
        self._writable_bytes = -1 if read_only else self.size_bytes
        self._left_bytes: int | None = None  # the least that was left, once it became shorter
        self._inline_writes_skipped = 0
        # Writes begun or done, and how many of them a flush has covered. It begins with one write
        # not covered: a killed process may have left dirty pages of this file in the page cache.
        self._writes, self._writes_flushed = 1, 0
        self._flush_failed = False

    def _probe_nowait(self) -> int:
        """Return the preadv flags with which reads do not block, or _NEVER_INLINE if none do."""
        try:
            os.preadv(self._fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return os.RWF_NOWAIT
            in_memory = self.kind == "file" and syscalls.lives_in_memory(self._fd)
            return 0 if in_memory else _NEVER_INLINE
        return os.RWF_NOWAIT

    def try_readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> bool:
        flags = self._read_flags
        if flags == _NEVER_INLINE:
            return False
        length = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if offset_bytes < 0 or offset_bytes + length > self._readable_bytes:
            self.refuse("read", offset_bytes, length)
        try:
            return os.preadv(self._fd, buffers, offset_bytes, flags) == length
        except OSError as error:
            if error.errno == errno.EAGAIN or len(buffers) > syscalls.IOV_MAX:
                return False
            raise host_error(self.path, "read", error, offset_bytes) from None

    def try_check_whole(self) -> bool:
        if self._read_flags == _NEVER_INLINE:
            return False
        self._require_whole("check")
        return True

    async def check_whole(self) -> None:
        self._check("check", 0, 0)
        await self._workers.do(lambda: self._require_whole("check"))

    async def path_problem(self) -> str | None:
        found = ""

        def work() -> None:
            nonlocal found
            if self.kind == "file" and not os.fstat(self._fd).st_nlink:
                found = "the file was deleted: its content is gone when the array is unmounted"
                return
            try:
                if identity_of(os.stat(self.path)) != self.identity:
                    found = "the path leads to something else by now"
            except OSError as error:
                found = f"the path does not lead to the member any more: {error.strerror}"

        self._check("check", 0, 0)
        await self._workers.do(work)
        return found or None

    def _require_whole(self, operation: str) -> None:
        """Raise ShorterError if the file or device has become shorter, now or before."""
        if self._left_bytes is None:
            try:
                size = os.lseek(self._fd, 0, os.SEEK_END)  # no other call uses the position
            except OSError as error:
                raise host_error(self.path, operation, error) from None
            if size >= self.size_bytes:
                return
            # Stays so: what was cut off and extended again has lost its content.
            self._left_bytes = self._readable_bytes = size
            self._writable_bytes = -1
        raise ShorterError(self.path, operation, self._left_bytes, self.size_bytes)

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        if self._read_flags == _NEVER_INLINE:
            return False
        if self._inline_writes_skipped:
            self._inline_writes_skipped -= 1
            return False
        length = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if offset_bytes < 0 or offset_bytes + length > self._writable_bytes:
            self.refuse("write", offset_bytes, length)
        if os.lseek(self._fd, 0, os.SEEK_END) < self.size_bytes:
            self._require_whole("write")
        self._writes += 1
        on_disk = self._read_flags  # 0: a file in memory, where a slow write means a busy CPU
        begin_s = perf_counter() if on_disk else 0.0
        try:
            done = os.pwritev(self._fd, buffers, offset_bytes)
            if done != length:
                self._write_all(offset_bytes + done, syscalls.after(buffers, done))
        except OSError as error:
            if len(buffers) > syscalls.IOV_MAX:
                return False
            raise host_error(self.path, "write", error, offset_bytes) from None
        if on_disk and perf_counter() - begin_s > SLOW_WRITE_S:
            self._inline_writes_skipped = SLOW_WRITES_SKIPPED
        return True

    def try_reads(self, reads: Sequence[tuple[int, Sequence[WriteBuffer], int]]) -> int:
        flags, done = self._read_flags, 0
        if flags == _NEVER_INLINE:
            return 0
        with suppress(OSError):  # the caller repeats the read and gets the error then
            for offset_bytes, buffers, size_bytes in reads:
                inside = offset_bytes + size_bytes <= self._readable_bytes and offset_bytes >= 0
                if not inside or os.preadv(self._fd, buffers, offset_bytes, flags) != size_bytes:
                    break
                done += 1
        return done

    def try_writes(self, writes: Sequence[tuple[int, Sequence[ReadBuffer], int]]) -> int:
        if self._inline_writes_skipped or self._read_flags == _NEVER_INLINE:
            return super().try_writes(writes)
        if not self.closed:
            self._require_whole("write")
        slow_s = SLOW_WRITE_S if self._read_flags else float("inf")  # as in `try_writev`
        done, begin_s = 0, perf_counter()
        with suppress(OSError):  # the caller repeats the write and gets the error then
            for offset_bytes, buffers, size_bytes in writes:
                if offset_bytes + size_bytes > self._writable_bytes or offset_bytes < 0:
                    break
                if os.pwritev(self._fd, buffers, offset_bytes) != size_bytes:
                    break  # a short write: the caller repeats it as a whole
                done += 1
                before_s, begin_s = begin_s, perf_counter()
                if begin_s - before_s > slow_s:  # the rest must go to a thread
                    self._inline_writes_skipped = SLOW_WRITES_SKIPPED
                    break
        self._writes += max(1, done)
        return done

    async def readv(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        length = sum(map(len, buffers))
        self._check("read", offset_bytes, length)

        def work() -> None:
            with host_errors(self.path, "read", offset_bytes):
                self._read_all(offset_bytes, buffers)

        await self._workers.do(work)

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        length = sum(map(len, buffers))
        self._check("write", offset_bytes, length)

        def work() -> None:
            self._require_whole("write")
            with host_errors(self.path, "write", offset_bytes):
                self._write_all(offset_bytes, buffers)

        # Counted at both ends: neither a flush during the write, nor a flush after a cancelled
        # write, counts it as covered.
        self._writes += 1
        await self._workers.do(work)
        self._writes += 1

    async def flush(self) -> None:
        if self.read_only or self._writes_flushed >= self._writes:
            return
        self._check("flush", -1, 0)
        if self._flush_failed:
            raise MemberError(self.path, "flush", -1, errno.EIO, "an earlier flush lost data")
        target = self._writes

        def work() -> None:
            self._require_whole("flush")
            with host_errors(self.path, "flush", -1):
                os.fdatasync(self._fd)

        try:
            await self._workers.do(work)
        except MemberError:
            self._flush_failed = True
            raise
        self._writes_flushed = max(self._writes_flushed, target)

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        """Give a file's range back to the host; False on block devices and where not supported.

        Block devices are left out because a discarded range need not read as zero.
        """
        if self.kind != "file" or not length_bytes:
            return not length_bytes
        self._check("write", offset_bytes, length_bytes)
        supported = False

        def work() -> None:
            nonlocal supported
            self._require_whole("punch")
            mode = syscalls.FALLOC_PUNCH_HOLE | syscalls.FALLOC_KEEP_SIZE
            with host_errors(self.path, "punch", offset_bytes):
                supported = syscalls.try_fallocate(self._fd, mode, offset_bytes, length_bytes)

        self._writes += 1
        await self._workers.do(work)
        self._writes += 1
        return supported

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        if self.kind != "file" or not length_bytes:
            return
        self._check("write", offset_bytes, length_bytes)
        with host_errors(self.path, "reserve", offset_bytes):
            mode = syscalls.FALLOC_KEEP_SIZE
            syscalls.try_fallocate(self._fd, mode, offset_bytes, length_bytes)

    def host_space(self) -> HostSpace | None:
        if self.kind != "file" or self.closed:
            return None
        file, host = os.fstat(self._fd), os.fstatvfs(self._fd)
        free = host.f_bfree if os.geteuid() == 0 else host.f_bavail
        missing_bytes = max(0, file.st_size - file.st_blocks * SECTOR_BYTES)
        return HostSpace(file.st_dev, free * host.f_frsize, missing_bytes)

    def data_extents(self, offset_bytes: int, length_bytes: int) -> Iterator[tuple[int, int]]:
        self._check("read", offset_bytes, length_bytes)
        if self.kind == "file":
            with host_errors(self.path, "map", offset_bytes):
                yield from syscalls.data_extents(self._fd, offset_bytes, length_bytes)
        elif length_bytes:
            yield offset_bytes, length_bytes

    def close(self) -> None:
        """Refuse new operations, and close the file and its lock when the last thread is done."""
        self.closed = True
        self._readable_bytes = self._writable_bytes = -1
        self._workers.stop()

    def _read_all(self, offset_bytes: int, buffers: Sequence[WriteBuffer]) -> None:
        rest: Sequence[ReadBuffer] = buffers
        while rest:
            done = os.preadv(self._fd, rest[: syscalls.IOV_MAX], offset_bytes)
            if not done and any(map(len, rest)):
                self._require_whole("read")
                raise OSError(errno.EIO, "the host returned nothing")
            offset_bytes += done
            rest = syscalls.after(rest, done)

    def _write_all(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        rest = buffers
        while rest:
            done = os.pwritev(self._fd, rest[: syscalls.IOV_MAX], offset_bytes)
            offset_bytes += done
            rest = syscalls.after(rest, done)

    def _check(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        size = self.size_bytes if self._left_bytes is None else self._readable_bytes
        outside = offset_bytes + length_bytes > size or (offset_bytes < 0 and operation != "flush")
        if outside or self.closed or (operation == "write" and self.read_only):
            self.refuse(operation, offset_bytes, length_bytes)

    def refuse(self, operation: str, offset_bytes: int, length_bytes: int) -> None:
        if self._left_bytes is not None and not self.closed:
            raise ShorterError(self.path, operation, self._left_bytes, self.size_bytes)
        super().refuse(operation, offset_bytes, length_bytes)


def _open(path: str, read_only: bool, lock: bool) -> int:
    flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):  # opening a pipe or a tape has effects
            raise MemberError(path, "open", -1, errno.EINVAL, "neither a file nor a block device")
        is_block = stat.S_ISBLK(mode)
        fd = os.open(path, flags | (os.O_EXCL if is_block and lock else 0))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise InUseError(f"{path}: mounted or a part of another array") from None
        raise host_error(path, "open", error) from None
    if is_block and not read_only and syscalls.block_device_is_read_only(fd):
        os.close(fd)  # opening it for writing succeeds since Linux 6, the first write fails
        raise MemberError(path, "open", -1, errno.EROFS, "the device is read-only")
    if lock and not is_block:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder, pid = lock_holder(os.fstat(fd))
            os.close(fd)
            if error.errno == errno.EWOULDBLOCK:
                raise InUseError(f"{path}: in use by {holder}", pid=pid) from None
            raise host_error(path, "lock", error) from None
    return fd


def _drop_cached_pages(fd: int) -> None:
    """Let the first reads come from the medium.

    When a flush fails, Linux keeps the pages that it could not write, marked as clean: they can be
    read, no later flush writes them, and they are gone after a power cut. A start that reads them
    takes for durable what is not, and overwrites what is (superblocks and pages have two slots).
    """
    with suppress(OSError):  # the error of that flush: it was never acknowledged
        os.fdatasync(fd)
    with suppress(OSError):  # a file system without a page cache
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _kind(path: str, fd: int) -> str:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
        return "file" if stat.S_ISREG(mode) else "block"
    raise MemberError(path, "open", -1, errno.EINVAL, "changed its kind while it was opened")


def identity_of(status: os.stat_result) -> Identity:
    """Return (device, inode) of a file, (-1, number) of a block device, from its *status*."""
    if stat.S_ISBLK(status.st_mode):
        return -1, status.st_rdev
    return status.st_dev, status.st_ino


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
