"""`explain`: what the engine does for a request, as data; and the state of a stripe.

For each stripe of a write: its state and route, by the functions that the write path asks
(write/route.py), the log record, and the plan: members, reads, XORs, writes, and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from raidx_fuse.engine import bpu
from raidx_fuse.engine.bpu import Decision
from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.engine.parity_policies import traditional
from raidx_fuse.engine.write.prepare import Piece, split
from raidx_fuse.engine.write.route import (
    Route,
    is_cached,
    is_whole,
    logs_data_only,
    must_mark,
    route,
    shape_of,
    whole_state_of,
)
from raidx_fuse.errors import UsageError
from raidx_fuse.format.log_record import record_bytes
from raidx_fuse.layouts.codes.code import Unrecoverable
from raidx_fuse.layouts.numbers import CellIndex, MemberChunk, Role, Stripe, cell_range
from raidx_fuse.layouts.planning.stripe_plan import (
    BandPlan,
    bands_of,
    cells_of,
    read_plan,
    write_plans,
)
from raidx_fuse.members.unreadable import PAGE_BYTES, pages_in
from raidx_fuse.store.io_tuples import MemberIO, join

if TYPE_CHECKING:
    from raidx_fuse.answers import (
        Admission,
        Band,
        CellPlace,
        CellState,
        ExplainedStripe,
        Explanation,
        MemberPlace,
        StripeState,
    )

LENGTH_MAX = 64 << 20
WAYS = {"rmw": "read-modify-write", "rcw": "reconstruct-write"}
CHUNKS_MAX = 1024  # at most 0.06 s of the event loop


def _place(
    context: ArrayContext, stripe: Stripe, cell: CellIndex, low: int, size: int
) -> CellPlace:
    role, position = context.position(stripe, cell)
    queue = context.member_set.queues[role]
    place: CellPlace = {
        "cell": context.code.name_of(cell),
        "role": role,
        "path": queue.member.path if queue else None,
        "member_offset": position + low,
        "length": size,
    }
    if cell < context.code.data_count:
        place["image_offset"] = context.layout.logical(stripe, cell) * context.chunk_bytes + low
    return place


def _choose(
    context: ArrayContext, rmw: BandPlan | None, rcw: BandPlan | None, stripe: Stripe, known: int
) -> tuple[BandPlan, Decision | None]:
    """Return the plan that the policy would choose now, and BPU's numbers if it weighs queues.

    The cells in the mask *known* are in the cache.
    """
    if context.policies.current is not context.policies.bpu:
        return context.policies.current(rmw, rcw, stripe, known), None
    decision = context.policies.bpu.weigh(rmw, rcw, stripe, known)
    if decision is None:
        return traditional(rmw, rcw, stripe, known), None
    plan = rmw if decision.chosen == bpu.RMW else rcw
    assert plan is not None, "BPU decides only if both plans are possible"
    return plan, decision


def _why(
    plan: BandPlan,
    rmw: BandPlan | None,
    rcw: BandPlan | None,
    policy: str,
    decision: Decision | None,
    known: int,
) -> str:
    if plan.kind == "full":
        return "no pre-reads: parity follows from the new data and unwritten cells"
    if rmw is None or rcw is None:
        return f"{WAYS[plan.kind]}: a chunk that the other way needs is lost"
    if rmw.outputs == rcw.outputs:
        return f"{WAYS[plan.kind]}: without the lost chunk there is no other way"
    uncached = " (not counting cached chunks)" if (rmw.read_mask | rcw.read_mask) & known else ""
    if decision is not None:
        return bpu.words(decision) + uncached
    return (
        f"policy {policy}: read-modify-write would read {rmw.pre_reads_beside(known)} chunks"
        f"{uncached}, reconstruct-write {rcw.pre_reads_beside(known)}"
    )


def _formula(context: ArrayContext, plan: BandPlan) -> list[str]:
    lines = []
    for output in plan.outputs:
        terms = [f"old {context.code.name_of(c)}" for c in output.old]
        terms += [f"new {context.code.name_of(c)}" for c in output.new]
        lines.append(f"{context.code.name_of(output.cell)} = {' ^ '.join(terms) or '0'}")
    return lines


def explain(
    context: ArrayContext, offset: int, length: int, write: bool, policy: str
) -> Explanation:
    """Return the plan for reading or writing *length* bytes at *offset*, without doing it.

    Raises UsageError if the range is too long or outside the image, UnrecoverableError if the bytes
    are lost.
    """
    longest = min(LENGTH_MAX, CHUNKS_MAX * context.chunk_bytes)
    if length < 1 or length > longest:
        raise UsageError(f"length {length} is out of range: take 1 to {longest} bytes")
    if offset < 0 or offset + length > context.layout.size_bytes:
        raise UsageError(
            f"bytes {offset} to {offset + length} are outside the image "
            f"of {context.layout.size_bytes} bytes"
        )
    if context.layout.contiguous:
        pieces = split(context, offset, 0, length)
    else:  # chunk by chunk, in the order of the image
        size, end = context.chunk_bytes, offset + length
        edges = range((offset // size + 1) * size, end, size)
        chunks = pairwise((offset, *edges, end))
        pieces = [piece for at, to in chunks for piece in split(context, at, 0, to - at)]
    stripes = [_stripe(context, piece, write, policy) for piece in pieces]
    return {
        "offset": offset,
        "length": length,
        "operation": "write" if write else "read",
        "layout": context.layout.name,
        "policy": policy,
        "stripes": stripes,
        "reads": sum(
            not place["cached"] for s in stripes for band in s["bands"] for place in band["reads"]
        ),
        "writes": sum(len(band["writes"]) for s in stripes for band in s["bands"]),
    }


def _bands(
    context: ArrayContext, piece: Piece, lost: int, write: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the bands of *piece*: first byte, end, cells touched, cells that cannot be read there.

    *lost* are the cells of absent members. A read is planned around pages that are unreadable, or
    known to misfit their checksums; a write heals them before.
    """
    member_set = context.member_set
    for low, high, touched in bands_of(piece.parts()):
        if write or not member_set.unreadable:
            yield low, high, touched, lost
            continue
        begin, before = low, member_set.lost_cells(piece.stripe, low, low + 1)
        for page in pages_in(low, high)[1:]:
            at = page * PAGE_BYTES
            gone = member_set.lost_cells(piece.stripe, at, at + 1)
            if gone != before:
                yield begin, at, touched, before
                begin, before = at, gone
        yield begin, high, touched, before


