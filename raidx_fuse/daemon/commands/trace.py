"""The command `trace`: which requests pass, and which cells they read and write.

It costs nothing while nobody asks. The first question lays functions that note each operation over
the methods of the member queues, and each request over those of the volumes; further questions keep
them there. The first operation after `LEASE_S` without a question takes them away again. What is
noted lies in two rings of fixed size, so that a question that comes late misses the oldest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.errors import UsageError
from raidx_fuse.format.configuration.volumes import Extent
from raidx_fuse.layouts.numbers import MemberChunk, Role, by_role
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.pool.volume import Volume, parts_of
from raidx_fuse.store.queue import PUNCH, READ, WRITE, CountdownLatch, MemberQueue, Operation

LEASE_S = 5.0
OPERATIONS_KEPT = 1024
REQUESTS_KEPT = 256
CELLS_MAX = 512  # of one answer
WRITES = (WRITE, PUNCH)

Note = Callable[[str, int, int], None]


class Trace:
    """Notes what passes through *array* and its *volumes* while somebody asks."""

    def __init__(self, array: Array, volumes: Sequence[Volume]) -> None:
        self._array = array
        self._volumes = volumes
        self._clock = array.member_set.clock
        self._until_s = 0.0
        self._queues: list[MemberQueue] = []
        self._watched: list[Volume] = []
        self._number = 0  # of operations and requests so far
        # (number, role, whether it writes, offset on the member, bytes)
        self._operations: deque[tuple[int, Role, bool, int, int]] = deque(maxlen=OPERATIONS_KEPT)
        # (number, volume, whether it writes, offset in the volume, bytes)
        self._requests: deque[tuple[int, Volume, bool, int, int]] = deque(maxlen=REQUESTS_KEPT)

    async def trace(self, since: int = 0) -> Result:
        """Return what has passed after number *since*, and go on noting for `LEASE_S`.

        *cells*: [stripe, name of the cell, whether it was written, accesses], the newest
        `CELLS_MAX`; *log*: the roles whose log was written; *other*: operations elsewhere on the
        members; *requests*: number, volume, operation, offset in the volume and in the image (None:
        not one range of it), length. *missed*: how many entries were noted and are not told.
        *next* is the *since* of the next question.
        """
        if since < 0:
            raise UsageError(f"trace: since cannot be {since}")
        self._until_s = self._clock() + LEASE_S
        self._begin()
        operations = [entry for entry in self._operations if entry[0] > since]
        requests = [entry for entry in self._requests if entry[0] > since]
        document = {
            "next": self._number,
            "missed": max(0, self._number - since - len(operations) - len(requests)),
            "requests": list(self._shown(requests)),
            **self._cells(operations),
        }
        context = self._array.context
        return document | {
            "stripes": context.layout.stripes,
            "chunk_size": context.chunk_bytes,
            "data_offset": context.member_set.data_offset,
        }

    # -- noting ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Note also what passes through queues and volumes that are new since the last question."""
        queues = [(role, q) for role, q in by_role(self._array.member_set.queues) if q is not None]
        if [queue for _, queue in queues] != self._queues:
            self._end_queues()
            for role, queue in queues:
                queue.lay_over(noting(queue, partial(self._note_operation, role)))
            self._queues = [queue for _, queue in queues]
        if list(self._volumes) != self._watched:
            self._end_volumes()
            for volume in self._volumes:
                volume.watch(partial(self._note_request, volume))
            self._watched = list(self._volumes)

    def _end_queues(self) -> None:
        for queue in self._queues:
            queue.lay_over({})
        self._queues = []

    def _end_volumes(self) -> None:
        for volume in self._watched:
            volume.watch(None)
        self._watched = []

    def _is_over(self) -> bool:
        """Return whether nobody has asked for a while, and stop noting then."""
        if self._clock() <= self._until_s:
            return False
        self._end_queues()
        self._end_volumes()
        return True

    def _note_operation(self, role: Role, kind: str, offset: int, size_bytes: int) -> None:
        if not self._is_over():
            self._number += 1
            self._operations.append((self._number, role, kind in WRITES, offset, size_bytes))

    def _note_request(self, volume: Volume, writes: bool, offset: int, size_bytes: int) -> None:
        if not self._is_over():
            self._number += 1
            self._requests.append((self._number, volume, writes, offset, size_bytes))

    # -- telling -----------------------------------------------------------------------------------

    def _cells(self, operations: list[tuple[int, Role, bool, int, int]]) -> Result:
        """Return the cells of *operations*; the newest, if they are too many."""
        regions = self._array.member_set.config.regions
        counts: dict[tuple[int, str, bool], int] = {}
        log: set[int] = set()
        other = 0
        for _, role, writes, offset, size_bytes in reversed(operations):
            if offset < self._array.context.member_set.data_offset:
                if writes and regions.log.offset <= offset < regions.log.end:
                    log.add(role)
                else:
                    other += 1
                continue
            for stripe, cell in self._cells_of(role, offset, size_bytes):
                key = stripe, cell, writes
                if key in counts or len(counts) < CELLS_MAX:
                    counts[key] = counts.get(key, 0) + 1
        return {
            "cells": [[*key, count] for key, count in counts.items()],
            "log": sorted(log),
            "other": other,
        }

    def _cells_of(self, role: Role, offset: int, size_bytes: int) -> Iterator[tuple[int, str]]:
        """Yield (stripe, name of the cell) of the first `CELLS_MAX` chunks of a range."""
        context = self._array.context
        begin = offset - context.member_set.data_offset
        first = begin // context.chunk_bytes
        last = (begin + max(1, size_bytes) - 1) // context.chunk_bytes
        for chunk in range(first, min(last + 1, first + CELLS_MAX)):
            try:
                found = context.layout.inverse(role, MemberChunk(chunk))
            except IndexError:  # beyond the chunks of the layout: the table of a raidx array
                return
            if found is not None:
                yield found[0], context.code.name_of(found[1])

    def _shown(self, requests: Iterable[tuple[int, Volume, bool, int, int]]) -> Iterator[Result]:
        table = self._array.member_set.config.volumes
        for number, volume, writes, offset, size_bytes in requests:
            extents: Sequence[Extent] = (Extent(0, volume.size_bytes),)
            if table is not None:
                record = table.find(volume.uuid)
                extents = () if record is None or record.move is not None else record.extents
            parts = list(parts_of(extents, offset, size_bytes)) if extents else []
            yield {
                "number": number,
                "volume": volume.name,
                "operation": "write" if writes else "read",
                "offset": offset,
                "image_offset": parts[0][0] if len(parts) == 1 else None,
                "length": size_bytes,
            }


