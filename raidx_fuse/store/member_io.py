"""One I/O on one member as a value, and reads of the newest bytes of members.

The newest bytes of a place are what the member holds there, with newer content laid over it.

Newer content is what the log has and the home places lack (the overlay, journal/overlay.py). Every
read of members by the engine and by the jobs goes through the three methods here:

* `try_read` does not suspend, and copies nothing if the overlay knows the whole range;
* `read` takes several requests and suspends if a member must be waited for;
* `lend` gives the memory of a RAM member, if no newer content exists at all.

An I/O is a plain tuple: a NamedTuple makes a small write 9 % slower.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raidx_fuse.errors import MemberError
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.members.base import ReadBuffer, WriteBuffer
from raidx_fuse.members.overdue import covers_overdue
from raidx_fuse.members.unreadable import Unreadable, is_of_place, pages_in
from raidx_fuse.store.observers import PAGE_BYTES, PAGE_MASK, NewerContent
from raidx_fuse.store.queue import READ, MemberQueue, Operation

log = logging.getLogger(__name__)

# role, byte offset on the member, buffers, size in bytes
MemberRead = tuple[Role, int, Sequence[WriteBuffer], int]  # fills its buffers
MemberIO = tuple[Role, int, Sequence[ReadBuffer], int]  # a write, or either
Buffer = TypeVar("Buffer")


def join(
    requests: Sequence[tuple[Role, int, Sequence[Buffer], int]],
) -> list[tuple[Role, int, Sequence[Buffer], int]]:
    """Return *requests* sorted by member and offset, with adjacent ones joined into one I/O."""
    if len(requests) < 2:
        return list(requests)
    ordered = sorted(requests, key=lambda request: request[:2])
    joined = [ordered[0]]
    for request in ordered[1:]:
        role, offset, buffers, size = joined[-1]
        if request[0] == role and request[1] == offset + size:
            joined[-1] = (role, offset, [*buffers, *request[2]], size + request[3])
        else:
            joined.append(request)
    return joined


class MemberLostError(Exception):
    """A member was failed during the operation: the caller plans again (degraded read)."""


class NewestReads(ABC):
    """Reads of the newest bytes of members by role.

    *place_epoch* increases when newer content has reached its home places: a read that began before
    may have missed it there, and would miss it in the overlay, too. *role_epoch* increases when
    another member takes a role. *unreadable* are the pages that readers plan around.
    """

    queues: list[MemberQueue | None]
    readable: list[MemberQueue | None]
    data_offset: int
    clock: Callable[[], float]

    def __init__(self, overlay: NewerContent) -> None:
        self.overlay = overlay
        self.place_epoch = self.role_epoch = 0
        self.unreadable = Unreadable()

    @abstractmethod
    async def _wait(self, operations: Sequence[Operation]) -> list[Operation]:
        """Run *operations* concurrently; return those that failed."""

    @abstractmethod
    def _blame(self, operation: Operation) -> None:
        """Fail the member of a failed operation, or raise its error if it cannot be spared."""

    def try_read(
        self, role: Role, offset: int, buffers: Sequence[WriteBuffer], size: int
    ) -> Any | None:
        """Return a buffer with the newest bytes of a range of *role*, without suspending.

        That is a buffer of the overlay if it knows the whole range, else the first of *buffers*,
        which are filled. Returns None if the member cannot be read synchronously. Raises
        MemberError; after that use `read`.
        """
        overlay = self.overlay
        queue = self.readable[role]
        if not overlay.current and not overlay.frozen:
            if queue is None or not queue.try_readv(offset, buffers, size):
                return None
            return buffers[0]
        known: Any = ()
        if size <= PAGE_BYTES:
            known = overlay.newest(role, offset, size)
            if known:
                return known
        elif (
            not (offset | size) & PAGE_MASK
            and len(buffers) == 1
            and overlay.read(role, offset, buffers[0])
        ):
            return buffers[0]
        if queue is None or not queue.try_readv(offset, buffers, size):
            return None
        if known is not None:
            overlay.patch(role, offset, buffers)
        return buffers[0]

    async def read(self, requests: Sequence[MemberRead], *, background: bool = False) -> None:
        """Fill the buffers of *requests*; suspends only if a member does not answer synchronously.

        Raises MemberLostError if a member was failed or replaced during the call, or a page was
        found unreadable (the caller plans again), and MemberError if a read failed for other
        reasons on a member whose loss the code does not tolerate.
        """
        overlay = self.overlay
        if overlay:
            requests = [request for request in requests if not self._known(request)]
        epoch, role_epoch = self.place_epoch, self.role_epoch
        await self._read_members(requests, background)
        while epoch != self.place_epoch:  # what we read may be from before the placement
            if role_epoch != self.role_epoch:
                raise MemberLostError  # a new member of a role has nothing yet: plan again
            epoch = self.place_epoch
            await self._read_members(requests, background)
        if overlay:
            for role, offset, buffers, _size in requests:
                overlay.patch(role, offset, buffers)

    async def read_base(
        self, reads: Mapping[Role, Sequence[tuple[int, list[memoryview], int]]], *, frozen: bool
    ) -> None:
        """Fill the buffers of *reads* with what lies under the current layer.

        That is the home content, with the frozen layer over it if *frozen*. *reads* are (byte
        offset, one buffer, size) by role, in the order in which a disk does them best. Raises as
        `read`.
        """
        epoch, role_epoch = -1, self.role_epoch
        while epoch != self.place_epoch:  # as in `read`
            if role_epoch != self.role_epoch:
                raise MemberLostError  # as in `read`
            epoch = self.place_epoch
            left: list[MemberRead] = []
            for role, of_role in reads.items():
                queue = self.queues[role]
                if queue is None:
                    raise MemberLostError
                left += [(role, *read) for read in of_role[queue.try_reads(of_role) :]]
            await self._read_members(left, True)
        if frozen and self.overlay.frozen:
            for role, of_role in reads.items():
                for offset, (buffer,), _size in of_role:
                    self.overlay.patch_frozen(role, offset, buffer)

    def lend(self, role: Role, offset: int, size: int, share: float) -> memoryview | None:
        """Return a RAM member's own memory of a range, or None if that is not its newest content.

        *share* of the range counts as read. Raises MemberError.
        """
        queue = self.queues[role]
        return None if queue is None or self.overlay else queue.view(offset, size, share)

    def _known(self, request: MemberRead) -> bool:
        """Fill the buffer of *request* and return True if the overlay has the whole range."""
        role, offset, buffers, size = request
        if (offset | size) & PAGE_MASK or len(buffers) > 1 or self.queues[role] is None:
            return False
        return self.overlay.read(role, offset, buffers[0])

    async def _read_members(self, requests: Sequence[MemberRead], background: bool) -> None:
        """Fill the buffers from the members, without the overlay."""
        pending: list[Operation] | None = None
        change = self.unreadable.changes
        for role, offset, buffers, size in requests:
            queue = self.queues[role]
            if queue is None:
                if pending:  # their buffers must not be left behind
                    await self._wait(pending)
                raise MemberLostError
            try:
                if queue.try_readv(offset, buffers, size):
                    continue
            except MemberError:
                pass  # the queue tries once more
            pending = pending or []
            patched = covers_overdue(queue.member, self.overlay.covers, role, offset, size)
            pending.append(Operation(queue, READ, offset, buffers, size, background, patched))
        if pending:
            failed = await self._wait(pending)
            if failed:
                for operation in failed:
                    await self._read_failed(operation, change)
                raise MemberLostError

    async def _read_failed(self, operation: Operation, change: int) -> None:
        """Note which pages of a failed read are unreadable: one bad sector costs no member.

        *change* is that of *unreadable* when the read began. A reader that asks again for what it
        could have known to be unreadable cannot plan around it. Then, as after other errors, the
        member is failed, or the error is raised if it cannot be spared.
        """
        queue, unreadable, error = operation.queue, self.unreadable, operation.error
        begin, end = operation.offset, operation.offset + operation.size_bytes
        assert error is not None
        role = next((role for role, other in by_role(self.queues) if other is queue), None)
        if role is None:
            return
        is_local = begin >= self.data_offset and is_of_place(error) and not queue.member.overdue
        if not is_local or not unreadable.errors_max:
            return self._blame(operation)
        known = unreadable.pages(role, begin, end)
        if known and not unreadable.came_since(change, role, begin, end):
            return self._blame(operation)
        for page in pages_in(begin, end):
            at = page * PAGE_BYTES
            if unreadable.pages(role, at, at + PAGE_BYTES):
                continue
            probe = Operation(queue, READ, at, [bytearray(PAGE_BYTES)], PAGE_BYTES, True)
            if not await self._wait([probe]):
                continue
            if self.queues[role] is not queue:
                return
            assert probe.error is not None
            too_many = unreadable.count_error(role, self.clock())
            if too_many or not is_of_place(probe.error):
                return self._blame(probe)
            log.warning("%s; it is to be mended", probe.error.message)
            unreadable.add(role, page)
        found = unreadable.came_since(change, role, begin, end)
        if not found and unreadable.count_error(role, self.clock()):  # all can be read by now
            self._blame(operation)

    async def probe(self, role: Role, page: int) -> MemberError | None:
        """Read *page* of the home places of *role*; return the error, None if it can be read."""
        queue = self.queues[role]
        if queue is None:
            return None
        buffer = [bytearray(PAGE_BYTES)]
        operation = Operation(queue, READ, page * PAGE_BYTES, buffer, PAGE_BYTES, True)
        await self._wait([operation])
        return operation.error

    async def try_unreadable(self) -> MemberError | None:
        """Read the unreadable pages again and forget those that can be read.

        Returns the error of the last one that still cannot, or None.
        """
        last = None
        for role, page in list(self.unreadable):
            error = await self.probe(Role(role), page)
            if error is None:
                self.unreadable.discard(role, page)
            last = error or last
        return last
