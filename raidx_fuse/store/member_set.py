"""The members of a running array by role: which are present, which are lost, and I/O to them.

The newest bytes of a place are what the member holds there, with newer content laid over it: what
the log has and the home places lack (the overlay, store/overlay.py). Every read of members by the
engine and by the jobs goes through three methods:

* `try_read` does not suspend, and copies nothing if the overlay knows the whole range;
* `read` takes several requests and suspends if a member must be waited for;
* `lend` gives the memory of a RAM member, if no newer content exists at all.

Flushes come in rounds: callers that arrive before a flush has started share it. A caller that
arrives while a round runs waits for the next one: the running round may already have flushed the
member that the caller wrote to.

Laws:
 1. A member that failed is excluded immediately. Before any write is acknowledged without it, the
    superblocks of the other members record the exclusion with a higher event counter, flushed.
    Writers therefore end with `published()`, and the log waits for it before it takes a record that
    was planned without the member.
 2. A member is failed only while the code tolerates its loss. Otherwise the operation fails and the
    member stays: an array with one bad block too many is still readable elsewhere.
 3. Nothing is acknowledged on a configuration that a member lacks: if one that stays (law 2) does
    not take a round of superblocks, the update fails that began it, and so do writes and flushes,
    each of which tries again, until one round has reached all.
 4. A role that is being rebuilt counts as lost from its watermark on, and as present below it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import trio

from raidx_fuse.errors import (
    ArrayFailedError,
    FormatError,
    MemberError,
    NoSpaceError,
    RaidxError,
    Reason,
    ShorterError,
    no_space,
)
from raidx_fuse.format.configuration.absence import tended
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.format.superblock import Patience, write_config
from raidx_fuse.laws import Law, LawError, Laws
from raidx_fuse.layouts.numbers import Role, Stripe, by_role
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.planning.stripe_plan import cells_of
from raidx_fuse.loop.tasks import Starter, tick_after, was_stopped
from raidx_fuse.members.base import Member, WriteBuffer
from raidx_fuse.members.unreadable import Unreadable, is_of_place, pages_in
from raidx_fuse.store.host_space import HostSpaces
from raidx_fuse.store.io_tuples import (
    PAGE_BYTES,
    PAGE_MASK,
    MemberIO,
    MemberLostError,
    MemberRead,
    join,
)
from raidx_fuse.store.overlay import Overlay
from raidx_fuse.store.queue import (
    CHECK,
    FLUSH,
    PUNCH,
    READ,
    WRITE,
    CountdownLatch,
    MemberQueue,
    Operation,
)
from raidx_fuse.store.sum_memory import default_cache_bytes
from raidx_fuse.store.sums import Misfits, Sums, no_cover

log = logging.getLogger(__name__)

Hook = Callable[[], None]


class FlushObserver(Protocol):
    """Is called when a flush of all members begins and when it has succeeded."""

    def flush_begins(self) -> None:
        """Note which writes have completed: this flush covers them."""

    def flush_ends(self) -> None:
        """Count the writes noted by `flush_begins` as durable."""


class PagesOfMembers(Protocol):
    """Pages that every member holds; *damaged* describes the damaged ones found at the start."""

    damaged: list[str]

    async def save_all(self) -> None:
        """Write every page to every present member."""

    async def heal(self) -> None:
        """Make every present member hold the newest copy of every page, durably."""


@dataclass(slots=True)
class _Round:
    """One flush of all members, shared by any number of callers."""

    done: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None


class MemberSet:
    """The member queues of one array by role, under one `ArrayConfig`.

    Attributes: *queues* (by role; None when the member is missing or failed); *readable* (the same
    without roles that are being rebuilt, for the fast paths); *lost* (roles not readable);
    *watermarks* (role -> first stripe not yet rebuilt); *spares* (hot spares by member uuid);
    *unpublished* (the superblocks lack a change of the configuration); *unreadable* (the pages that
    readers plan around); *place_epoch* (increases when newer content has reached its home places: a
    read that began before may have missed it there, and would miss it in the overlay, too);
    *role_epoch* (increases when another member takes a role).
    """

    def __init__(
        self,
        config: ArrayConfig,
        layout: Layout,
        members: dict[Role, Member],
        spares: dict[str, Member],
        nursery: Starter,
        overlay: Overlay,
        *,
        read_only: bool = False,
    ) -> None:
        self.overlay = overlay
        self.place_epoch = self.role_epoch = 0
        self.unreadable = Unreadable()
        self.sums: Sums | None = None
        self.sum_cache_bytes = default_cache_bytes()
        self.config = config
        self.layout = layout
        self.read_only = read_only
        self.nursery = nursery
        self.clock = trio.lowlevel.current_clock().current_time
        self.data_offset = config.regions.data.offset
        self.laws = Laws()
        self.queues: list[MemberQueue | None] = [None] * config.width
        for role, member in members.items():
            self.queues[role] = MemberQueue(member, nursery, self.clock, self.laws)
        self.spares = dict(spares)
        self.watermarks: dict[Role, Stripe] = {}
        self.readable: list[MemberQueue | None] = []
        self.lost: frozenset[Role] = frozenset()
        self.published_events = config.events  # of the last round that ended
        self.closed = False  # no superblock is written any more
        self.io_timeout_s = 30.0
        self.flush_observers: list[FlushObserver] = []
        self.page_stores: list[PagesOfMembers] = []
        self.hosts = HostSpaces(lambda: self.present().values())
        self.on_change: list[Hook] = []
        self.on_fail: list[Callable[[Role], None]] = []
        self.on_published: list[Hook] = []  # after each round of superblocks
        self.unpublished = False
        self._publication: trio.Event | None = None
        self._unwritable: RaidxError | None = None  # why no superblock can be written
        self._config_lock = trio.Lock()
        self._flushing = trio.Lock()  # one round of flushes at a time
        self._next_round: _Round | None = None
        self.refresh()
        # Of the last round that reached all members. For the round of the start, it is not known
        # which members have received an exclusion.
        self._reached_events = -1 if self.lost and not read_only else config.events
        self._taken_events = config.events
        self._deaf = ""  # a member that stays and did not take the last superblock

    # -- membership ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Recompute *readable* and *lost* from queues, watermarks and member states."""
        active = {record.role for record in self.config.members if record.state == "active"}
        self.readable = [
            queue if role in active and role not in self.watermarks else None
            for role, queue in by_role(self.queues)
        ]
        held = self.config.roles()  # the layout places nothing on roles without a member record
        self.lost = frozenset(role for role in held if self.readable[role] is None)
        if self.unreadable:
            self.unreadable.stir()  # another member may give the content back
        for hook in self.on_change:
            hook()

    def lost_at(self, stripe: Stripe) -> frozenset[Role]:
        if not self.watermarks:
            return self.lost
        return frozenset(role for role in self.lost if stripe >= self.watermarks.get(role, 0))

    def lost_cells(self, stripe: Stripe, low: int = 0, high: int = 0) -> int:
        """Return the mask of the cells of *stripe* that cannot be read.

        They are on lost roles, or unreadable in their bytes *low* .. *high* - 1 (0: to their end).
        """
        lost = self.layout.lost_cells(stripe, self.lost_at(stripe)) if self.lost else 0
        if self.unreadable:
            size = self.layout.chunk_bytes
            for cell in cells_of(self.layout.code.all_mask & ~lost):
                role, chunk = self.layout.place(stripe, cell)
                at = self.data_offset + chunk * size
                if role >= 0 and self.unreadable.pages(role, at + low, at + (high or size)):
                    lost |= 1 << cell
        return lost

    def present(self) -> dict[str, Member]:
        """Return every attached member by uuid: those with a role, and the hot spares."""
        members = dict(self.spares)
        for record in self.config.members:
            if record.role >= 0 and (queue := self.queues[record.role]) is not None:
                members[record.member_uuid] = queue.member
        return members

    # -- reading the newest bytes --------------------------------------------------------------

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
        sums = self.sums
        if not overlay.current and not overlay.frozen:
            if queue is None or not queue.try_readv(offset, buffers, size):
                return None
            if sums is not None and not sums.fits_now(role, offset, buffers, size):
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
        if sums is not None and not sums.fits_now(role, offset, buffers, size):
            return None
        if known is not None:
            overlay.patch(role, offset, buffers)
        return buffers[0]

    def try_read_all(self, requests: Sequence[MemberRead]) -> bool:
        """Fill the buffers of *requests* with the newest bytes, without suspending.

        Returns False if that is not possible now. Raises MemberError; after that use `read`.
        """
        overlay, readable, sums = self.overlay, self.readable, self.sums
        if overlay:
            requests = [request for request in requests if not self._known(request)]
        for role, offset, buffers, size in requests:
            queue = readable[role]
            if queue is None or not queue.try_readv(offset, buffers, size):
                return False
        if sums is not None and requests and not sums.fit_now(requests):
            return False
        if overlay:
            for role, offset, buffers, _size in requests:
                overlay.patch(role, offset, buffers)
        return True

    async def read(
        self,
        requests: Sequence[MemberRead],
        *,
        background: bool = False,
        home: bool = False,
        misfits: Misfits | None = None,
    ) -> None:
        """Fill the buffers of *requests*; suspends only if a member does not answer synchronously.

        *home*: with what lies at the home places, which is not compared with its sums. *misfits*
        collects the pages that do not fit their sums (store/sums.py). Raises MemberLostError if a
        member was failed or replaced during the call, or a page was found unreadable (the caller
        plans again), and MemberError if a read failed for other reasons on a member whose loss the
        code does not tolerate.
        """
        overlay = self.overlay
        if overlay and not home:
            requests = [request for request in requests if not self._known(request)]
        if self.sums is not None and not home:
            await self.sums.read(requests, background, misfits)
        else:
            epoch, role_epoch = self.place_epoch, self.role_epoch
            await self._read_members(requests, background)
            while epoch != self.place_epoch:  # what we read may be from before the placement
                if role_epoch != self.role_epoch:
                    raise MemberLostError  # a new member of a role has nothing yet: plan again
                epoch = self.place_epoch
                await self._read_members(requests, background)
        if overlay and not home:
            for role, offset, buffers, _size in requests:
                overlay.patch(role, offset, buffers)

    async def read_base(
        self,
        reads: Mapping[Role, Sequence[tuple[int, list[memoryview], int]]],
        *,
        frozen: bool,
        misfits: Misfits | None = None,
    ) -> None:
        """Fill the buffers of *reads* with what lies under the current layer.

        That is the home content, with the frozen layer over it if *frozen*. *reads* are (byte
        offset, one buffer, size) by role, in the order in which a disk does them best. Raises as
        `read`.
        """
        epoch, role_epoch = -1, self.role_epoch
        every: list[MemberRead] = []
        if self.sums is not None:
            every = [(role, *read) for role, of_role in reads.items() for read in of_role]
        again = True
        while again or epoch != self.place_epoch:  # as in `read`
            if role_epoch != self.role_epoch:
                raise MemberLostError  # as in `read`
            epoch, change = self.place_epoch, self.unreadable.changes
            left: list[MemberRead] = []
            for role, of_role in reads.items():
                queue = self.queues[role]
                if queue is None:
                    raise MemberLostError
                left += [(role, *read) for read in of_role[queue.try_reads(of_role) :]]
            async with nullcontext() if self.sums is None else self.sums.arriving(every):
                await self._read_members(left, True)
            again = False
            if self.sums is not None and epoch == self.place_epoch:
                covers = self.overlay.covers_frozen if frozen else no_cover
                again = not await self.sums.correct(every, covers, change, misfits)
        if frozen and self.overlay.frozen:
            for role, of_role in reads.items():
                for offset, (buffer,), _size in of_role:
                    self.overlay.patch_by(self.overlay.frozen, role, offset, buffer)

    def lend(self, role: Role, offset: int, size: int, share: float) -> memoryview | None:
        """Return a RAM member's own memory of a range, or None if that is not its newest content.

        *share* of the range counts as read. Raises MemberError.
        """
        queue = self.queues[role]
        if queue is None or self.overlay or self.sums is not None:
            return None
        return queue.view(offset, size, share)

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
            patched = queue.member.covers_overdue(self.overlay.covers, role, offset, size)
            pending.append(Operation(queue, READ, offset, buffers, size, background, patched))
        if pending:
            failed = await self._wait(pending)
            if failed:
                for operation in failed:
                    await self._read_failed(operation, change)
                raise MemberLostError

    async def _read_failed(self, operation: Operation, change: int) -> None:
        """Note which pages of a failed read are unreadable: one bad sector costs no member.

        *change* is that of *unreadable* when the read began. A page that was known by then may be
        younger than the plan of the reader, which plans again. A reader that repeats the read
        cannot plan around it. Then, as after other errors, the member is failed, or the error is
        raised if it cannot be spared.
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
            if unreadable.asked_again(role, begin, end):
                self._blame(operation)
            return
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

    async def note_unreadable(self, requests: Sequence[MemberRead]) -> bool:
        """Read the pages of *requests* and note which cannot be read; no member is failed.

        Returns whether there was one that was not known.
        """
        found = False
        for role, offset, _buffers, size in requests if self.unreadable.errors_max else ():
            for page in pages_in(offset, offset + size):
                known = self.unreadable.pages(role, page * PAGE_BYTES, page * PAGE_BYTES + 1)
                content = None
                if not known:  # what the log redoes there need not fit its sum
                    content = await self.read_home(role, page * PAGE_BYTES, PAGE_BYTES)
                if isinstance(content, MemberError) and is_of_place(content):
                    self.unreadable.add(role, page)
                    found = True
        return found

    async def probe(self, role: Role, page: int) -> MemberError | None:
        """Read *page* of the home places of *role*; return the error, None if it can be read.

        That it does not fit its sum is an error, too.
        """
        if self.sums is not None and page * PAGE_BYTES >= self.data_offset:
            content = await self.sums.judge(role, page * PAGE_BYTES)
            return content if isinstance(content, MemberError) else None
        content = await self.read_home(role, page * PAGE_BYTES, PAGE_BYTES)
        return content if isinstance(content, MemberError) else None

    async def read_home(self, role: Role, offset: int, size: int) -> bytearray | MemberError | None:
        """Return the bytes of a range of *role* as they lie there, or the error; None: no member.

        No member is failed for it.
        """
        (found,) = await self.read_homes([(role, offset, size)])
        return found

    async def read_homes(
        self, places: Sequence[tuple[Role, int, int]]
    ) -> list[bytearray | MemberError | None]:
        """Do as `read_home` for each of *places* (role, byte offset, size), all at once."""
        operations: list[Operation] = []
        waiting: list[int] = []
        found: list[bytearray | MemberError | None] = []
        for role, offset, size in places:
            queue = self.queues[role]
            if queue is None:
                found.append(None)
                continue
            buffer = bytearray(size)
            found.append(buffer)
            with suppress(MemberError):  # then the queue tries again
                if queue.try_readv(offset, [buffer], size):
                    continue
            waiting.append(len(found) - 1)
            operations.append(Operation(queue, READ, offset, [buffer], size, True))
        if operations:
            await self._wait(operations)
        for at, operation in zip(waiting, operations, strict=True):
            if operation.error is not None:
                found[at] = operation.error
        return found

    def path_of(self, role: Role) -> str:
        """Return the path of the member in *role*."""
        queue = self.queues[role]
        return f"role {role}" if queue is None else queue.member.path

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

    # -- writing, punching and flushing --------------------------------------------------------

    async def write(self, requests: Sequence[MemberIO], *, background: bool = False) -> None:
        """Write the buffers of *requests*; a member that fails is excluded, the others continue.

        Raises MemberError (or NoSpaceError) if a write failed on a member whose loss the code does
        not tolerate, LawError for one that cannot be meant. Others may have been written then.
        """
        pending: list[Operation] | None = None
        if self.read_only:
            raise self.laws.broken(Law.READ_ONLY, f"{len(requests)} writes")
        for role, offset, buffers, size in requests:
            queue = self.queues[role]
            if queue is None:
                continue  # failed since the plan was made: the other cells of the stripe carry it
            try:
                if queue.try_writev(offset, buffers, size):
                    continue
            except MemberError:
                pass  # the queue tries once more
            self._require_inside(queue, offset, size)  # what is beyond is never synchronous
            pending = pending or []
            pending.append(Operation(queue, WRITE, offset, buffers, size, background))
        if pending:
            self._blame_all(await self._wait(pending))

    def reserve_chunks(self, places: Sequence[tuple[Role, int]]) -> None:
        """Reserve space for chunks at *places* (role, byte offset), and sums, as `reserve`."""
        size = self.layout.chunk_bytes
        chunks: list[MemberIO] = [(role, position, (), size) for role, position in places]
        self.reserve(join(chunks))
        if self.sums is not None:
            self.sums.reserve_for(chunks)

    def reserve(self, writes: Iterable[MemberIO]) -> None:
        """Reserve space on the host for *writes* before any of them.

        A sparse member on a full disk then refuses the whole change, and no stripe is left half
        written. Raises NoSpaceError.
        """
        for role, position, _buffers, length in writes:
            queue = self.queues[role]
            if queue is not None:
                try:
                    queue.member.reserve(position, length)
                    self.hosts.note_taken(queue.member.path)
                except MemberError as error:
                    refused = no_space(error)
                    # other errors: the write itself will meet them and exclude the member
                    if refused is not None:
                        self.hosts.note_refused(error, length)
                        raise refused from error

    async def punch(self, role: Role, offset: int, size: int) -> bool:
        """Punch a hole: the range reads as zero and needs no host space.

        Returns False if the member cannot. Raises MemberError.
        """
        queue = self.queues[role]
        if queue is None:
            return False
        self._require_inside(queue, offset, size)
        operation = Operation(queue, PUNCH, offset, (), size, background=True)
        if await self._wait([operation]):
            assert operation.error is not None
            if isinstance(operation.error, ShorterError):
                self._blame(operation)
            raise operation.error
        return operation.punched

    def _require_inside(self, queue: MemberQueue, offset: int, size: int) -> None:
        if not 0 <= offset <= queue.member.size_bytes - size:
            where = f"{size} bytes at {offset} of {queue.member.path}"
            raise self.laws.broken(Law.SIZE, where)

    async def _wait(self, operations: Sequence[Operation]) -> list[Operation]:
        """Run *operations* concurrently; return those that failed."""
        latch = CountdownLatch(len(operations))
        for operation in operations:
            operation.queue.submit(operation, latch)
        await latch.wait()
        return [operation for operation in operations if operation.error is not None]

    async def flush(self) -> None:
        """Return when every write that completed before the call is durable.

        Raises MemberError, and ArrayFailedError, also if the task that ran the round was cancelled.
        """
        joined = self._next_round
        if joined is not None:
            await joined.done.wait()
        else:
            joined = self._next_round = _Round()
            try:
                async with self._flushing:
                    self._next_round = None  # later callers' writes may miss this round
                    await self._flush_members()
            except Exception as error:
                joined.error = error
            except BaseException:
                joined.error = ArrayFailedError("the array stopped during a flush")
                raise
            finally:
                if self._next_round is joined:
                    self._next_round = None
                joined.done.set()
        if joined.error is not None:
            raise joined.error

    async def check_whole(self, *, wait: bool = False) -> None:
        """Check that no member has become shorter; one that has is failed.

        Without *wait*, only those are waited for that cannot answer at once. Raises MemberError if
        it cannot be spared.
        """
        last: MemberError | None = None
        operations = []
        for role, queue in by_role(self.queues):
            if queue is None:
                continue
            try:
                if wait or not queue.member.try_check_whole():
                    operations.append(Operation(queue, CHECK, 0, (), 0))
            except MemberError as error:
                if not self.fail(role, error.message):
                    last = error
        if operations:
            self._blame_all(await self._wait(operations))
        if last is not None:
            raise last

    async def _flush_members(self, *, acknowledges: bool = True) -> None:
        if acknowledges:
            for observer in self.flush_observers:
                observer.flush_begins()
        operations = []
        for queue in self.queues:
            if queue is not None and queue.unflushed:
                queue.unflushed = False  # the flush covers all writes so far
                operations.append(Operation(queue, FLUSH, 0, (), 0))
        if operations:
            failed = await self._wait(operations)
            for operation in failed:  # all of them, before one is raised for
                operation.queue.flush_failed()
            self._blame_all(failed)
        if not acknowledges:
            return
        await self.check_whole()
        await self.published()
        self.require_published("a flush")
        # Not before: a member that has failed is one by the superblocks until then, without what
        # was flushed. A page that counts as durable lets the next save overwrite the copy before.
        for observer in self.flush_observers:
            observer.flush_ends()

    async def sync(self) -> None:
        """Return when what was written is durable; no superblock is written for that.

        Nothing may be acknowledged then. Raises MemberError.
        """
        async with self._flushing:
            await self._flush_members(acknowledges=False)

    def forget_pages(self, role: Role) -> None:
        """Forget which pages of the member in *role* cannot be read, or misfit: it has left."""
        self.unreadable.forget(role)
        if self.sums is not None:
            self.sums.forget_suspects(role)

    def give_role(self, role: Role, member: Member) -> None:
        """Let *member* serve *role* from now on, in memory; the roles may become more."""
        self.queues.extend([None] * (role + 1 - len(self.queues)))
        self.forget_pages(role)
        self.queues[role] = MemberQueue(member, self.nursery, self.clock, self.laws)
        self.note_role_taken()

    def take_out(self, role: Role) -> MemberQueue | None:
        """Remove *role*, in memory: the roles behind it move up. Returns its queue, not closed."""
        queue = self.queues.pop(role)
        self.unreadable.clear()
        self.watermarks = {
            Role(other - (other > role)): mark
            for other, mark in self.watermarks.items()
            if other != role
        }
        self.note_role_taken()
        return queue

    def take_layout(self, layout: Layout) -> None:
        """Use *layout* from now on (`ArrayContext.take_layout`)."""
        self.layout = layout

    def use_sums(self, sums: Sums | None) -> None:
        """Compare what is read, and set with what is written, *sums* from now on; None: nothing."""
        if self.sums is not None:
            self.page_stores.remove(self.sums.tables)
        self.sums = sums
        if sums is not None:
            self.page_stores.append(sums.tables)
            sums.tables.limit(self.sum_cache_bytes)

    def limit_sums(self, size_bytes: int | None) -> None:
        """Have no more than *size_bytes* of checksums in memory; None: as suits the machine."""
        self.sum_cache_bytes = default_cache_bytes() if size_bytes is None else size_bytes
        if self.sums is not None:
            self.sums.tables.limit(self.sum_cache_bytes)

    def set_io_timeout(self, timeout_s: float) -> None:
        self.io_timeout_s = timeout_s

    def end_superblocks(self) -> None:
        """Write no superblock and exclude no member from now on."""
        self.closed = True

    def note_placed(self) -> None:
        """Note that home places have changed: a read of one that is under way is repeated."""
        self.place_epoch += 1

    def note_role_taken(self) -> None:
        """Note that another member has taken a role: what was planned for the old one is void."""
        self.role_epoch += 1

    # -- failure -------------------------------------------------------------------------------

    def _blame_all(self, failed: Sequence[Operation]) -> None:
        """Fail the member of each operation; raise the last error of one that cannot be spared."""
        last: Exception | None = None
        for operation in failed:
            try:
                self._blame(operation)
            except (MemberError, NoSpaceError) as error:
                last = error
        if last is not None:
            raise last

    def _blame(self, operation: Operation) -> None:
        """Fail the member of a failed operation, or raise its error if it cannot be spared."""
        error = operation.error
        assert error is not None
        for role, queue in by_role(self.queues):
            if queue is operation.queue:
                if not self.fail(role, error.message):
                    raise no_space(error) or error
                return

    def fail(self, role: Role, reason: str) -> bool:
        """Exclude the member in *role*; return False if the code does not tolerate its loss."""
        if self.queues[role] is None:
            return True
        if self.closed:
            return False
        if role not in self.watermarks and not self.layout.tolerates(self.lost | {role}):
            log.error("%s; role %d cannot be spared, so it stays", reason, role)
            return False
        log.error("role %d failed: %s", role, reason)
        queue = self.queues[role]
        assert queue is not None
        for hook in self.on_fail:
            hook(role)
        self.queues[role] = None
        self.forget_pages(role)
        self.watermarks.pop(role, None)
        queue.close()
        members = [replace(r, state="failed") if r.role == role else r for r in self.config.members]
        self.config = replace(self.config, members=tuple(members))
        self.refresh()
        self.publish_soon()
        return True

    def change(self, change: Callable[[ArrayConfig], ArrayConfig]) -> None:
        """Change the newest configuration, in memory; the next update or publication writes it.

        Callers give a function, not a configuration: one that they read before an await would undo
        the changes made meanwhile.
        """
        self.config = change(self.config)

    # -- superblocks ---------------------------------------------------------------------------

    def publish_soon(self) -> None:
        """Increase the event counter and start writing superblocks; `published` waits for it."""
        if self.read_only or self.closed:
            return
        self.config = self.config.bumped()
        self._publish_now()

    def _publish_now(self) -> None:
        if self._publication is None and not self.closed:
            self._publication = trio.Event()
            self.unpublished = True
            self.nursery.start_soon(self._publish)

    async def published(self) -> None:
        """Return when the superblocks of all members hold the newest configuration.

        Raises ArrayFailedError if it does not fit, or if a member that stays does not take it,
        which is tried again by each call: nothing may be acknowledged then.
        """
        if self._reached_events < self.config.events:
            self._publish_now()
        await self._rounds_ended()
        self._require(self.config.events)

    def require_published(self, what: str) -> None:
        """Raise LawError if *what* must not be acknowledged: the superblocks lack something."""
        if self.unpublished:
            raise self.laws.broken(Law.PUBLISHED, f"{what} was to be acknowledged")

    async def _rounds_ended(self) -> None:
        while self._publication is not None:
            await self._publication.wait()
        if self._unwritable is not None:
            raise ArrayFailedError(f"no superblock can be written: {self._unwritable}")

    def reaches(self, events: int) -> bool:
        """Return whether every member that stays has the configuration of *events*, or a newer."""
        return self._reached_events >= events

    def _require(self, events: int) -> None:
        """Raise ArrayFailedError unless every member has the configuration of *events*."""
        if self._reached_events >= events:
            return
        if self.closed:
            raise ArrayFailedError("the array is being closed", reason=Reason.CLOSING)
        lacks_it = f"the superblock of {self._deaf or 'a member'} lacks the newest configuration"
        raise ArrayFailedError(lacks_it, action="to read what is there, mount with --read-only")

    async def _publish(self) -> None:
        assert self._publication is not None
        try:
            tries = 0
            while True:
                events = self.config.events
                await self._write_superblocks()
                tries = tries + 1 if self._deaf else 0
                if events == self.config.events and tries != 1:  # a fault may be transient
                    break
            self._unwritable = None
        except (FormatError, LawError) as error:  # before any member was written
            log.critical("no superblock can be written: %s", error)
            self._unwritable = self.laws.note(error) if isinstance(error, LawError) else error
        finally:
            event, self._publication = self._publication, None
            self.unpublished = (
                self._unwritable is not None or self._reached_events < self.config.events
            )
            event.set()

    async def _write_superblocks(self) -> None:
        async with self._config_lock:
            self.config = fitted(tended(self.config))
            events = self.config.events
            patience = Patience(self.io_timeout_s, self.nursery)
            reached = self._reached_events if self._reached_events >= 0 else None
            failed = await write_config(
                self.present(), self.config, patience, reached, self._taken_events
            )
        deaf = ""
        for uuid in failed:
            if uuid in self.spares:
                log.error("spare %s cannot be written; dropped", self.spares[uuid].path)
                del self.spares[uuid]
                continue
            for record in self.config.members:
                lacks_it = record.member_uuid == uuid and record.role >= 0
                if lacks_it and not self.fail(record.role, "its superblock could not be written"):
                    deaf = record.path_hint
        self.published_events = events
        self._deaf = deaf
        if not deaf:
            self._reached_events = self._taken_events = events
        for hook in self.on_published:
            hook()

    async def update(
        self, change: Callable[[ArrayConfig], ArrayConfig], *, asked: bool = False
    ) -> None:
        """Change the newest configuration; return when every member's superblock has it, flushed.

        Raises FormatError, with nothing replaced, if it does not fit. A change that a user *asked*
        for leaves room for changes that cannot be refused. Raises ArrayFailedError if read-only,
        and if a member that stays does not take it: then the change is in force in memory, and
        may be in some superblocks, but nothing is acknowledged before all have it (law 3).
        """
        if self.read_only:
            raise ArrayFailedError("the array was started read-only", reason=Reason.READ_ONLY)
        self.config = fitted(tended(change(self.config)).bumped(), RESERVE_BYTES if asked else 0)
        events = self.config.events
        self._publish_now()
        await self._rounds_ended()
        self._require(events)

    async def watch(self) -> None:
        """End operations without an answer and fail their members (background watchdog task).

        If the watchdog is late itself, the process was stopped, longer perhaps than the limit:
        whatever is under way has a whole limit more.
        """
        while True:
            due_s = tick_after(max(0.05, self.io_timeout_s / 4))
            await trio.sleep_until(due_s)
            if was_stopped(due_s):
                for queue in self.queues:
                    if queue is not None:
                        queue.begin_anew()
                continue
            for role, queue in by_role(self.queues):
                if queue is not None and queue.expire(self.io_timeout_s):
                    self.fail(
                        role, f"{queue.member.path}: no answer within {self.io_timeout_s:g} s"
                    )
