"""What to do next: the ``action:`` line of a status. Pure: a status in, a sentence or None out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def action(status: Mapping[str, Any]) -> str | None:
    """Return what the owner of the array should type or do now, or None: nothing is to be done.

    *status* is as `raidx status --json` has it; its *mountpoint* is None for an array at rest. What
    the engine itself asks for when data was lost goes first.
    """
    where = status.get("mountpoint")
    if status.get("lost_chunks"):
        text = status.get("action")
        return text.replace("ARRAY", where or "ARRAY") if text else None
    down = [m for m in status["members"] if m["role"] >= 0 and m["state"] != "active"]
    if status["state"] == "failed":
        roles = ", ".join(str(member["role"]) for member in down)
        again = "unmount, then mount" if where else "mount"
        return f"bring the members of the roles {roles} back, {again} with them"
    paused = [job for job in status.get("jobs", ()) if job.get("paused")]
    if paused:
        return f"{paused[0]['kind']} is paused: raidx job {where} resume {paused[0]['id']}"
    if any(job["kind"] == "restore" for job in status.get("jobs", ())):
        return None
    waiting = [member["role"] for member in down if member["state"] != "rebuilding"]
    if waiting and where and not status.get("read_only"):
        text = f"replace member {waiting[0]}: raidx replace-disk {where} {waiting[0]} NEW_MEMBER"
        return text + _restoration(status.get("restore"))
    if waiting:
        return f"mount it read-write, then replace member {waiting[0]} with raidx replace-disk"
    grows = any(job["kind"] == "grow" for job in status.get("jobs", ()))
    if status["state"] == "growing" and where and not grows and not status.get("read_only"):
        return "the growth was given up: unmount, then mount anew to go on with it"
    moves = any(job["kind"] == "restripe" for job in status.get("jobs", ()))
    if status["state"] == "restriping" and where and not moves and not status.get("read_only"):
        return "the restripe was given up: unmount, then mount anew to go on with it"
    rebuilt = any(job["kind"] == "rebuild" for job in status.get("jobs", ()))
    if down and where and not rebuilt and not status.get("read_only"):
        return f"the rebuild of member {down[0]['role']} was given up: mount anew to go on with it"
    return None


def _restoration(restore: Mapping[str, Any] | None) -> str:
    """Say what becomes of a lost member's chunks if nobody replaces it (raidx)."""
    if not restore:
        return ""
    if stuck := restore["chunks_without_place"]:
        return (
            f"; {stuck} of its chunks find no free place on the others: raidx add-disk makes some"
        )
    if restore["begins_in_seconds"] is None:
        return ""
    seconds = restore["begins_in_seconds"]
    return f"; else what it held goes to free chunks of the others in {seconds:.0f} s"