def noting(queue: MemberQueue, note: Note) -> dict[str, Callable[..., Any]]:
    """Return methods for *queue* that call *note* (kind, offset, bytes) and then its own."""
    own = type(queue)

    def try_readv(offset: int, buffers: Sequence[WriteBuffer], size_bytes: int) -> bool:
        done = own.try_readv(queue, offset, buffers, size_bytes)
        if done:
            note(READ, offset, size_bytes)
        return done

    def try_writev(offset: int, buffers: Sequence[ReadBuffer], size_bytes: int) -> bool:
        done = own.try_writev(queue, offset, buffers, size_bytes)
        if done:
            note(WRITE, offset, size_bytes)
        return done

    def try_reads(reads: Sequence[tuple[int, Sequence[WriteBuffer], int]]) -> int:
        done = own.try_reads(queue, reads)
        for offset, _, size_bytes in reads[:done]:
            note(READ, offset, size_bytes)
        return done

    def try_writes(writes: Sequence[tuple[int, Sequence[ReadBuffer], int]]) -> int:
        done = own.try_writes(queue, writes)
        for offset, _, size_bytes in writes[:done]:
            note(WRITE, offset, size_bytes)
        return done

    def view(offset: int, size_bytes: int, fraction: float = 1.0) -> memoryview | None:
        found = own.view(queue, offset, size_bytes, fraction)
        if found is not None:
            note(READ, offset, size_bytes)
        return found

    def writable_view(offset: int, size_bytes: int) -> memoryview | None:
        found = own.writable_view(queue, offset, size_bytes)
        if found is not None:
            note(WRITE, offset, size_bytes)
        return found

    def submit(operation: Operation, latch: CountdownLatch) -> None:
        if operation.kind in (READ, WRITE, PUNCH):
            note(operation.kind, operation.offset, operation.size_bytes)
        own.submit(queue, operation, latch)

    methods = (try_readv, try_writev, try_reads, try_writes, view, writable_view, submit)
    return {method.__name__: method for method in methods}