def _why_read(context: ArrayContext, stripe: Stripe, plan: BandPlan, unreadable: int) -> str:
    """Return why a read has this *plan*; the pages of the *unreadable* cells are."""
    if not plan.outputs:
        return "read directly"
    solved = sum(1 << output.cell for output in plan.outputs) & unreadable
    if not solved:
        return "degraded read: reconstructed by the chains"
    names = " ".join(context.code.name_of(cell) for cell in cells_of(solved))
    return (
        f"{names} cannot be read, or misfits its checksum: reconstructed by the chains, and healed"
    )


def _stripe(context: ArrayContext, piece: Piece, write: bool, policy: str) -> ExplainedStripe:
    stripe = piece.stripe
    lost = context.layout.lost_cells(stripe, context.member_set.lost_at(stripe))
    unwritten = context.unwritten_cells(stripe)
    shown: list[Band] = []
    is_compared = context.member_set.sums is not None
    for low, high, touched, gone in _bands(context, piece, lost, write):
        size = high - low
        known = context.cached(stripe, context.code.all_mask & ~unwritten, low, high)
        rmw = rcw = decision = None
        try:
            if write:
                rmw, rcw = write_plans(context.code, touched, lost, unwritten)
                plan, decision = _choose(context, rmw, rcw, stripe, known)
                why = _why(plan, rmw, rcw, policy, decision, known)
            else:
                plan = read_plan(context.code, touched, gone & ~known, unwritten)
                why = _why_read(context, stripe, plan, gone & ~lost)
                if plan.reads and not plan.pre_reads_beside(known):
                    why = "everything is in the cache"
                elif plan.read_mask & known:
                    why += ", or in the cache"
                if not plan.reads:
                    why = "never written: zeros, no I/O"
                elif is_compared and plan.pre_reads_beside(known):
                    why += "; compared with the checksums"
        except Unrecoverable as error:
            raise context.lost_error(stripe, cells_of(error.cells)) from None
        written = [*plan.writes, *(output.cell for output in plan.outputs)] if write else []
        band: Band = {
            "from": low,
            "to": high,
            "kind": plan.kind,
            "why": why,
            "reads": [
                {
                    **_place(context, stripe, cell, low, size),
                    "cached": bool(known >> cell & 1),
                }
                for cell in plan.reads
            ],
            "xor": _formula(context, plan),
            "writes": [_place(context, stripe, cell, low, size) for cell in written],
            "candidates": {
                name: None if option is None else option.pre_reads_beside(known)
                for name, option in (("rmw", rmw), ("rcw", rcw))
            }
            if write
            else None,
            "decision": bpu.numbers(decision) if decision else None,
        }
        if is_compared and not write:
            band["compared"] = bool(plan.pre_reads_beside(known))
            healed = touched & gone & ~(lost | known | unwritten)
            band["heals"] = [context.code.name_of(cell) for cell in cells_of(healed)]
        shown.append(band)
    document: ExplainedStripe = {
        "stripe": stripe,
        "lost": [context.code.name_of(c) for c in cells_of(lost)],
        "never_written": [
            # During a restripe a stripe may have cells that its layout does not place (role < 0).
            context.code.name_of(c)
            for c in cells_of(unwritten)
            if context.layout.place(stripe, c)[0] >= 0
        ],
        "bands": shown,
    }
    if write:
        return {**document, **_admission(context, piece, shown)}
    return document


