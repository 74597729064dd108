"""What the parts of one running array share: the values that reading, writing and jobs work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raidx_fuse.engine.access_stats import AccessStats
from raidx_fuse.engine.chunk_cache import ChunkCache, address_of
from raidx_fuse.engine.growth_position import GrowthPosition
from raidx_fuse.engine.parity_policy.policy import POLICIES, BpuPolicy, Policy
from raidx_fuse.engine.stripe_locks import StripeLocks
from raidx_fuse.errors import UnrecoverableError
from raidx_fuse.format.configuration.lost_chunks import LostChunks
from raidx_fuse.journal.journal import Journal
from raidx_fuse.layouts.placements.bundled import BundleLayout
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.layouts.placements.restriping import RestripeLayout
from raidx_fuse.layouts.planning.stripe_plan import cells_of, unwritten_cells
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.store.buffers import ArenaPool
from raidx_fuse.store.dirty_bitmap import DirtyBitmap
from raidx_fuse.store.latency import TIMED_ALL, TIMED_EACH, ArrayCounters, Latency
from raidx_fuse.store.member_set import MemberIO, MemberLostError, MemberSet
from raidx_fuse.store.written_map import WrittenMap

# Which writes went to their places past the journal and are not durable yet.
#
# A record that ends inside a sector keeps the rest of the sector as it lies in its place. If that
# rest is itself on its way, a power cut may drop it and keep the record: the sector would hold half
# of each, which nobody wrote. So such a record waits for a flush while anything unlogged is
# pending.


class UnflushedWrites:
    """Counts the writes past the journal, up to now (*count*) and those a flush covered."""

    __slots__ = ("_covered", "_flushing", "count")

    def __init__(self) -> None:
        self.count = self._flushing = self._covered = 0

    def flush_begins(self) -> None:
        """Note what is written so far."""
        self._flushing = self.count

    def flush_ends(self) -> None:
        """What was noted is durable."""
        self._covered = self._flushing

    def may_tear(self, offset: int, length: int) -> bool:
        """Say whether a record of these bytes could leave a sector of two halves after a cut."""
        return bool((offset | length) % SECTOR_BYTES) and self.count != self._covered


class ArrayContext:
    """One array's geometry, members, maps, locks and counters.

    *bad_chunks* are logical chunks whose content was lost (a second failure in a degraded stripe):
    reading them is an error until they are written again, never a guess.

    *layout_epoch* moves when a chunk's place changes: who looked before it had its locks looks
    again. *reuse_epoch* moves when places that chunks have left are given to others: what was read
    from one meanwhile is read again. *growth* is the growth under way, if any.
    """

    __slots__ = (
        "access",
        "all_read_zero",
        "arenas",
        "bad_chunks",
        "bpu",
        "cache",
        "chunk_bytes",
        "code",
        "counters",
        "data_count",
        "data_offset",
        "dirty_bitmap",
        "foreground_s",
        "growth",
        "inner_mask",
        "journal",
        "latency",
        "layout",
        "layout_epoch",
        "locks",
        "member_set",
        "on_layout",
        "policy",
        "reuse_epoch",
        "shift",
        "synchronous",
        "unflushed_writes",
        "written",
        "zero_roles",
    )

    def __init__(
        self,
        layout: Layout,
        member_set: MemberSet,
        written: WrittenMap,
        dirty: DirtyBitmap,
        journal: Journal,
    ) -> None:
        self.layout_epoch = self.reuse_epoch = 0
        self.on_layout: list[Callable[[], None]] = []
        self.growth: GrowthPosition | None = None
        self.chunk_bytes = layout.chunk_bytes
        self.shift = layout.chunk_bytes.bit_length() - 1
        self.inner_mask = layout.chunk_bytes - 1
        self.data_offset = member_set.data_offset
        self.member_set = member_set
        self.written = written
        self.dirty_bitmap = dirty
        self.journal = journal
        journal.on_mark = self._take_mark
        self.unflushed_writes = UnflushedWrites()
        member_set.flush_observers.append(self.unflushed_writes)
        self.locks = StripeLocks()
        journal.locks = self.locks
        self.arenas = ArenaPool()
        self.counters = ArrayCounters()
        self.latency = Latency()
        self.synchronous = 0  # requests so far that did not suspend
        self.policy: Policy
        self.bpu = BpuPolicy(self._role, lambda: self.member_set.queues, member_set.clock)
        self.use_policy("traditional")
        self.access: AccessStats | None = None  # layouts with a table: how often chunks are used
        if isinstance(layout, BundleLayout):
            self.access = AccessStats(layout, member_set.queues, member_set.clock)
        self.cache: ChunkCache | None = None  # off
        self.bad_chunks = LostChunks()
        self.foreground_s = -1e9  # when the last foreground request ended
        self.zero_roles: frozenset[int] = frozenset()
        self.all_read_zero = False
        self.take_layout(layout)
        self.note_zero_roles()

    def _role(self, stripe: int, cell: int) -> int:
        return self.layout.place(stripe, cell)[0]

    def use_policy(self, name: str) -> None:
        """Choose between the plans of partial writes by the policy *name* from now on."""
        if name == "bpu":
            self.policy = self.bpu
            self.bpu.start()
        else:
            self.policy = POLICIES[name]
            self.bpu.stop()

    def use_cache(self, size_bytes: int) -> None:
        """Keep up to *size_bytes* of content in memory from now on; 0: none."""
        if not size_bytes:
            self.cache = None
        elif self.cache is None:
            self.cache = ChunkCache(size_bytes, self.chunk_bytes)
        else:
            self.cache.resize(size_bytes)

    def cached(self, stripe: int, cells: int, low: int, high: int) -> int:
        """Return those of *cells* of which the bytes *low*..*high* - 1 are in the cache."""
        cache, layout = self.cache, self.layout
        if cache is None:
            return 0
        mask = 0
        if self.growth is not None:
            cells &= self.code.data_mask  # parities go by stripes, and those change now
        for cell in cells_of(cells):
            if cache.holds(address_of(layout, stripe, cell) + low, high - low):
                mask |= 1 << cell
        return mask

    def take_layout(self, layout: Layout) -> None:
        """Work with *layout* from now on; nobody holds a stripe's lock (`StripeLocks.alone`)."""
        self.layout = self.member_set.layout = layout
        self.code = layout.code
        self.data_count = layout.code.data_count
        self.growth = None
        if isinstance(layout, ElasticLayout) and layout.growing:
            self.growth = GrowthPosition(self.member_set, layout)
        if isinstance(layout, RestripeLayout):
            self.journal.forced = True  # what bypasses it could be undone by a record of other rows
        self.layout_epoch += 1
        if self.cache is not None:
            self.cache.clear()
        for hook in self.on_layout:
            hook()

    def _take_mark(self, mark: int) -> None:
        """Let chunks lie on the other side of *mark* from now on; their locks are held."""
        if isinstance(self.layout, RestripeLayout):
            self.layout.watermark = mark
            self.layout_epoch += 1

    def migrate_to(self, stripe: int) -> None:
        """Let *stripe* be the first that lies as before the growth; the caller holds the locks."""
        assert self.growth is not None
        self.growth.move_to(stripe)
        self.layout_epoch += 1

    def end_growth(self) -> None:
        """All places that chunks have left may be given to others from now on."""
        self.growth = None
        self.layout_epoch += 1
        self.reuse_epoch += 1

    def recorded_zero_roles(self) -> frozenset[int]:
        """Return the roles whose members read as zero where nobody ever wrote.

        None during a restripe: a place is unwritten there as soon as what it held has moved away,
        and a member that took a role meanwhile was given what lay there then.
        """
        if isinstance(self.layout, RestripeLayout):
            return frozenset()
        return frozenset(r.role for r in self.member_set.config.members if r.reads_zero)

    def note_zero_roles(self) -> None:
        """Derive the roles whose unwritten places can be relied on to read as zero.

        None while a resync is due: a write of before the crash may lie where its bit never came.
        """
        pending = self.dirty_bitmap.pending_regions()
        self.zero_roles = frozenset() if pending else self.recorded_zero_roles()
        self.all_read_zero = self.zero_roles.issuperset(self.member_set.config.roles())

    def distrust_zeros(self) -> None:
        """From now on, and after a remount, no member is taken to read as zero anywhere."""
        member_set = self.member_set
        members = tuple(replace(record, reads_zero=False) for record in member_set.config.members)
        member_set.config = replace(member_set.config, members=members)
        self.note_zero_roles()
        member_set.publish_soon()

    def unwritten_cells(self, stripe: int) -> int:
        """Return the set of cells of *stripe* that were never written, parity included."""
        unwritten_data = self.written.unwritten_data(self.layout, stripe)
        return unwritten_cells(self.code, unwritten_data) if unwritten_data else 0

    def is_unwritten(self, stripe: int) -> bool:
        """Say whether no chunk of *stripe* was ever written: a rebuild passes it, locked or not."""
        return self.written.unwritten_data(self.layout, stripe) == self.code.data_mask

    def position(self, stripe: int, cell: int) -> tuple[int, int]:
        """Return (role, byte offset on the member) of a cell's first byte."""
        role, chunk = self.layout.place(stripe, cell)
        return role, self.data_offset + (chunk << self.shift)

    def where(self, stripe: int, cells: tuple[int, ...]) -> str:
        """Name a place for a message: stripe, members and image offsets."""
        places = []
        for cell in cells:
            role, _ = self.layout.place(stripe, cell)
            text = f"role {role}"
            if cell < self.data_count:
                text += f" (image offset {self.layout.logical(stripe, cell) << self.shift})"
            places.append(text)
        return f"stripe {stripe}, " + ", ".join(places)

    def lost_error(self, stripe: int, cells: tuple[int, ...]) -> UnrecoverableError:
        """Return the error for cells that the code cannot give back."""
        return UnrecoverableError(
            f"cannot recover {self.where(stripe, cells)}: too many members are lost",
            action="see `raidx status`",
        )

    async def write_cells(self, stripe: int, requests: list[MemberIO], role_epoch: int) -> None:
        """Write whole cells of *stripe* for a job that holds its lock: all or nothing.

        Raises MemberLostError if another member took a role since *role_epoch*.
        """
        self.forget_stripe(stripe)
        try:
            if self.journal.mode != "none" or self.journal.holds(stripe):
                if not await self.journal.commit(
                    [stripe], requests, (), lambda: role_epoch == self.member_set.role_epoch
                ):
                    raise MemberLostError
            else:
                await self.member_set.write(requests, background=True)
        finally:
            self.forget_stripe(stripe)

    def forget_stripe(self, stripe: int) -> None:
        """Drop what the cache has of *stripe*."""
        if self.cache is not None:
            for cell in cells_of(self.code.all_mask):
                self.cache.forget(address_of(self.layout, stripe, cell), self.chunk_bytes)

    def count_synchronous(self, started_s: float) -> None:
        """Count the end of a foreground request that did not suspend; see store/latency.py."""
        self.foreground_s = started_s
        number = self.synchronous = self.synchronous + 1
        if number <= TIMED_ALL:
            self.latency.add(self.member_set.clock() - started_s)
        elif not number % TIMED_EACH:
            self.latency.add_many(self.member_set.clock() - started_s, TIMED_EACH)

    def touch(self, started_s: float) -> None:
        """Count the end of a foreground request that may have suspended."""
        now = self.member_set.clock()
        self.foreground_s = now
        self.latency.add(now - started_s)
