"""The next step for the owner of an array: the ``action:`` line of a status. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def action(status: Mapping[str, Any]) -> str | None:
    """Return what the owner of the array should type or do next, or None if nothing is needed.

    *status* is the dict of `raidx status --json`; its *mountpoint* is None for an array that is not
    mounted. The engine's own advice comes first if data was lost. Else it is about a lost member
    that leaves the array when a restripe ends, and need not be replaced.
    """
    where, text = status.get("mountpoint"), status.get("action")
    engines = None if text is None else str(text).replace("ARRAY", where or "ARRAY")
    if status.get("lost_chunks") or status.get("unreadable", {}).get("count"):
        return engines
    down = [m for m in status["members"] if m["role"] >= 0 and m["state"] != "active"]
    if status["state"] == "failed":
        roles = ", ".join(str(member["role"]) for member in down)
        mount = "unmount, then mount" if where else "mount"
        return f"attach the members of roles {roles} again, then {mount} the array with them"
    if status.get("host_full"):
        full = [path for host in status["hosts"] if host["full"] for path in host["members"]]
        place = f" of {full[0]}" if full else " of the members"
        return f"the file system{place} is full, new writes fail: free space there"
    paused = [job for job in status.get("jobs", ()) if job.get("paused")]
    if paused:
        return f"{paused[0]['kind']} is paused: raidx job {where} resume {paused[0]['id']}"
    kinds = {job["kind"] for job in status.get("jobs", ())}
    if "restore" in kinds:
        return None
    if engines is not None:
        if "restripe" in kinds:
            return engines
        if status.get("read_only"):
            return "mount the array read-write: the restripe continues, and the lost member leaves"
        return "the restripe was aborted: unmount, then mount the array again to continue it"
    waiting = [member["role"] for member in down if member["state"] != "rebuilding"]
    if waiting and where and not status.get("read_only"):
        text = f"replace member {waiting[0]}: raidx replace-disk {where} {waiting[0]} NEW_MEMBER"
        return text + _restoration(status.get("restore"))
    if waiting:
        return (
            f"mount the array read-write, then replace member {waiting[0]} with raidx replace-disk"
        )
    for kind, what, begun in (
        ("grow", "growth", status["state"] == "growing"),
        ("restripe", "restripe", status["state"] == "restriping"),
        ("rebuild", f"rebuild of member {down[0]['role']}" if down else "", bool(down)),
    ):
        if begun and kind not in kinds and where and not status.get("read_only"):
            return f"the {what} was aborted: unmount, then mount the array again to continue it"
    return _after_scrub(status.get("last_scrub"), where)


def _after_scrub(scrub: Mapping[str, Any] | None, where: str | None) -> str | None:
    """Return what to do about places that the last scrub has left wrong."""
    if not scrub or not scrub["left"]:
        return None
    offsets = [place["image_offset"] for place in scrub["places"]]
    first = next((f", first at image offset {at}" for at in offsets if at is not None), "")
    count = f"{scrub['left']} {'mismatch' if scrub['left'] == 1 else 'mismatches'}{first}"
    if scrub["repair"]:
        return f"{count}, could not be repaired: compare the files there with a copy"
    if where is None:
        return f"{count}: mount the array, then correct them with raidx scrub MOUNTPOINT --repair"
    return f"{count}: correct them with raidx scrub {where} --repair"


def _restoration(restore: Mapping[str, Any] | None) -> str:
    """Return what happens to a lost member's chunks if it is not replaced (raidx layouts)."""
    if not restore:
        return ""
    if stuck := restore["chunks_without_place"]:
        return f"; {stuck} of its chunks have no free place on the others: raidx add-disk adds some"
    if restore["begins_in_seconds"] is None:
        return ""
    seconds = restore["begins_in_seconds"]
    return f"; otherwise its chunks are restored to free chunks of the others in {seconds:.0f} s"
