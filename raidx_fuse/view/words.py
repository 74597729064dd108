"""What the daemon answers, in words and values for the page: a request's plan, the state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raidx_fuse.layouts.registry import WIDTH_MAX
from raidx_fuse.units import format_size

if TYPE_CHECKING:
    from raidx_fuse.answers import CellPlace, Change, ComparedCells, Explanation
    from raidx_fuse.documents import ArrayReport, CommandStats

LINES_MAX = 200
JOBS_MAX = 16
CELLS_MAX = 2048
TEXT_CHARS_MAX = 300
COUNTS = ("reads", "writes", "queue_now", "errors")
ROUTES = {
    "log": "through the log: the record first, the home places at the checkpoint",
    "in place": "in place, at once",
    "bypass": "past the log, as a whole stripe",
}


def plan(document: Explanation) -> dict[str, Any]:
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
            for place in band["reads"]:
                cells.append((f"{number}:{place['cell']}", "read"))
                lines.append(_place("read", place) + ", from the cache" * place["cached"])
            for written in band["writes"]:
                cells.append((f"{number}:{written['cell']}", "write"))
                lines.append(_place("write", written))
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


def _place(what: str, place: CellPlace) -> str:
    where = f"byte {place['member_offset']} of member {place['role']}"
    return f"{what} {place['cell']}: {place['length']} bytes at {where}"


def state(status: ArrayReport, stats: CommandStats) -> dict[str, object]:
    """Return what readers of the page see of an answer to `status` and one to `stats`.

    Neither process ids nor the paths of socket and log are told.
    """
    counters: dict[int, Mapping[str, object]] = {
        member["role"]: member for member in stats.get("members", ())
    }
    return {
        "name": short(status["name"]),
        "layout": short(status["layout"]),
        "state": short(status["state"]),
        "redundancy_left": status["redundancy_left"],
        "size": format_size(status["size"]),
        "chunk": format_size(status["chunk_size"]),
        "can_be_broken": status.get("lab") is not None,
        "action": short(status["action"]),
        "warnings": [short(text) for text in status["warnings"][:8]],
        "members": [
            {
                "role": member["role"],
                "path": short(member["path"]),
                "state": short(member["state"]),
                **{key: counters.get(member["role"], {}).get(key) for key in COUNTS},
            }
            for member in status["members"][:WIDTH_MAX]
        ],
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


def change(document: Change) -> dict[str, object]:
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
            "before": _cells(member["before"]),
            "after": _cells(member["after"]),
        }
        for member in document["members"][:WIDTH_MAX]
    ]
    return {
        "kind": kind,
        "line": f"{kind}, {short(document['state'])}: {'; '.join(parts)}",
        "members": rows,
    }


def _cells(cells: ComparedCells) -> dict[str, object]:
    rate = cells["accesses_per_s"]
    accesses = None if rate is None else round(rate, 1)
    return {"data": cells["data"], "parity": cells["parity"], "accesses": accesses}


def short(text: str | None) -> str | None:
    return text and text[:TEXT_CHARS_MAX]
