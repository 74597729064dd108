"""Events during an experiment: disks fail and are replaced, members join, settings change.

    Event(at_s=30, do="fail", disk=2)            the member is taken out
    Event(at_s=60, do="replace", disk=2)         a new member takes the role, a rebuild begins
    Event(at_s=60, do="spare", model="ssd")      a hot spare; a degraded array rebuilds onto it
    Event(at_s=60, do="add", count=2)            the array grows onto two new members
    Event(at_s=60, do="add", value="piggyback")  the same with a parity method of the McPod paper
    Event(at_s=60, do="restripe", value="raid5") everything moves to raid5 with *count* new members
    Event(at_s=90, do="lose", disk=1, for_s=40)  its server answers nothing for 40 s; if the disk
                                                 was given up meanwhile, it is caught up then
    Event(at_s=90, do="set", key="journal", value="none")
    Event(at_s=90, do="scrub")
    Event(at_s=90, do="tune")                    hot chunks of a raidx layout move now

Times count from the start of the load. An experiment ends when the jobs of its events have ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.engine.growth_position import LIVE, SURROGATE
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.layouts.registry import PARITY_WAYS
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.network import NetworkMember
from raidx_fuse.members.simulated.virtual_time import sleep, sleep_until

REBUILD_BEGINS_S = 5.0
SETTLED_EACH_S = 0.1

NewMember = Callable[[str], Member]  # takes a model's name, returns a new member at its speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. *disk*: a role; *model*: of the *count* new members ("": the others' model).

    *array*: the name of the array, in an experiment with several (pool_parts.py).
    """

    at_s: float
    do: str
    disk: int = -1
    model: str = ""
    count: int = 1
    key: str = ""
    value: str = ""
    for_s: float = 0.0
    array: str = ""

    def check(self) -> None:
        """Raise UsageError if a field is missing or impossible."""
        if self.do not in DEEDS:
            raise UsageError(f"no event {self.do!r}", action=f"choose {', '.join(DEEDS)}")
        if not 0 <= self.at_s < 1e9:
            raise UsageError(f"an event cannot be at {self.at_s} s")
        if self.do == "lose" and not 0 < self.for_s < 1e9:
            raise UsageError("the event 'lose' needs seconds, more than 0")
        if self.do in ("fail", "replace", "lose") and self.disk < 0:
            raise UsageError(f"the event {self.do!r} needs a disk")
        if not 1 <= self.count <= 255:
            raise UsageError(f"an event cannot bring {self.count} disks")
        if self.do == "add" and self.value and self.value not in PARITY_WAYS:
            known = ", ".join(PARITY_WAYS)
            raise UsageError(f"parity cannot follow as {self.value!r}", action=f"choose {known}")
        if self.do == "set" and not self.key:
            raise UsageError("the event 'set' needs a key and a value")


async def _fail(array: Array, event: Event, _new: NewMember) -> Mapping[str, Any]:
    return await array.fail_disk(event.disk)


async def _replace(array: Array, event: Event, new: NewMember) -> Mapping[str, Any]:
    return await array.replace_disk(event.disk, new(event.model))


async def _spare(array: Array, event: Event, new: NewMember) -> Mapping[str, Any]:
    await array.add_spare(new(event.model))
    return {"may_rebuild": True}


async def _add(array: Array, event: Event, new: NewMember) -> Mapping[str, Any]:
    members = [new(event.model) for _ in range(event.count)]
    if event.value == SURROGATE:
        return await array.grow(members, surrogate=new(event.model))
    return await array.grow(members, event.value or LIVE)


async def _restripe(array: Array, event: Event, new: NewMember) -> Mapping[str, Any]:
    members = [new(event.model) for _ in range(event.count)]
    return await array.restripe(members, event.value or None, {})


async def _scrub(array: Array, _event: Event, _new: NewMember) -> Mapping[str, Any]:
    return {"job": await array.start_scrub(repair=False)}


async def _tune(array: Array, _event: Event, _new: NewMember) -> Mapping[str, Any]:
    return {"job": array.start_tuning()}


async def _set(array: Array, event: Event, _new: NewMember) -> Mapping[str, Any]:
    return {"value": await array.set(event.key, event.value)}


async def _lose(array: Array, event: Event, _new: NewMember) -> Mapping[str, Any]:
    queues = array.member_set.queues
    queue = queues[event.disk] if event.disk < len(queues) else None
    if queue is None or not isinstance(queue.member, NetworkMember):
        raise UsageError(f"disk {event.disk} is behind no network, or is lost already")
    back_s = trio.current_time() + event.for_s
    queue.member.lose(back_s)
    return {"back_s": back_s, "member": queue.member}


Deed = Callable[[Array, Event, NewMember], Awaitable[Mapping[str, Any]]]
DEEDS: dict[str, Deed] = {
    "fail": _fail,
    "replace": _replace,
    "spare": _spare,
    "add": _add,
    "restripe": _restripe,
    "scrub": _scrub,
    "tune": _tune,
    "set": _set,
    "lose": _lose,
}


async def play(array: Array, events: Sequence[Event], new: NewMember) -> list[dict[str, Any]]:
    """Perform *events* at their times; return a report of each when all jobs have ended.

    If the array refuses an event, its report has the error message, and the experiment goes on.
    """
    start_s = trio.current_time()
    reports: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        for event in sorted(events, key=lambda event: event.at_s):
            await sleep_until(start_s + event.at_s)
            report: dict[str, Any] = {"at_s": event.at_s, "do": event.do}
            if event.disk >= 0:
                report["disk"] = event.disk
            if event.key:
                report["set"] = f"{event.key}={event.value}"
            reports.append(report)
            try:
                outcome = await DEEDS[event.do](array, event, new)
            except RaidxError as error:
                report["refused"] = str(error)
                continue
            if isinstance(outcome.get("job"), int):
                nursery.start_soon(_follow, array, outcome["job"], report, start_s)
            elif "back_s" in outcome:
                nursery.start_soon(_follow_return, array, event, outcome, report, start_s)
            elif "may_rebuild" in outcome:
                nursery.start_soon(_follow_rebuild, array, report, start_s)
    return reports


async def _follow_rebuild(array: Array, report: dict[str, Any], start_s: float) -> None:
    """Report the rebuild that a hot spare starts automatically, if one begins soon."""
    deadline_s = trio.current_time() + REBUILD_BEGINS_S
    while trio.current_time() < deadline_s and array.member_set.lost:
        for job in array.jobs.running():
            if job.kind == "rebuild":
                await _follow(array, job.job_id, report, start_s)
                return
        await sleep(REBUILD_BEGINS_S / 100)


async def _follow_return(
    array: Array, event: Event, lost: Mapping[str, Any], report: dict[str, Any], start_s: float
) -> None:
    """Report whether a lost server's disk was given up, and have it caught up then."""
    await sleep_until(lost["back_s"])
    member = lost["member"]
    if array.member_set.queues[event.disk] is not None:
        report["given_up"] = False
        return
    report["given_up"] = True
    while not member.is_settled():  # what it was sent is carried out
        await sleep(SETTLED_EACH_S)
    try:
        begun = await array.replace_disk(event.disk, member)
    except RaidxError as error:
        report["refused"] = str(error)
        return
    await _follow(array, begun["job"], report, start_s)


async def _follow(array: Array, job_id: int, report: dict[str, Any], start_s: float) -> None:
    status = await array.jobs.wait(job_id)
    report["job"] = status["kind"]
    report["job_state"] = status["state"]
    report["job_ended_s"] = float(f"{trio.current_time() - start_s:.9g}")
