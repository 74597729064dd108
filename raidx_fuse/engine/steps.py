"""A request step by step, from the plan that `explain` returns: what happens, in which order, and
what a power cut after each step would leave.

Only words are made here: order and promises are those of the write path, see "The walk of a write"
and "Recovery after a crash" in raidx_fuse/ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
NO_PARITY = "unless a flush has followed, sectors may be old or new, as on a single disk"
WHOLE = (
    "data and parity may disagree; the next mount resyncs the stripe: chunks may be old or new, "
    "and nothing else was in it"
)


def steps_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of *plan*, the answer of `explain`, in order.

    Keys: *step*, its number; *stripe*; *does*, one of lock, read, xor, mark, log, write, flush
    and acknowledge; *what*, in words; *power*, what a power cut just after it leaves,
    None for reads; *cells*, the cells that it reads or writes, with *from*, *to* in bytes.
    """
    found: list[dict[str, Any]] = []
    for stripe in plan["stripes"]:
        of_stripe = _write(stripe) if plan["operation"] == "write" else _read(stripe)
        found += [{"stripe": stripe["stripe"], **step} for step in of_stripe]
    return [{"step": number, **step} for number, step in enumerate(found, 1)]


def _step(
    does: str, what: str, power: str | None = None, places: tuple[Any, ...] = (), **span: int
) -> dict[str, Any]:
    cells = [place["cell"] for place in places]
    return {"does": does, "what": what, "power": power, "cells": cells, **span}


def _read(stripe: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if any(band["xor"] for band in stripe["bands"]):
        yield _step("lock", "take the stripe's lock: chains hold only while nobody writes to it")
    for band in stripe["bands"]:
        yield from _reads(band)
        if not band["reads"]:
            yield _step("read", "nothing: the chunk was never written, the answer is zeros")
    yield _step("acknowledge", "answer the request")


def _reads(band: dict[str, Any], power: str | None = None) -> Iterator[dict[str, Any]]:
    span = {"from": band["from"], "to": band["to"]}
    for place in band["reads"]:
        source = "the cache" if place.get("cached") else f"member {place['role']}"
        what = f"{place['cell']}: {place['length']} bytes at {place['member_offset']} of {source}"
        yield _step("read", what, power, (place,), **span)
    for line in band["xor"]:
        yield _step("xor", line, power, (), **span)


def _write(stripe: dict[str, Any]) -> Iterator[dict[str, Any]]:
    bands, log = stripe["bands"], stripe["log"]
    yield _step("lock", "take the stripe's lock", UNCHANGED)
    later = log is not None and log["parity"] != "with the data"
    if not later:
        for band in bands:
            yield from _reads(band, UNCHANGED)
    if log is not None:
        yield from _through_the_log(stripe, later)
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


def _writes(band: dict[str, Any], power: str) -> Iterator[dict[str, Any]]:
    for place in band["writes"]:
        what = f"{place['cell']}: {place['length']} bytes at {place['member_offset']} of "
        what += f"member {place['role']}" if place["path"] else f"member {place['role']} (not here)"
        yield _step("write", what, power, (place,), **{"from": band["from"], "to": band["to"]})


def _through_the_log(stripe: dict[str, Any], later: bool) -> Iterator[dict[str, Any]]:
    log, checkpoint = stripe["log"], stripe["checkpoint"]
    roles = ", ".join(map(str, log["roles"]))
    content = "data only" if later else "data and parity"
    yield _step(
        "log", f"one record, {log['bytes']} bytes with {content}, on members {roles}", TORN_LOG
    )
    yield _step("acknowledge", "answer the request; reads take the content of the log", TORN_LOG)
    yield _step("flush", "make the record durable", REDONE)
    if later:
        for band in stripe["bands"]:
            yield from _reads(band, REDONE)
        if checkpoint["log_bytes"]:
            yield _step("log", f"the parity, {checkpoint['log_bytes']} bytes, and a flush", REDONE)
    for band in stripe["bands"]:  # the checkpoint
        yield from _writes(band, REDONE)
    yield _step(
        "flush", "make them durable; then the log forgets them", "a read gives the new content"
    )
