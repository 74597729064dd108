"""Protections of a daemon in the kernel's I/O path against deadlock under memory pressure.

A loop device with a file system on the image makes this process part of writeback. To free memory
the kernel writes dirty pages; the writes come here; and if answering them needs memory that only
writeback can free, everything stops. Three protections are requested and reported one by one:

- ``PR_SET_IO_FLUSHER``: our allocations never start writeback or file-system reclaim (Linux 5.6).
- ``mlockall``: our pages are never swapped out. With MCL_ONFAULT only touched pages are locked, so
  that a sparse RAM member of 1 TiB costs only what it holds.
- ``oom_score_adj``: the OOM killer chooses other processes first. Killing this one would only make
  the disk's users lose data.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from raidx_fuse.documents import ProtectionState

_PR_SET_IO_FLUSHER = 57
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_CAP_IPC_LOCK, _CAP_SYS_RESOURCE = 14, 24
_OOM_SCORE = -1000  # never kill
ADDRESS_SPACE_BYTES = 1 << 30  # of a daemon: 450 MiB with three members, 8 MiB for each thread
_COLLECT_AFTER = 10_000  # new objects; Python's own 700 come with every few requests


@contextmanager
def few_collections() -> Iterator[None]:
    """Have the garbage collector look seldom, and only at objects made inside of the block.

    What exists now stays; requests make few cycles, but keep many objects for a while. Writes to
    exports, 16 deep, take 142 us of CPU instead of 178 (151 with Python's threshold); with members
    that answer at once it makes no difference.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class Protection:
    """One protection: is it active, and if not, why not and what would permit it?"""

    active: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Protections:
    """All protections, as `status` shows them."""

    io_flusher: Protection
    memory_locked: Protection
    oom_protected: Protection

    def as_dict(self) -> dict[str, ProtectionState]:
        return asdict(self)


def check_address_space() -> None:
    """Raise RaidxError if this process may have too little address space for a daemon.

    Under `ulimit -v` a daemon may start and fail later, at a thread that never begins: then every
    request to its mount would hang.
    """
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < ADDRESS_SPACE_BYTES:
        raise RaidxError(
            f"only {format_size(limit_bytes)} of memory are allowed, a daemon may need "
            f"{format_size(ADDRESS_SPACE_BYTES)}",
            action="allow more: ulimit -v unlimited",
            reason=Reason.SHORTAGE,
        )


def protect() -> Protections:
    """Request each protection from the kernel, for this process from now on."""
    return Protections(
        io_flusher=_attempt(_set_io_flusher),
        memory_locked=_attempt(_lock_memory),
        oom_protected=_attempt(_set_oom_score),
    )


def _attempt(remedy: Callable[[], None]) -> Protection:
    try:
        remedy()
    except PermissionError as error:
        return Protection(False, str(error.args[-1]))
    except OSError as error:
        return Protection(False, os.strerror(error.errno or 0).lower())
    return Protection(True)


def _set_io_flusher() -> None:
    if not _capable(_CAP_SYS_RESOURCE):
        raise PermissionError("needs CAP_SYS_RESOURCE")
    _call("prctl", _PR_SET_IO_FLUSHER, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))


def _lock_memory() -> None:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit_bytes != resource.RLIM_INFINITY and not _capable(_CAP_IPC_LOCK):
        # With a limit this call may succeed, and a later mmap (a member, a thread) then fail.
        raise PermissionError(
            f"needs CAP_IPC_LOCK, or no limit on locked memory (now {limit_bytes >> 10} KiB)"
        )
    _call("mlockall", _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT)


def _set_oom_score() -> None:
    path = Path("/proc/self/oom_score_adj")
    if int(kernel_text(path)) <= _OOM_SCORE:
        return
    if not _capable(_CAP_SYS_RESOURCE):
        raise PermissionError("needs CAP_SYS_RESOURCE")
    path.write_text(str(_OOM_SCORE))


def _capable(capability: int) -> bool:
    """Return whether this process has *capability* (a bit number) in its effective set."""
    for line in kernel_text("/proc/self/status").split("\n"):
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
