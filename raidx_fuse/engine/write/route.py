"""The admission of writes: the state of a stripe, and the route that a piece of a request takes.

Every module of the write path asks `route`; `raidx explain` prints what it answers. The states that
`StripeState` snapshots are those of raidx_fuse/ARCHITECTURE.md, "States of a stripe".
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.write.split import Piece
from raidx_fuse.layouts.numbers import Stripe
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.planning.stripe_plan import cells_of


class Route(Enum):
    """Where a piece is written first."""

    IN_PLACE = "in place"  # data and parity go to their home places
    LOG = "log"  # one record of the write-ahead log, which makes the piece atomic
    BYPASS = "bypass"  # a full stripe past the log: a resync can finish its parity


class StripeState(NamedTuple):
    """A snapshot of one stripe; *lost*, *unwritten*, *deferred* are cell masks.

    `state_of` fills in what decides the route of a write, `whole_state_of` everything.

    * *mode*: the mode of the journal; *has_parity*: whether the code has parity cells;
    * *lost*: cells whose member cannot be read; *unwritten*: cells that were never written;
    * *reads_zero*: unwritten places read as zero on every member;
    * *in_log*: recovery may redo a record of the stripe;
    * *deferred*: data cells in the log whose parity is not (journal/deferred_parity.py);
    * *checkpointing*: the checkpoint is writing content of the stripe to its home places;
    * *locked*: a write, a degraded read or a job holds the lock;
    * *marked*: the dirty bitmap says that a write past the log may be in flight;
    * *awaits_resync*: its parity is not trusted since a crash;
    * *moved*: it is behind the growth position in memory, but not behind the saved one;
    * *may_follow*: data may be logged without its parity, which follows at the checkpoint;
    * *unsettled*: such data is in the log (journal/unsettled.py).
    """

    stripe: Stripe
    mode: str
    has_parity: bool
    lost: int = 0
    unwritten: int = 0
    reads_zero: bool = False
    in_log: bool = False
    deferred: int = 0
    checkpointing: bool = False
    locked: bool = False
    marked: bool = False
    awaits_resync: bool = False
    moved: bool = False
    may_follow: bool = False
    unsettled: bool = False

    def names(self, data_mask: int) -> list[str]:
        """Return the names of the states that hold, "clean" if there is none."""
        unwritten = self.unwritten & data_mask == data_mask
        found = {
            "unwritten": unwritten,
            "degraded": bool(self.lost & ~self.unwritten),
            "locked": self.locked,
            "logged": self.in_log,
            "parity deferred": bool(self.deferred) or self.unsettled,
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
        context.all_read_zero,
        journal.holds(stripe),
        may_follow=may_follow(context, stripe),
    )


def whole_state_of(context: ArrayContext, stripe: Stripe) -> StripeState:
    """Return the present state of *stripe* with everything that has a name."""
    journal = context.journal
    overlay = journal.overlay
    return state_of(context, stripe)._replace(
        deferred=journal.deferred.cells(stripe),
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
        unsettled=stripe in journal.unsettled,
    )


def may_follow(context: ArrayContext, stripe: Stripe) -> bool:
    """Return whether parity of *stripe* may follow its data now.

    A growth changes the stripes; the chunk cache and the list of lost chunks follow each write.
    """
    journal = context.journal
    return (
        journal.unsettled.admits(stripe)
        and not journal.forced
        and not journal.deferred.paused
        and context.growth is None
        and context.cache is None
        and not context.bad_chunks
    )


def logs_data_only(state: StripeState, touched: int) -> bool:
    """Return whether a piece that goes through the log is logged without its parity. Pure.

    A degraded stripe logs data and parity together, and so does a first write: whether a cell
    counts as zero in the chains must not change before the parity follows.
    """
    return state.may_follow and not state.lost and not state.unwritten & touched


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

    That is so if a crash during the write leaves something that a resync must finish. Pure.
    """
    return state.has_parity or state.mode == "none" or bool(state.unwritten & touched)


def is_whole(context: ArrayContext, state: StripeState, piece: Piece) -> bool:
    """Return whether *piece* overwrites every written chunk of its stripe.

    That is the full stripe, or in an array that has grown one generation of blocks without written
    blocks of other generations (see `GrownFullStripeWrite`).
    """
    layout, every = context.layout, context.code.data_mask
    whole = piece.whole_cells(context.chunk_bytes)
    if whole == every or not isinstance(layout, ElasticLayout) or context.growth is not None:
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


def healthy_routes(context: ArrayContext) -> dict[str, HealthyRoutes]:
    """Return the routes of healthy, written stripes of the present layout, by mode."""
    found = {}
    for mode in ("partial", "full", "none"):
        state = StripeState(Stripe(0), mode, context.code.parity_count > 0)
        logs = (
            route(state, 1, False) is Route.LOG,
            route(state._replace(in_log=True), 1, False) is Route.LOG,
        )
        found[mode] = HealthyRoutes(logs, route(state, 1, True), must_mark(state, 1))
    return found
