"""A request step by step, from the plan that `explain` returns: what happens, in which order, and
what a power cut after each step would leave.

Only words are made here: order and promises are those of the write path, see "The walk of a write"
and "Recovery after a crash" in raidx_fuse/ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raidx_fuse.answers import (
        Band,
        CellPlace,
        CheckpointWork,
        ExplainedStep,
        ExplainedStripe,
        Explanation,
        LogWrite,
        Step,
    )

UNCHANGED = "nothing has changed: a read gives the old content"
REDONE = "recovery redoes the record: a read gives the new content"
TORN_LOG = (
    "unless a flush has followed, the record may be lost or torn: recovery ends the log before it, "
    "and a read gives the old content; never a mixture"
)
HOLE = (
    "data and parity may disagree; the next mount resyncs the stripe. If a member is lost as well, "
    "what it held may be computed wrong (the write hole)"
)
COMPARED = (
    "whole pages with their checksums: what does not fit is computed by chains, and healed, or it "
    "is an error of the read"
)
NO_PARITY = "unless a flush has followed, sectors may be old or new, as on a single disk"
WHOLE = (
    "data and parity may disagree; the next mount resyncs the stripe: chunks may be old or new, "
    "and nothing else was in it"
)


def steps_of(plan: Explanation) -> list[ExplainedStep]:
    """Return the steps of *plan*, the answer of `explain`, in order.

    Keys: *step*, its number; *stripe*; *does*, one of lock, read, compare, xor, mark, log, write,
    flush, acknowledge and heal; *what*, in words; *power*, what a power cut just after it leaves,
    None for reads; *cells*, the cells that it reads or writes, with *from*, *to* in bytes.
    """
    steps = [
        (stripe["stripe"], step)
        for stripe in plan["stripes"]
        for step in (_write(stripe) if plan["operation"] == "write" else _read(stripe))
    ]
    return [{"step": n, "stripe": stripe, **step} for n, (stripe, step) in enumerate(steps, 1)]


def _step(
    does: str,
    what: str,
    power: str | None = None,
    places: Sequence[CellPlace] = (),
    band: Band | None = None,
) -> Step:
    cells = [place["cell"] for place in places]
    step: Step = {"does": does, "what": what, "power": power, "cells": cells}
    if band is not None:
        step["from"], step["to"] = band["from"], band["to"]
    return step


def _read(stripe: ExplainedStripe) -> Iterator[Step]:
    if any(band["xor"] for band in stripe["bands"]):
        yield _step("lock", "take the stripe's lock: chains hold only while no write changes it")
    for band in stripe["bands"]:
        yield from _reads(band)
        if not band["reads"]:
            yield _step("read", "nothing: the chunk was never written, the answer is zeros")
    yield _step("acknowledge", "answer the request")
    for name in (name for band in stripe["bands"] for name in band.get("heals", ())):
        yield _step("heal", f"{name}: written home if it fits its checksum, and read again")


def _reads(band: Band, power: str | None = None) -> Iterator[Step]:
    for place in band["reads"]:
        source = "the cache" if place["cached"] else f"member {place['role']}"
        what = f"{place['cell']}: {place['length']} bytes at {place['member_offset']} of {source}"
        yield _step("read", what, power, (place,), band)
    if band.get("compared"):
        yield _step("compare", COMPARED, power, (), band)
    for line in band["xor"]:
        yield _step("xor", line, power, (), band)


def _write(stripe: ExplainedStripe) -> Iterator[Step]:
    bands, log, checkpoint = stripe["bands"], stripe["log"], stripe["checkpoint"]
    yield _step("lock", "take the stripe's lock", UNCHANGED)
    later = log is not None and log["parity"] != "with the data"
    if not later:
        for band in bands:
            yield from _reads(band, UNCHANGED)
    if log is not None and checkpoint is not None:
        yield from _through_the_log(bands, log, checkpoint, later)
        return
    if stripe["dirty_mark"]:
        yield _step("mark", "mark the region dirty (write intent), and flush it", UNCHANGED)
    parity = any(place["cell"].startswith("P") for band in bands for place in band["writes"])
    power = (WHOLE if stripe["route"] == "bypass" else HOLE) if parity else NO_PARITY
    for band in bands:
        yield from _writes(band, power)
    yield _step("acknowledge", "answer the request", power)
    yield _step(
        "flush", "make it durable; the dirty mark is cleared later", "a read gives the new content"
    )


def _writes(band: Band, power: str) -> Iterator[Step]:
    for place in band["writes"]:
        what = f"{place['cell']}: {place['length']} bytes at {place['member_offset']} of "
        what += f"member {place['role']}" if place["path"] else f"member {place['role']} (not here)"
        yield _step("write", what, power, (place,), band)


def _through_the_log(
    bands: Sequence[Band], log: LogWrite, checkpoint: CheckpointWork, later: bool
) -> Iterator[Step]:
    roles = ", ".join(map(str, log["roles"]))
    content = "data only" if later else "data and parity"
    yield _step(
        "log", f"one record, {log['bytes']} bytes with {content}, on members {roles}", TORN_LOG
    )
    yield _step("acknowledge", "answer the request; reads take the content of the log", TORN_LOG)
    yield _step("flush", "make the record durable", REDONE)
    if later:
        for band in bands:
            yield from _reads(band, REDONE)
        if checkpoint["log_bytes"]:
            yield _step("log", f"the parity, {checkpoint['log_bytes']} bytes, and a flush", REDONE)
    for band in bands:  # the checkpoint
        yield from _writes(band, REDONE)
    yield _step(
        "flush", "make them durable; then the log forgets them", "a read gives the new content"
    )
