"""Linux's asynchronous I/O from Python: many requests of one thread under way on one file.

The kernel lets only one `write` at a time into a FUSE file; of those submitted here it sends all.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from typing import Any

READ, WRITE, FSYNC = 0, 1, 2
# io_setup, io_destroy, io_submit, io_getevents
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def why_not() -> str | None:
    """The reason why there is no asynchronous I/O here."""
    machine = platform.machine()
    return None if machine in _CALLS else f"the system calls of {machine} are not known"


def _call(*words: Any) -> int:
    done = int(_libc.syscall(*words))
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


class Aio:
    """Up to *depth* requests under way, numbered 0 to *depth* - 1 by the caller.

    Request n has the memory ``buffers[n]`` of *buffer_bytes*. It is made of whole pages: FUSE would
    send what is not aligned as two requests if it is large.
    """

    def __init__(self, depth: int, buffer_bytes: int) -> None:
        setup, self._destroy, self._submit, self._get = _CALLS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._blocks = [ctypes.create_string_buffer(_IOCB.size) for _ in range(depth)]
        self.buffers = [mmap.mmap(-1, buffer_bytes) for _ in range(depth)]
        self._addresses = [ctypes.addressof(ctypes.c_char.from_buffer(b)) for b in self.buffers]
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._depth = depth
        _call(setup, ctypes.c_uint(depth), ctypes.byref(self._context))

    def submit(self, tag: int, kind: int, descriptor: int, offset: int, length: int) -> None:
        """Begin request *tag* on so many bytes, none for FSYNC."""
        address = self._addresses[tag] if length else 0
        block = self._blocks[tag]
        block.raw = _IOCB.pack(tag, 0, 0, kind, 0, descriptor, address, length, offset, 0, 0, 0)
        pointer = ctypes.c_void_p(ctypes.addressof(block))
        _call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(pointer))

    def wait(self) -> list[tuple[int, int]]:
        """Return what is over, at least one: (tag, bytes or the negative error number)."""
        zero = ctypes.c_long(1), ctypes.c_long(self._depth)
        count = _call(self._get, self._context, *zero, ctypes.byref(self._events), None)
        raw = self._events.raw
        return [_EVENT.unpack_from(raw, n * _EVENT.size)[::2] for n in range(count)]

    def close(self) -> None:
        """Wait for what is under way and end."""
        _call(self._destroy, self._context)
