"""The FUSE operations: inodes, attributes and errno; the volumes do the rest.

The mount's directory lists one regular file for each volume. Such a file behaves like a disk:

- its size is fixed from inside the mount: ``O_TRUNC`` and truncation to the current size do nothing
  (as with ``cp image /dev/sdX``), any other truncation is EPERM;
- a read past the end is short, a write past the end is ENOSPC, a write across the end is cut;
- files cannot be created, renamed or removed (EPERM; `raidx volume` does that); owner, mode and
  times can be set, as on a device node, and last until unmount.

Handlers await only the volume, and the volume's fast path does not suspend. Between a request's
arrival and its answer nothing else runs then (session_loop.py). The handle *fh* encodes all that a
request needs: ``2 * index of the volume + 1 if each write must be durable``.

``O_SYNC`` and ``O_DSYNC`` are implemented here, because the kernel leaves them to the daemon under
direct I/O. The same holds for the flag of a single write (``pwritev2`` with ``RWF_DSYNC``), but
pyfuse3 does not pass it on: under direct I/O such a caller must call ``fsync``.

There is no discard: pyfuse3 3.5 has no handler for ``fallocate``, so the kernel answers EOPNOTSUPP.
A file system on a loop device goes on without it. Volumes are discarded by NBD or `raidx trim`.

A new size is pushed into the kernel (`VolumeOperations._resizing`). Invalidating the old size is
not enough: the kernel discards the attributes of an answer if a write completed while it was under
way, so that on a busy image the inode would keep its old size for ever. `stat` and ``losetup -c``
would then show the new size, but each asynchronous read past the old end would return nothing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
)

from raidx_fuse.errors import RaidxError
from raidx_fuse.journal.group_commit import Deferral
from raidx_fuse.pool.volume import Volume

log = logging.getLogger(__name__)

_FIRST_INODE = pyfuse3.ROOT_INODE + 1
# A resize notifies the kernel, so that it may keep attributes for long. Names are looked up each
# time, because volumes come, go and are renamed.
_TIMEOUT_S = 3600
# After this time the kernel has processed an answer, however late its caller was scheduled.
_TAKEN_S = 1.0
_BLOCK_BYTES = 4096
# After this many failures, further ones are logged only at powers of two: under load, a failed
# array would otherwise fill the disk with its log.
_FAILURES_LOGGED = 64


class _Node:
    """The attributes of one inode: mode, owner, times in ns since 1970."""

    __slots__ = ("atime_ns", "gid", "mode", "mtime_ns", "uid")

    def __init__(self, mode: int, now_ns: int) -> None:
        self.mode = mode
        self.uid = os.getuid()
        self.gid = os.getgid()
        self.atime_ns = self.mtime_ns = now_ns

    def change(self, attr: EntryAttributes, fields: SetattrFields) -> None:
        """Take those attributes of *attr* that *fields* names."""
        if fields.update_mode:
            self.mode = stat.S_IFMT(self.mode) | stat.S_IMODE(attr.st_mode)
        if fields.update_uid:
            self.uid = attr.st_uid
        if fields.update_gid:
            self.gid = attr.st_gid
        if fields.update_atime:
            self.atime_ns = attr.st_atime_ns
        if fields.update_mtime:
            self.mtime_ns = attr.st_mtime_ns


def _refuse(code: int) -> Any:
    async def refused(self: pyfuse3.Operations, *_: object) -> NoReturn:
        raise FUSEError(code)

    return refused


class VolumeOperations(pyfuse3.Operations):
    """Answers the kernel's requests for *volumes*.

    *page_cache* lets the kernel cache file data; without it every read and write comes here.
    *mode* are the permissions of an image; one for others lets them enter the directory too.
    *deferral* is that of the session loop and of the volumes' journals. *space* returns the bytes
    that there are for volumes, and how many are written; None: those of *volumes*, all of them.
    *started* is called once, when the kernel has accepted the session. *mounted_ns* becomes the
    files' time stamps (ns since 1970). *bugs* counts handlers that raised something other than
    RaidxError; each was answered EIO and logged with its traceback.
    """

    supports_dot_lookup = True
    enable_writeback_cache = False

    def __init__(
        self,
        volumes: Sequence[Volume],
        *,
        started: Callable[[], None],
        mounted_ns: int,
        page_cache: bool = False,
        mode: int = 0o600,
        deferral: Deferral | None = None,
        space: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        self._space = space
        self.bugs = 0
        self.failures = 0
        self._volumes: list[Volume] = []  # by inode; those that are hidden keep theirs
        self._by_handle: list[Volume] = []
        self._by_name: dict[bytes, InodeT] = {}
        self._mounted_ns = mounted_ns
        self._started = started
        self._page_cache = page_cache
        self._sizes = trio.Lock()
        self._size_told_s = -_TAKEN_S
        self._mode = mode
        self._deferral = deferral or Deferral()
        folder = 0o555 if mode & 0o077 else 0o500
        self._nodes = {pyfuse3.ROOT_INODE: _Node(stat.S_IFDIR | folder, mounted_ns)}
        for volume in volumes:
            self.show(volume)

    def show(self, volume: Volume) -> None:
        """List *volume* under its present name."""
        if volume not in self._volumes:
            inode = InodeT(_FIRST_INODE + len(self._volumes))
            self._volumes.append(volume)
            self._by_handle += [volume, volume]
            mode = self._mode & 0o444 if volume.read_only else self._mode
            self._nodes[inode] = _Node(stat.S_IFREG | mode, self._mounted_ns)
            volume.on_resize.append(functools.partial(self._resizing, inode))
        inode = InodeT(_FIRST_INODE + self._volumes.index(volume))
        self._by_name[os.fsencode(volume.name)] = inode

    def hide(self, volume: Volume) -> None:
        """List *volume* no longer; it cannot be opened."""
        self._by_name.pop(os.fsencode(volume.name), None)

    def init(self) -> None:
        """Called by pyfuse3 when the kernel has accepted the session."""
        self._started()

    @contextlib.asynccontextmanager
    async def _resizing(self, inode: InodeT) -> AsyncIterator[None]:
        """A volume changes its size inside the block; afterwards the kernel has the new one.

        Storing a byte just before the new end is the only notification that sets an inode's size
        immediately, whatever else is under way. Nobody has written that byte yet. Its page is new
        as well, because image ends are multiples of the chunk size; so no reader can hold it
        locked, and it does not become a valid page of the cache. A volume that shrinks is not open:
        there the kernel asks again.
        """
        before = self._volume(inode).size_bytes
        async with self._sizes:
            # The kernel takes the size of a `_described` answer even if it was notified meanwhile.
            await trio.sleep_until(self._size_told_s + _TAKEN_S)
            yield  # no await from here on: no reader sees the new size before the kernel
            after = self._volume(inode).size_bytes
            try:
                if after < before:
                    pyfuse3.invalidate_inode(inode)
                else:
                    pyfuse3.notify_store(inode, after - 1, b"\0")
            except OSError as error:
                if error.errno != errno.ENOENT:  # ENOENT: the image was never accessed
                    log.warning("the kernel did not take the new size: %s", error)

    # ---- data ----

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Return *size* bytes at *off*, fewer at the end."""
        volume = self._by_handle[fh]
        try:
            if off + size > volume.size_bytes:
                size = max(0, volume.size_bytes - off)
                if not size:
                    return b""
            volume.noted.append(size)
            # pyfuse3 takes any contiguous buffer and replies before anything else runs.
            return await volume.read(off, size)  # type: ignore[return-value]
        except Exception as error:
            self._fail("read", volume, off, size, error)

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write *buf* at *off*; return the number of bytes written."""
        volume = self._by_handle[fh]
        size = len(buf)
        try:
            if off + size > volume.size_bytes:
                size = volume.size_bytes - off
                if size <= 0:
                    raise FUSEError(errno.ENOSPC)
                buf = buf[:size]
            volume.count_write(size)
            if fh & 1:
                self._deferral.allow(False)  # a flush comes before its answer
                await volume.write(off, buf)
                await volume.flush()
            else:
                self._deferral.note_write()
                await volume.write(off, buf)
            return size
        except Exception as error:
            self._fail("write", volume, off, size, error)

    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Return when everything written to the volume is durable on the members."""
        volume = self._by_handle[fh]
        try:
            await volume.flush()
        except Exception as error:
            self._fail("flush", volume, 0, 0, error)

    def _fail(
        self, operation: str, volume: Volume, off: int, size: int, error: Exception
    ) -> NoReturn:
        """Log *error* and raise the FUSEError for it."""
        if isinstance(error, FUSEError):
            raise error
        self.failures += 1
        what = f"{operation} of {size} bytes at {off} of {volume.name}"
        if not isinstance(error, RaidxError):
            # pyfuse3 would end the session, and with it the disk of a mounted file system. Instead
            # the bug is counted and shown by `status`, and the request fails.
            self.bugs += 1
            log.critical("bug: %s", what, exc_info=error)
            raise FUSEError(errno.EIO) from error
        if self.failures <= _FAILURES_LOGGED or not self.failures & (self.failures - 1):
            log.error("%s failed (failure %d): %s", what, self.failures, error)
        raise FUSEError(error.errno) from error

    # ---- names and attributes ----

    @contextlib.asynccontextmanager
    async def _described(self) -> AsyncIterator[None]:
        """Answer inside the block with a size that the kernel accepts, even if it grows then."""
        async with self._sizes:
            yield
            self._size_told_s = trio.current_time()

    def _attributes(self, inode: InodeT) -> EntryAttributes:
        node = self._nodes.get(inode)
        if node is None:
            raise FUSEError(errno.ENOENT)
        entry = EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = node.mode
        entry.st_uid, entry.st_gid = node.uid, node.gid
        if inode == pyfuse3.ROOT_INODE:
            entry.st_nlink = 2
        else:
            entry.st_size = self._volume(inode).size_bytes
            entry.st_blocks = -(-entry.st_size // 512)
        entry.st_blksize = _BLOCK_BYTES
        entry.st_atime_ns = node.atime_ns
        entry.st_mtime_ns = entry.st_ctime_ns = node.mtime_ns
        entry.attr_timeout, entry.entry_timeout = _TIMEOUT_S, 0
        return entry

    def _volume(self, inode: InodeT) -> Volume:
        index = inode - _FIRST_INODE
        if not 0 <= index < len(self._volumes):
            raise FUSEError(errno.EISDIR if inode == pyfuse3.ROOT_INODE else errno.ENOENT)
        return self._volumes[index]

    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Return the attributes of a name in the root directory. Raises FUSEError (ENOENT)."""
        if name in {b".", b".."}:
            return self._attributes(pyfuse3.ROOT_INODE if name == b".." else parent_inode)
        inode = self._by_name.get(name)
        if inode is None:
            raise FUSEError(errno.ENOENT)
        async with self._described():
            return self._attributes(inode)

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._attributes(inode)

    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Accept new times, owner and mode; refuse a different size."""
        async with self._described():
            current = self._attributes(inode)
            if fields.update_size:
                # The kernel sends open(O_TRUNC) as size 0 with a modification time; truncate(2) and
                # ftruncate(2) come without one.
                opened_to_truncate = fh is None and attr.st_size == 0 and fields.update_mtime
                if attr.st_size != current.st_size and not opened_to_truncate:
                    raise FUSEError(errno.EPERM)
            self._nodes[inode].change(attr, fields)
            return self._attributes(inode)

    create = mknod = mkdir = symlink = link = _refuse(errno.EPERM)
    unlink = rmdir = rename = _refuse(errno.EPERM)
    readlink = _refuse(errno.EINVAL)

    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Describe a file system of the *space*; what is not written is free."""
        data = StatvfsData()
        data.f_bsize = data.f_frsize = _BLOCK_BYTES
        shown = [self._volume(inode) for inode in self._by_name.values()]
        size = sum(volume.size_bytes for volume in shown)
        total, written = (size, size) if self._space is None else self._space()
        data.f_blocks = total // _BLOCK_BYTES
        data.f_bfree = data.f_bavail = (total - written) // _BLOCK_BYTES
        data.f_files = len(shown)
        data.f_ffree = data.f_favail = 0
        data.f_namemax = 255
        return data

    # ---- handles ----

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Open a volume; the kernel has checked the permissions (``default_permissions``)."""
        volume = self._volume(inode)
        if inode not in self._by_name.values():
            raise FUSEError(errno.ENOENT)
        if volume.read_only and flags & os.O_ACCMODE != os.O_RDONLY:
            raise FUSEError(errno.EROFS)
        volume.note_opened()
        durable = bool(flags & os.O_DSYNC)  # O_SYNC contains O_DSYNC
        return FileInfo(
            fh=FileHandleT((inode - _FIRST_INODE) * 2 + durable),
            direct_io=not self._page_cache,
            keep_cache=self._page_cache,
        )

    async def flush(self, fh: FileHandleT) -> None:
        """Tell the kernel not to call again: close(2) promises no durability, fsync(2) does."""
        raise FUSEError(errno.ENOSYS)

    async def release(self, fh: FileHandleT) -> None:
        self._by_handle[fh].note_closed()

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        if inode != pyfuse3.ROOT_INODE:
            raise FUSEError(errno.ENOTDIR)
        return FileHandleT(0)

    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        async with self._described():
            for name, inode in sorted(self._by_name.items(), key=lambda entry: entry[1]):
                position = inode - pyfuse3.ROOT_INODE
                if position > start_id and not pyfuse3.readdir_reply(
                    token, name, self._attributes(inode), position
                ):
                    return

    async def releasedir(self, fh: FileHandleT) -> None:
        """Do nothing: handles hold no state."""

    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Do nothing: the directory never changes."""
