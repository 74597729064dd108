"""A member in use and its successor, which gets every write that the first one gets.

While a member is replaced (jobs/replace.py), its role is served by a `Twin`: reads come from the
member, writes, holes and flushes go to both. So what was copied to the successor once stays right.
The superblocks are not mirrored: each of the two has its own. An error of the successor ends
nothing but the replacement; one of the member is the role's, as ever.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

import trio

from raidx_fuse.errors import MemberError
from raidx_fuse.members.base import Member, ReadBuffer, WrapperMember

log = logging.getLogger(__name__)

ZEROS = bytes(1 << 20)


class Twin(WrapperMember):
    """*inner* with its *successor*; bytes below *own_bytes* belong to each of them alone.

    *patience_s* returns how many seconds the successor may take for an operation. *error* says why
    the successor is out of use; None while it is in use. No operation is synchronous but reads:
    both members, or none, must have a write when it is known to be done.
    """

    def __init__(
        self, inner: Member, successor: Member, own_bytes: int, patience_s: Callable[[], float]
    ) -> None:
        super().__init__(inner)
        self.successor = successor
        self.error: MemberError | None = None
        self.has_passed_on = False  # the successor has the role, and its own superblock
        self.has_ended = False  # each of the two is a member of its own
        self._copies = 0  # writes and holes that are on their way to the successor
        self._own_bytes = own_bytes
        self._patience_s = patience_s

    def pass_on(self) -> None:
        """Let the successor have the superblocks that are written from now on."""
        self.has_passed_on = True

    def end(self) -> None:
        """Copy nothing any more: a write that comes late from *inner* is older than what follows.

        Copies that are on their way still arrive.
        """
        self.has_ended = True

    @property
    def _mirrors(self) -> bool:
        return self.error is None and not self.has_ended

    def try_writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> bool:
        return False

    async def writev(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        if offset_bytes < self._own_bytes:
            owner = self.successor if self.has_passed_on else self.inner
            await owner.writev(offset_bytes, buffers)
            return
        await self.inner.writev(offset_bytes, buffers)
        if self.has_passed_on and self.is_overdue(offset_bytes, sum(map(len, buffers))):
            return  # it was given up, and the successor may have something newer
        await self.copy(offset_bytes, buffers)

    async def readv(self, offset_bytes: int, buffers: Sequence[bytearray | memoryview]) -> None:
        own = offset_bytes < self._own_bytes and self.has_passed_on
        await (self.successor if own else self.inner).readv(offset_bytes, buffers)

    async def copy(self, offset_bytes: int, buffers: Sequence[ReadBuffer]) -> None:
        """Write to the successor alone; never raises."""
        if not self._mirrors:
            return
        self._copies += 1
        try:
            with trio.move_on_after(self._patience_s()) as waiting:
                await self.successor.writev(offset_bytes, buffers)
        except MemberError as error:
            self._give_up(error)
        else:
            if waiting.cancelled_caught:
                self._give_up(self._late("write", offset_bytes))
        finally:
            self._copies -= 1

    async def flush(self) -> None:
        await self.inner.flush()
        if not self._mirrors:
            return
        try:
            with trio.move_on_after(self._patience_s()) as waiting:
                await self.successor.flush()
        except MemberError as error:
            self._give_up(error)
        else:
            if waiting.cancelled_caught:
                self._give_up(self._late("flush", 0))

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        if not await self.inner.punch(offset_bytes, length_bytes):
            return False
        done = False
        if self._mirrors:
            self._copies += 1
            try:
                with trio.move_on_after(self._patience_s()) as waiting:
                    done = await self.successor.punch(offset_bytes, length_bytes)
                if waiting.cancelled_caught:
                    self._give_up(self._late("punch", offset_bytes))
            except MemberError as error:
                self._give_up(error)
            finally:
                self._copies -= 1
        for at in range(0, 0 if done else length_bytes, len(ZEROS)):
            size = min(len(ZEROS), length_bytes - at)
            await self.copy(offset_bytes + at, [ZEROS[:size]])
        return True

    def note_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        """Mark a write as abandoned, of the two members as well: they may outlive this.

        To the successor it is on its way only if a copy is.
        """
        super().note_overdue(offset_bytes, size_bytes)
        self.inner.note_overdue(offset_bytes, size_bytes)
        if self._copies:
            self.successor.note_overdue(offset_bytes, size_bytes)

    def end_overdue(self, offset_bytes: int, size_bytes: int) -> None:
        super().end_overdue(offset_bytes, size_bytes)
        self.inner.end_overdue(offset_bytes, size_bytes)
        if (offset_bytes, offset_bytes + size_bytes) in self.successor.overdue:
            self.successor.end_overdue(offset_bytes, size_bytes)

    def reserve(self, offset_bytes: int, length_bytes: int) -> None:
        self.inner.reserve(offset_bytes, length_bytes)
        if self._mirrors:
            try:
                self.successor.reserve(offset_bytes, length_bytes)
            except MemberError as error:
                self._give_up(error)

    def note_watched(self) -> None:
        super().note_watched()
        self.successor.note_watched()

    def is_settled(self) -> bool:
        return super().is_settled() and self.successor.is_settled()

    def _late(self, operation: str, offset_bytes: int) -> MemberError:
        why = f"no answer within {self._patience_s():g} s"
        return MemberError(self.successor.path, operation, offset_bytes, errno.ETIMEDOUT, why)

    def _give_up(self, error: MemberError) -> None:
        log.error("%s; it does not replace %s", error.message, self.inner.path)
        self.error = error
