"""Offline check: superblocks, maps and parity of an array that is not mounted; read-only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from raidx_fuse.array.damage import LOST, damage
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, Reason
from raidx_fuse.format.both_ends import Copies, copies_of, has_none
from raidx_fuse.format.configuration.remembered import joined_pages
from raidx_fuse.format.examine import examine
from raidx_fuse.jobs.scrub import Scrub
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.unreadable import PAGE_BYTES
from raidx_fuse.store.member_set import MemberSet
from raidx_fuse.store.sums import Sums

if TYPE_CHECKING:
    from raidx_fuse.documents import Checked, CheckProblem, Examined

REPAIR = "raidx check --repair-superblocks --deep"
RANGES_SHOWN = 8


async def check_members(members: Sequence[Member], *, deep: bool = False) -> Checked:
    """Check the array of *members* and return what is wrong.

    If *deep*, members without a superblock are searched for the end that they had when they were
    smaller; they are not used. Raises AssemblyError if they form no array.
    """
    problems: list[CheckProblem] = []

    def problem(
        what: str,
        member: str | None = None,
        stripe: int | None = None,
        image_offset: int | None = None,
    ) -> None:
        problems.append(
            {"member": member, "stripe": stripe, "image_offset": image_offset, "what": what}
        )

    if deep:
        for where, text in (await _searched(members)).items():
            problem(text, member=where)
    reports = [await examine(member) for member in members]
    async with open_array(members, read_only=True, start_degraded=True) as array:
        for warning in array.warnings:
            problem(warning)
        for member_set in array.member_set.page_stores:
            for text in member_set.damaged:
                problem(text)
        pending = array.context.dirty_bitmap.pending_regions()
        if pending:
            problem(
                f"{pending} regions were being written when the array stopped; "
                "the next mount resyncs their parity"
            )
        scrub = Scrub(array.context, 0, repair=False)
        await scrub.run()
        if scrub.error:
            problem(scrub.error)
        for finding in scrub.findings:
            paths = [member["path"] or f"role {member['role']}" for member in finding["members"]]
            offsets = finding["image_offsets"]
            located = finding["located"]
            blamed = paths if located else [None]
            for path in blamed:
                problem(
                    "the content of this member contradicts all others"
                    if located
                    else f"data and parity disagree, one of {', '.join(paths)} is wrong",
                    member=path,
                    stripe=finding["stripe"],
                    image_offset=offsets[0] if offsets and len(blamed) == 1 else None,
                )
        damaged = await damage(array)
        for part in damaged["ranges"]:
            why = "" if part["why"] == LOST else f" ({part['why']})"
            problem(f"{part['length']} bytes are lost{why}", image_offset=part["image_offset"])
        if damaged["more"]:
            problem(f"{damaged['more']} more ranges are lost")
        status = array.status()
        state, sums = status["state"], status.get("sums")
        live = array.member_set.sums
        if sums is not None and live is not None:
            for path, count, where in _misfits(array.member_set, live):
                what = "page does not fit its checksum" if count == 1 else "pages do not fit theirs"
                problem(f"{count} {what}: {where}", member=path)
            if (more := sums["misfits"] - len(live.suspects)) > 0:
                what = "page contradicts" if more == 1 else "pages contradict"
                problem(f"{more} {what} what the others give back")
            if wrong := sums["wrong_sums"]:
                problem(f"{wrong} {'checksum was' if wrong == 1 else 'checksums were'} wrong")
        if live is not None and live.tables.damaged_sectors:
            problem(f"sectors of checksums not read, or damaged: {live.tables.damaged_sectors}")
        if state not in ("clean", "resyncing", "growing", "restriping", "evacuating"):
            problem(f"the array is {state}")
        checked: Checked = {
            "ok": not problems,
            "uuid": array.uuid,
            "name": array.name,
            "state": state,
            "members": cast("list[Examined]", reports),
            "problems": problems,
            "mismatches": scrub.mismatches,
            "unchecked_stripes": scrub.unchecked,
            "scrubbed": scrub.detail()["members"],
        }
        if sums is not None:
            checked["sums"] = sums
        return checked


def _misfits(member_set: MemberSet, sums: Sums) -> list[tuple[str, int, str]]:
    """Return (path, pages, ranges of bytes in words) of each member with pages that misfit."""
    pages: dict[Role, list[int]] = {}
    for page in sums.suspects:
        pages.setdefault(page[0], []).append(sums.offset_of(page) // PAGE_BYTES)
    found = []
    for role, of_role in sorted(pages.items()):
        runs = joined_pages(of_role)
        words = [f"{at * PAGE_BYTES} to {(at + n) * PAGE_BYTES - 1}" for at, n in runs]
        more = ", ..." * (len(words) > RANGES_SHOWN or sum(n for _, n in runs) < len(of_role))
        where = "at bytes " + ", ".join(words[:RANGES_SHOWN]) + more
        found.append((member_set.path_of(role), len(of_role), where))
    return found


async def _searched(members: Sequence[Member]) -> dict[str, str]:
    """Return the paths of members whose superblocks only a search finds, and in words where.

    Raises AssemblyError if those are all that there are: no array can be opened for a check.
    """
    known = await copies_of(members)
    found = {
        member.path: f"superblocks of array {now.superblock.config.name} lie at byte "
        f"{now.end[0].offset}, where its end was; to write those in front again: {REPAIR}"
        for member, was, now in zip(
            members, known, await copies_of(members, searched=True), strict=True
        )
        if has_none(was) and isinstance(now, Copies) and now.superblock is not None
    }
    if found and all(map(has_none, known)):
        raise AssemblyError(
            f"{', '.join(found)} have superblocks only where their ends were",
            action=f"have those in front written again: {REPAIR}",
            reason=Reason.NOT_A_MEMBER,
        )
    return found