def _admission(context: ArrayContext, piece: Piece, bands: list[Band]) -> Admission:
    """Return the state of the stripe, the route of *piece*, its log record, and what is later.

    *bands* are its bands as shown: done now, or at the checkpoint if the parity follows.
    """
    state = whole_state_of(context, piece.stripe)
    way = route(state, piece.touched, is_whole(context, state, piece))
    document: Admission = {
        "state": state.names(context.code.data_mask),
        "route": way.value,
        "dirty_mark": way is not Route.LOG and must_mark(state, piece.touched),
        "log": None,
        "checkpoint": None,
    }
    if way is not Route.LOG:
        return document
    unsettled = context.journal.unsettled
    follows = (
        logs_data_only(state, shape_of(context, piece))
        and not is_cached(context, piece.stripe, bands_of(piece.parts()))
        and unsettled.has_space(piece.stripe, unsettled.space_of(piece.parts()))
    )
    fresh = state.unwritten & piece.touched
    places = [place for band in bands for place in band["writes"]]
    parities = [place for place in places if place["cell"].startswith("P")]
    data = [place for place in places if not place["cell"].startswith("P")]
    parity, settling = "with the data", 0
    if follows:
        parity = "at the checkpoint"
        settling = _record_bytes(parities, 1)
    size = _record_bytes(data if follows else places, follows + bool(fresh))
    journal = context.journal
    roles = journal.log_members.at(journal.ring.next_place(size)[1])
    document["log"] = {
        "roles": sorted(role for role in roles if context.member_set.queues[role] is not None),
        "bytes": size,
        "parity": parity,
    }
    document["checkpoint"] = {
        "settles_first": state.unsettled and not follows,
        "reads": sum(len(band["reads"]) for band in bands) if follows else 0,
        "log_bytes": settling,
        "writes": len(places),
    }
    return document


def _record_bytes(places: list[CellPlace], more_entries: int) -> int:
    """Return the size of a record of *places*, of which adjacent ones have one entry."""
    requests: list[MemberIO] = [
        (Role(p["role"]), p["member_offset"], (), p["length"]) for p in places
    ]
    requests = join(requests)
    return record_bytes(len(requests) + more_entries, sum(size for *_, size in requests))


def explain_stripe(context: ArrayContext, stripe: Stripe) -> StripeState:
    """Return the state of *stripe* and where its cells are. Raises UsageError if there is none."""
    layout = context.layout
    if not 0 <= stripe < layout.stripes:
        raise UsageError(f"stripe {stripe} does not exist: the last one is {layout.stripes - 1}")
    state = whole_state_of(context, stripe)
    cells: list[CellState] = []
    for cell in cell_range(0, len(context.code.cells)):
        if layout.place(stripe, cell)[0] < 0:
            continue  # a cell that a restriping layout does not place
        cells.append(
            {
                **_place(context, stripe, cell, 0, context.chunk_bytes),
                "written": not state.unwritten >> cell & 1,
                "lost": bool(state.lost >> cell & 1),
            }
        )
    return {
        "stripe": stripe,
        "layout": layout.name,
        "state": state.names(context.code.data_mask),
        "journal": state.mode,
        "parity_may_follow": state.may_follow,
        "cells": cells,
    }


def explain_place(context: ArrayContext, role: Role, member_offset: int) -> MemberPlace:
    """Return what lies at a byte of the member in *role*: a region, or a cell of a stripe.

    Raises UsageError if *member_offset* is beyond the end of the member.
    """
    member_set = context.member_set
    record, queue = member_set.config.record(role), member_set.queues[role]
    if not 0 <= member_offset < record.size_bytes:
        raise UsageError(
            f"byte {member_offset} is outside member {role}, which has {record.size_bytes} bytes"
        )
    document: MemberPlace = {
        "role": role,
        "path": queue.member.path if queue else None,
        "member_offset": member_offset,
        "region": "unused",
        "stripe": None,
        "cell": None,
        "written": None,
        "image_offset": None,
    }
    for name, region in member_set.config.regions.named().items():
        if region.offset <= member_offset < region.end:
            document["region"] = name
    inside = member_offset - context.member_set.data_offset
    if inside < 0:
        return document
    found = None
    if inside // context.chunk_bytes < context.layout.member_chunks:
        found = context.layout.inverse(role, MemberChunk(inside // context.chunk_bytes))
    if found is None:
        return document
    stripe, cell = found
    unwritten = context.unwritten_cells(stripe)
    document |= {
        "region": "data",
        "stripe": stripe,
        "cell": context.code.name_of(cell),
        "written": not unwritten >> cell & 1,
    }
    if cell < context.code.data_count:
        chunk = context.layout.logical(stripe, cell)
        document["image_offset"] = chunk * context.chunk_bytes + inside % context.chunk_bytes
    return document
