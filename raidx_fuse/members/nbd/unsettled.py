"""What a member must remember of lost connections: acknowledged writes that no flush covers, and
writes that the server may still carry out.

    write A sent .... connection cut            A is carried out
                         A sent again, answered        write B here would be lost under A

Why order is kept:

* A write without an answer is sent again, because both copies have the same content. Its bytes are
  *unsettled*: no newer write reaches them until the server's process is known to have ended
  (`Pipe.server_ended`). Without such a witness a newer write is refused, as it is over a hung local
  write (members/overdue.py), and its member is excluded. Reads are answered: they find that content
  before and after the late copy.
* A server that was killed may have lost writes that it had answered but not flushed, because NBD
  promises nothing else. So a copy of each is kept until a flush that began after its answer has
  succeeded. When the last connection is lost, they are written again, then the writes without an
  answer, and only then anything new. A flush is sent again after them. So a flush that succeeds
  covers all that was answered before it, whichever server process did it.
* Only the newest content of each byte is written again (`Unflushed.newest`): late copies, also of
  what is written again, then have the same content as what follows them.
* A flush goes over one connection. Several are used only if the server says (multi-conn) that a
  flush on one covers the answered writes of all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import trio

from raidx_fuse.members.nbd.connection import Call
from raidx_fuse.members.nbd.pipe import Pipe
from raidx_fuse.members.nbd.protocol.wire import Command


class Unflushed:
    """Copies of the answered writes that no flush covers; *size_bytes* is their memory."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._calls: deque[Call] = deque()
        self._first = 0  # how many have been dropped: marks are absolute

    def add(self, call: Call) -> None:
        """Keep *call*, which was answered."""
        self._calls.append(call)
        self.size_bytes += _memory(call)

    def mark(self) -> int:
        """Return a mark for `flushed`: all that was added so far."""
        return self._first + len(self._calls)

    def flushed(self, mark: int) -> None:
        """Drop what was added before *mark*: a flush that began then has succeeded."""
        while self._calls and self._first < mark:
            self.size_bytes -= _memory(self._calls.popleft())
            self._first += 1

    def newest(self, later: Sequence[Call]) -> Iterator[Call]:
        """Yield writes of what is the newest content of its bytes; *later* ones follow anyway."""
        covered = _Ranges()
        for call in later:
            covered.add(call.offset_bytes, call.offset_bytes + call.size_bytes)
        for call in reversed(self._calls):
            end = call.offset_bytes + call.size_bytes
            for at, stop in covered.add(call.offset_bytes, end):
                parts: Sequence[memoryview] = ()
                if call.command == Command.WRITE:
                    (data,) = call.buffers
                    first = at - call.offset_bytes
                    parts = [memoryview(data)[first : first + stop - at]]
                yield Call(call.command, at, stop - at, parts, call.flags)


class _Ranges:
    """A set of byte ranges, joined and in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Add a range; return the parts of it that are new."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        new, at = [], begin
        for number in range(first, last):
            if at < self._begins[number]:
                new.append((at, self._begins[number]))
            at = max(at, self._ends[number])
        if at < end:
            new.append((at, end))
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
        return new


def _memory(call: Call) -> int:
    return sum(map(len, call.buffers)) + 100


@dataclass(slots=True, eq=False)
class LostPipe:
    """A cut connection with writes under way: *ranges* in bytes, *ended* once it is harmless."""

    pipe: Pipe
    ranges: list[tuple[int, int]]
    ended: trio.Event


class Unsettled:
    """The byte ranges of writes that servers of cut connections may still carry out."""

    def __init__(self) -> None:
        self._lost: list[LostPipe] = []

    def __bool__(self) -> bool:
        return bool(self._lost)

    def add(self, pipe: Pipe, ranges: list[tuple[int, int]]) -> None:
        """Note that *pipe* was cut with writes to *ranges* under way."""
        if not ranges or pipe.server_ended():
            pipe.forget()
            return
        lost = LostPipe(pipe, ranges, trio.Event())
        self._lost.append(lost)
        if pipe.has_witness:
            trio.lowlevel.spawn_system_task(self._watch, lost)

    async def _watch(self, lost: LostPipe) -> None:
        try:
            await lost.pipe.wait_ended()
            self._lost.remove(lost)
            lost.ended.set()
        finally:
            lost.pipe.forget()

    def overlapping(self, offset_bytes: int, size_bytes: int) -> LostPipe | None:
        """Return a lost connection whose writes may still reach the range, or None."""
        end = offset_bytes + size_bytes
        for lost in self._lost:
            if any(begin < end and offset_bytes < stop for begin, stop in lost.ranges):
                return lost
        return None
