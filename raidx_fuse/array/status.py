"""The status of a running array: what `raidx status --json` shows of it.

The commands of the daemon add its volumes, what the mount itself is, and the next step
(daemon/commands/commands.py), the other arrays of the mount and the pool (dispatch.py), faults of a
lab (lab.py); the client adds what it knows of arrays without a daemon (client/status_document.py).
All keys: documents.py.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from raidx_fuse.array.services import RunningArray
from raidx_fuse.engine.explain import explain_place
from raidx_fuse.engine.parity_policies import why_not_asked
from raidx_fuse.format.configuration.remembered import shown_scrub
from raidx_fuse.format.configuration.sums import shown_sums
from raidx_fuse.format.shapes import RESTRIPE, leaving_roles
from raidx_fuse.job_words import RECOVERY, WORDS
from raidx_fuse.jobs.costs import redundancy_left
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.settings import POLICY, TRADITIONAL

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport, Member, Unreadable, UnreadablePlace

UNREADABLE_SHOWN_MAX = 100


def state(array: RunningArray) -> str:
    """Return the state of the array in one word.

    One of clean, growing, restriping, evacuating, resyncing, rebuilding, restoring, degraded,
    failed.
    """
    member_set = array.member_set
    if member_set.lost and not member_set.layout.tolerates(member_set.lost):
        return "failed"
    kinds = {job.kind for job in array.jobs.running()}
    if RESTRIPE in member_set.config.params:
        kinds.add("restripe")
    if array.context.growth is not None:
        kinds.add("grow")
    for kind, words in WORDS.items():
        if kind in kinds and words.state and (words.mdstat == RECOVERY or not member_set.lost):
            return words.state
    return "degraded" if member_set.lost else "clean"


def unreadable(array: RunningArray) -> Unreadable:
    """Return *count*, how many pages cannot be read, and the *places* of the first ones."""
    member_set, context = array.member_set, array.context
    places: list[UnreadablePlace] = []
    for role, page in islice(member_set.unreadable, UNREADABLE_SHOWN_MAX):
        queue = member_set.queues[role]
        at = page * PAGE_BYTES
        places.append(
            {
                "role": role,
                "path": None if queue is None else queue.member.path,
                "member_offset": at,
                "length": PAGE_BYTES,
                "image_offset": explain_place(context, Role(role), at)["image_offset"],
            }
        )
    return {"count": member_set.unreadable.count(), "places": places}


def _action(array: RunningArray, word: str) -> str | None:
    """Return the next step for the owner where only the engine knows it (advice.py), or None."""
    if array.context.bad_chunks:
        count = array.context.bad_chunks.count()
        return (
            f"{count} {'chunk is' if count == 1 else 'chunks are'} lost, whole or in part: restore "
            "the files there from a copy; `raidx damage ARRAY` lists the ranges"
        )
    pages = array.member_set.unreadable.count()
    if pages and (array.member_set.lost or not array.context.code.tolerance):
        ways = "restore the files there from a copy, or write the places again"
        if array.member_set.lost:
            ways = "attach the lost member again if it still exists, else write the places again"
        return (
            f"{pages} {'page' if pages == 1 else 'pages'} cannot be read, and nothing gives the "
            f"content back: {ways}; `raidx damage ARRAY` lists them"
        )
    sums = array.member_set.sums
    if sums is not None and sums.suspects:
        count = len(sums.suspects)
        what = "page does not fit its" if count == 1 else "pages do not fit their"
        return (
            f"{count} {what} checksum, and nothing has healed that so far: `raidx damage ARRAY` "
            "lists what must be written again"
        )
    if word == "degraded" and array.member_set.lost <= leaving_roles(array.member_set.config):
        return "the lost member leaves when the restripe ends: `raidx job ARRAY wait`"
    return None


def _still_so(array: RunningArray) -> list[str]:
    """Return the warnings of *array*, without those about members that were away at the start, if
    their roles have members again, or they are used.
    """
    member_set = array.member_set
    present = member_set.present()
    used = {member.path for member in present.values()}
    over = {
        text
        for uuid, text in array.absent_at_start.items()
        if uuid in present or member_set.config.find(uuid) is None
    }
    over |= {
        f"{member.path} is not used: {reason}"
        for member, reason in array.stale
        if member.path in used
    }
    return [text for text in array.warnings if text not in over]


def _few_copies(array: RunningArray) -> list[str]:
    """Return a warning if so many losses as the layout tolerates leave pages without checksums."""
    lacking, tolerated = array.sum_copies.lacking(), array.context.code.tolerance
    if not lacking:
        return []
    return [
        f"checksums have {tolerated + 1 - lacking} copies, {tolerated + 1} would outlast the "
        f"{tolerated} losses that are tolerated: not every member has room for them; replace all "
        "members by larger ones, then: raidx resize ARRAY max"
    ]


def _lost_sums(array: RunningArray) -> list[str]:
    """Return a warning if no member gave some checksums, so that pages are not verified."""
    sums = array.member_set.sums
    if sums is None or not sums.tables.lost_of:
        return []
    roles = ", ".join(map(str, sorted(sums.tables.lost_of)))
    first = "all members are there again and " if array.member_set.lost else ""  # chains prove them
    return [
        f"checksums of role {roles} were lost with members: the pages are not verified until "
        f"{first}a scrub has filled them: raidx scrub ARRAY"
    ]


def status(array: RunningArray) -> ArrayReport:
    """Return the status of a running array."""
    member_set, config, context = array.member_set, array.member_set.config, array.context
    word, health = state(array), array.health.present()
    members: list[Member] = []
    for record in config.members:
        queue = member_set.queues[record.role] if record.role >= 0 else None
        errors_ever, repairs_ever = health.counts_of(record.member_uuid)
        members.append(
            {
                "role": record.role,
                "path": array.membership.path_of(record),
                "uuid": record.member_uuid,
                "state": record.state,
                "kind": queue.member.kind if queue else None,
                "size": record.size_bytes,
                "errors": queue.errors if queue else None,
                "errors_ever": errors_ever,
                "repairs_ever": repairs_ever,
            }
        )
    policy = why_not_asked(config.settings.get(POLICY, TRADITIONAL), context.policies.current)
    document: ArrayReport = {
        "uuid": config.array_uuid,
        "name": config.name,
        "layout": config.layout,
        "layout_parameters": dict(config.params),
        "chunk_size": config.chunk_bytes,
        "size": array.size_bytes,
        "written": min(context.written.count_written() * config.chunk_bytes, array.size_bytes),
        "state": word,
        "redundancy_left": redundancy_left(array),
        "read_only": array.read_only,
        "events": config.events,
        "members": members,
        "jobs": [job.status() for job in array.jobs.running()],
        "volumes": [{"name": config.name, "size": array.size_bytes, "path": None}],
        "lost_chunks": context.bad_chunks.count(),
        "unreadable": unreadable(array),
        "host_full": bool(member_set.hosts.full_paths()),
        "hosts": member_set.hosts.shown(),
        "tuner": None if array.tuner is None else array.tuner.status(),
        "last_scrub": shown_scrub(health),
        "restore": None if array.self_heal is None else array.self_heal.status(),
        "warnings": [
            *_still_so(array),
            *(f"{path}: {problem}" for path, problem in sorted(array.presence.problems.items())),
            *array.misfit_limit.warnings(),
            *([] if policy is None else [policy]),
            *_few_copies(array),
            *_lost_sums(array),
            *member_set.hosts.warnings(),
        ],
        "action": _action(array, word),
    }
    if (sums := shown_sums(config, member_set.sums)) is not None:
        document["sums"] = sums
    return document
