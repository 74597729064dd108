"""What the daemon answers, in words and values for the page: a request's plan, the state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raidx_fuse.layouts.registry import WIDTH_MAX
from raidx_fuse.units import format_size

LINES_MAX = 200
JOBS_MAX = 16
CELLS_MAX = 2048
TEXT_CHARS_MAX = 300
ROUTES = {
    "log": "through the log: the record first, the home places at the checkpoint",
    "in place": "in place, at once",
    "bypass": "past the log, as a whole stripe",
}


def plan(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer to `explain` as *title*, *lines*, and *cells*: [key, "read" or "write"].

    A write that reads a cell first has it in both.
    """
    lines: list[str] = []
    cells: list[tuple[str, str]] = []
    for stripe in document["stripes"]:
        number = stripe["stripe"]
        lines.append(f"Stripe {number}")
        if stripe["lost"]:
            lines.append(f"lost: {', '.join(stripe['lost'])}")
        if "route" in stripe:
            lines.append(f"route: {ROUTES.get(stripe['route'], stripe['route'])}")
        for band in stripe["bands"]:
            lines.append(str(band["why"]))
            for what, places in (("read", band["reads"]), ("write", band["writes"])):
                cells += [(f"{number}:{place['cell']}", what) for place in places]
                lines += [_place(what, place) for place in places]
            lines += [f"XOR: {formula}" for formula in band["xor"]]
        log = stripe.get("log")
        if log:
            copies = ", ".join(str(role) for role in log["roles"])
            lines.append(
                f"log record: {log['bytes']} bytes on members {copies}, parity {log['parity']}"
            )
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} more lines: raidx explain"]
    size = format_size(document["length"])
    return {
        "title": f"{document['operation']} of {size} at {document['offset']}",
        "summary": f"{document['reads']} reads and {document['writes']} writes of members",
        "lines": lines,
        "cells": [list(each) for each in dict.fromkeys(cells)][:CELLS_MAX],
    }


def _place(what: str, place: Mapping[str, Any]) -> str:
    where = f"byte {place['member_offset']} of member {place['role']}"
    cached = ", from the cache" if place.get("cached") else ""
    return f"{what} {place['cell']}: {place['length']} bytes at {where}{cached}"


def state(status: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return what readers of the page see of an answer to `status` and one to `stats`.

    Neither process ids nor the paths of socket and log are told.
    """
    counters = {member["role"]: member for member in stats.get("members", ())}
    return {
        **{key: short(status[key]) for key in ("name", "layout", "state")},
        "redundancy_left": status["redundancy_left"],
        "size": format_size(status["size"]),
        "chunk": format_size(status["chunk_size"]),
        "can_be_broken": status.get("lab") is not None,
        "action": short(status["action"]),
        "warnings": [short(text) for text in status["warnings"][:8]],
        "members": [_member(m, counters.get(m["role"], {})) for m in status["members"][:WIDTH_MAX]],
        "jobs": [
            {
                "kind": short(job["kind"]),
                "state": short(job["state"]),
                "done": job["done"],
                "total": max(1, job["total"]),
                "percent": round(100 * job["done"] / max(1, job["total"])),
            }
            for job in status["jobs"][:JOBS_MAX]
        ],
        "faults": {
            str(disk["member"]): [str(fault) for fault in disk["faults"]]
            for disk in (status.get("lab") or ())[:WIDTH_MAX]
            if disk["faults"]
        },
    }


def _member(member: Mapping[str, Any], counters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": member["role"],
        "path": short(member["path"]),
        "state": short(member["state"]),
        **{key: counters.get(key) for key in ("reads", "writes", "queue_now", "errors")},
    }


def change(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of an answer to `compare`: a line, and rows for a table of members."""
    cells, moved = document["cells"], document["moved"]
    least = "at least " if document["is_cut"] else ""
    parts = [f"{least}{moved} of {cells} cells in use lie elsewhere"]
    if document["sampled_ratio"] < 1:
        parts.append("estimated from a sample of the stripes")
    kind = short(document["kind"])
    rows = [
        {
            "role": member["role"],
            "path": short(member["path"]),
            **{
                side: {
                    "data": member[side]["data"],
                    "parity": member[side]["parity"],
                    "accesses": _rate(member[side]["accesses_per_s"]),
                }
                for side in ("before", "after")
            },
        }
        for member in document["members"][:WIDTH_MAX]
    ]
    return {
        "kind": kind,
        "line": f"{kind}, {short(document['state'])}: {'; '.join(parts)}",
        "members": rows,
    }


def _rate(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def short(text: str | None) -> str | None:
    """Return *text* in at most `TEXT_CHARS_MAX` characters."""
    return text and text[:TEXT_CHARS_MAX]
