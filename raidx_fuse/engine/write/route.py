"""The admission of writes: the state of a stripe, and the route that a piece of a request takes.

Every module of the write path asks `route`; `raidx explain` prints what it answers. The states that
`StripeState` snapshots are those of raidx_fuse/ARCHITECTURE.md, "States of a stripe".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import NamedTuple

from raidx_fuse.engine.chunk_cache import address_of
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.prepare import Piece
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.planning.stripe_plan import Band, cells_of, write_plans


class Route(Enum):
    """Where a piece is written first."""

    IN_PLACE = "in place"  # data and parity go to their home places
    LOG = "log"  # one record of the write-ahead log, which makes the piece atomic
    BYPASS = "bypass"  # a full stripe past the log: a resync can finish its parity


class StripeState(NamedTuple):
    """A snapshot of one stripe; *lost* and *unwritten* are cell masks.

    `state_of` fills in what decides the route of a write, `whole_state_of` everything.

    * *mode*: the mode of the journal; *has_parity*: whether the code has parity cells;
    * *lost*: cells whose member cannot be read; *unwritten*: cells that were never written;
    * *reads_zero*: unwritten places read as zero on every member;
    * *in_log*: recovery may redo a record of the stripe;
    * *checkpointing*: the checkpoint is writing content of the stripe to its home places;
    * *locked*: a write, a degraded read or a job holds the lock;
    * *marked*: the dirty bitmap says that a write past the log may be in flight;
    * *awaits_resync*: its parity is not trusted since a crash;
    * *moved*: it is behind the growth position in memory, but not behind the saved one;
    * *may_follow*: data may be logged without its parity, which follows at the checkpoint;
    * *unsettled*: such data is in the log (journal/unsettled.py);
    * *filling*: the log is filling up;
    * *has_sums*: the array has checksums.
    """

    stripe: Stripe
    mode: str
    has_parity: bool
    lost: int = 0
    unwritten: int = 0
    reads_zero: bool = False
    in_log: bool = False
    checkpointing: bool = False
    locked: bool = False
    marked: bool = False
    awaits_resync: bool = False
    moved: bool = False
    may_follow: bool = False
    filling: bool = False
    unsettled: bool = False
    has_sums: bool = False

    def names(self, data_mask: int) -> list[str]:
        """Return the names of the states that hold, "clean" if there is none."""
        unwritten = self.unwritten & data_mask == data_mask
        found = {
            "unwritten": unwritten,
            "degraded": bool(self.lost & ~self.unwritten),
            "locked": self.locked,
            "logged": self.in_log,
            "parity deferred": self.unsettled,
            "being checkpointed": self.checkpointing,
            "in flight past the log": self.marked,
            "awaiting resync": self.awaits_resync,
            "above the saved growth position": self.moved,
        }
        return [name for name, holds in found.items() if holds] or ["clean"]


def state_of(context: ArrayContext, stripe: Stripe) -> StripeState:
    """Return of the present state of *stripe* what decides the route of a write."""
    member_set, journal = context.member_set, context.journal
    lost = 0
    if member_set.lost:
        lost = context.layout.lost_cells(stripe, member_set.lost_at(stripe))
    return StripeState(
        stripe,
        journal.mode,
        context.code.parity_count > 0,
        lost,
        context.unwritten_cells(stripe),
        context.zeros.all_roles,
        journal.holds(stripe),
        may_follow=may_follow(context, stripe),
        filling=journal.is_filling,
        unsettled=stripe in journal.unsettled,
        has_sums=member_set.sums is not None,
    )


def whole_state_of(context: ArrayContext, stripe: Stripe) -> StripeState:
    """Return the present state of *stripe* with everything that has a name."""
    journal = context.journal
    overlay = journal.overlay
    return state_of(context, stripe)._replace(
        checkpointing=bool(overlay.frozen)
        and any(
            overlay.is_placing(*context.position(stripe, cell), context.chunk_bytes)
            for cell in cells_of(context.code.all_mask)
            if context.layout.place(stripe, cell)[0] >= 0
        ),
        locked=stripe in context.locks.held,
        marked=context.dirty_bitmap.is_marked(stripe),
        awaits_resync=context.dirty_bitmap.awaits_resync(stripe),
        moved=context.growth is not None and stripe in context.growth.unsaved,
    )


def may_follow(context: ArrayContext, stripe: Stripe) -> bool:
    """Return whether parity of *stripe* may follow its data now.

    The list of lost chunks follows each write. Beside what the chunk cache has, parity does not
    follow either (`is_cached`).
    """
    journal, growth = context.journal, context.growth
    return (
        journal.unsettled.admits(stripe)
        and journal.parity_may_follow
        and (growth is None or growth.lets_parity_follow(stripe))
        and not context.bad_chunks
    )


class Shape(NamedTuple):
    """What of a stripe a piece writes: the cells *touched*, and what that means for its parity.

    *from_front*: whole cells from the first one on, so that the rest of the stripe may go past the
    log, with its parity (`StripeEnd`). *large*: more than half of the data cells, of which
    reading the others, or none, gives the parity.
    """

    touched: int
    from_front: bool = False
    large: bool = False


def shape_of(context: ArrayContext, piece: Piece) -> Shape:
    """Return the shape of *piece*."""
    touched, layout = piece.touched, context.layout
    from_front = (
        not touched & touched + 1
        and layout.contiguous
        and layout.aligned
        and touched == piece.whole_cells(context.chunk_bytes)
    )
    return Shape(touched, from_front, 2 * touched.bit_count() > context.code.data_count)


def logs_data_only(state: StripeState, shape: Shape) -> bool:
    """Return whether a piece that goes through the log is logged without its parity. Pure.

    * A degraded stripe logs data and parity together, and so does a first write: whether a cell
      counts as zero in the chains must not change before the parity follows.
    * While the log is filling up, writes compute their parity themselves: members read for them
      while the checkpoint flushes and writes, and users are held back by their own work, not by a
      full log. Data of unsettled stripes is an exception: their parity would have to come first.
    * So do large pieces: the checkpoint would read what they have in hand.
    """
    if not state.may_follow or state.lost or state.unwritten & shape.touched:
        return False
    return state.unsettled or shape.from_front or not (state.filling or shape.large)


def is_cached(context: ArrayContext, stripe: Stripe, bands: Sequence[Band]) -> bool:
    """Return whether the chunk cache has anything that a plan of *bands* reads.

    Then the parity is computed with the write: the pre-read is there, and a cached parity follows.
    """
    cache, layout, code = context.cache, context.layout, context.code
    if cache is None or code.is_copies or not code.parity_count:
        return False  # no pre-reads
    for low, high, touched in bands:
        rmw, rcw = write_plans(code, touched, 0, 0)
        cells = (rmw.read_mask if rmw else 0) | (rcw.read_mask if rcw else 0)
        for cell in cells_of(cells):
            if cache.touches(address_of(layout, stripe, cell) + low, high - low):
                return True
    return False


def route(state: StripeState, touched: int, whole: bool) -> Route:
    """Return the route of a piece that writes the cells *touched*. Pure.

    *whole*: the piece overwrites every written chunk of its stripe (`is_whole`). Two kinds of write
    may bypass the log in mode "partial": a full stripe, because a resync can finish its parity and
    its old content was to be overwritten anyway; and a write that changes no parity and writes no
    chunk for the first time.
    """
    if state.in_log:
        return Route.LOG  # recovery may still redo an older record over this write
    if state.mode == "full":
        return Route.LOG
    past = Route.BYPASS if whole and state.has_parity else Route.IN_PLACE
    if state.mode == "none":
        return past
    if state.has_parity and not whole:
        return Route.LOG
    if state.lost:
        return Route.LOG  # no resync can finish the parity of a degraded stripe
    if state.unwritten & touched and not state.reads_zero:
        return Route.LOG  # a crash must not show what the members held there before
    return past


def must_mark(state: StripeState, touched: int) -> bool:
    """Return whether the dirty mark (write intent) must be durable before a write past the log.

    That is so if a crash during the write leaves something that a resync must finish: chains that
    do not hold, or sums that do not fit. Pure.
    """
    if state.has_parity or state.mode == "none" or state.has_sums:
        return True
    return bool(state.unwritten & touched)


def is_whole(context: ArrayContext, state: StripeState, piece: Piece) -> bool:
    """Return whether *piece* overwrites every written chunk of its stripe.

    That is the full stripe, or in an array that has grown one generation of blocks without written
    blocks of other generations (see full_stripe.py). A piece that keeps some bytes does not: a torn
    stripe would lose them with a member, though they may have been flushed long ago.
    """
    if piece.keeps:
        return False
    layout, every = context.layout, context.code.data_mask
    whole = piece.whole_cells(context.chunk_bytes)
    if whole == every or not layout.has_grown or context.growth is not None:
        return whole == every
    beside = every & ~whole
    return not beside & ~state.unwritten and layout.is_generation(whole)


class HealthyRoutes(NamedTuple):
    """The answers of `route` for stripes that are healthy and written, asked once for each mode.

    *logs*: whether a piece of one chunk goes through the log, (stripe not in the log, in the log);
    *whole*: the route of a full stripe that is not in the log; *marks*: the answer of `must_mark`.
    """

    logs: tuple[bool, bool]
    whole: Route
    marks: bool

    @property
    def fills(self) -> bool:
        """Whether parts of a stripe are logged, but its last part may bypass the log."""
        return self.logs[0] and self.whole is Route.BYPASS


@cache
def healthy_routes(has_parity: bool, has_sums: bool) -> dict[str, HealthyRoutes]:
    """Return the routes of healthy, written stripes by mode. Pure.

    *has_parity*: of the code; *has_sums*: of the array.
    """
    found = {}
    for mode in ("partial", "full", "none"):
        state = StripeState(Stripe(0), mode, has_parity, has_sums=has_sums)
        logs = (
            route(state, 1, False) is Route.LOG,
            route(state._replace(in_log=True), 1, False) is Route.LOG,
        )
        found[mode] = HealthyRoutes(logs, route(state, 1, True), must_mark(state, 1))
    return found
