"""Growing an array onto more members: the change of shape at the beginning and at the end.

    add members:  prepare them -> alone: wider layout, 0 stripes migrated -> maps -> superblocks
    job `grow`:   windows (job.py), positions made durable (engine/growth_position.py)
    at the end:   superblocks: the new shape -> the image is larger; a surrogate has the role of
                  the parity then, and who had it is a spare
    cancelled:    back to 0 stripes migrated -> alone: narrower layout -> superblocks

With no stripe migrated both layouts say the same of every block, so the change of shape itself
moves nothing, and a crash beside it finds the array whole in either.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio
import trio.lowlevel

from raidx_fuse.engine.growth_position import JOB_KEY, LIVE, MIGRATED, PARITY, SURROGATE
from raidx_fuse.errors import RaidxError, UsageError
from raidx_fuse.format.configuration.config import NO_ROLE, ArrayConfig, MemberRecord
from raidx_fuse.format.log_record import record_bytes
from raidx_fuse.format.regions import PAYLOAD_BITS
from raidx_fuse.jobs.attach import assign_role, join, leave, release
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.registry import LAYOUTS, LayoutError, grows_in_place, make_layout
from raidx_fuse.members.base import Member

log = logging.getLogger(__name__)

HISTORY = "history"


class GrowOperation:
    """Begins and concludes the growths of one running array.

    *on_size* is awaited when the image has become larger, *on_release* for each member that a
    cancelled growth gave back: it belongs to nobody then.
    """

    def __init__(self, array: ArrayServices) -> None:
        self.array = array
        self.member_set = array.member_set
        self.context = array.context
        self.on_size: list[Callable[[], Awaitable[None]]] = []
        self.on_release: list[Callable[[Member], None]] = []

    # -- may it? -------------------------------------------------------------------------------

    def wider(self, added: int, parity: str = LIVE) -> ElasticLayout:
        """Return the layout with *added* members more, nothing migrated.

        *parity*: how it is to follow, see copy.py; a surrogate comes on top. Raises
        RaidxError (UsageError, BusyError) when the array cannot grow, or not now.
        """
        config = self.member_set.config
        self.array.require_writable()
        if not grows_in_place(config.layout):
            able = ", ".join(name for name in LAYOUTS if grows_in_place(name))
            raise RaidxError(
                f"{config.layout} cannot grow by the fewest moves: only {able} can",
                action="move everything: --method restripe; or add spares: --as spare",
            )
        if parity != LIVE and not self.context.code.parity_count:
            raise UsageError(f"{config.layout} has no parity that could follow by {parity}")
        self.array.jobs.require_finished("does not grow")
        history = [*config.params.get(HISTORY, [config.width]), config.width + added]
        try:
            LAYOUTS[config.layout].check_width(config.width + added)
            layout = self._make(config, history, 0, parity)
        except LayoutError as error:
            raise UsageError(str(error)) from None
        assert isinstance(layout, ElasticLayout)
        self._check_room(layout)
        return layout

    def _make(
        self, config: ArrayConfig, history: Sequence[int], migrated: int | None, parity: str
    ) -> Any:
        params: dict[str, Any] = {} if len(history) < 2 else {HISTORY: list(history)}
        chunks = config.regions.data.length // config.chunk_bytes
        width = history[-1] + (parity == SURROGATE)
        if migrated is not None:
            params |= {MIGRATED: migrated, PARITY: parity}
        return make_layout(config.layout, width, chunks, config.chunk_bytes, **params)

    def _check_room(self, layout: ElasticLayout) -> None:
        """Raise UsageError unless the metadata regions can serve the wider array."""
        regions = self.member_set.config.regions
        bits = regions.pages("written").pages * PAYLOAD_BITS
        record = record_bytes(2 * layout.width, layout.width * layout.chunk_bytes)
        if layout.chunks > bits or 2 * record > self.context.journal.capacity:
            raise UsageError(
                f"{layout.width} members are more than this array's metadata has room for",
                action="add fewer, or make a new array",
            )

    # -- begin ---------------------------------------------------------------------------------

    async def begin(
        self, members: Sequence[Member], parity: str = LIVE, surrogate: Member | None = None
    ) -> dict[str, Any]:
        """Take *members* in, in the order of their new roles, and start the job.

        *parity* LIVE or PIGGYBACK, or a member that takes the parity over, the *surrogate*.
        """
        if surrogate is not None:
            if parity != LIVE:
                raise UsageError(f"parity cannot follow by {parity} and go to a surrogate")
            parity = SURROGATE
        added = len(members)
        self.wider(added, parity)
        membership, member_set = self.array.membership, self.member_set
        members = [*members, *([] if surrogate is None else [surrogate])]
        for member in members:
            membership.check_joining(member)
        async with membership.attaching:
            layout = self.wider(added, parity)
            membership.waiting = True  # these are not there to replace a member that fails now
            try:
                records = await join(member_set, members, layout.chunks)
                try:
                    # No record of who had one of the new roles before may ever be replayed.
                    self.context.journal.deferred.paused = True
                    await self.context.journal.drain()
                    async with self.context.locks.alone():
                        layout = self.wider(added, parity)  # nothing began, nobody failed meanwhile
                        self._widen(layout, records, parity)
                except RaidxError:
                    await leave(member_set, records)
                    raise
            finally:
                self.context.journal.deferred.paused = membership.waiting = False
            for pages in member_set.page_stores:
                await pages.save_all()
            await member_set.flush()  # the maps before the superblock that gives a role
            await member_set.update(lambda config: config)
            job = self._start(back=False)
        return {
            "job": job,
            "members_before": layout.history[-2],
            "members_after": layout.history[-1],
            "size_before": self.array.size_bytes,
            "size_after": self.size_after(layout),
        }

    def size_after(self, layout: ElasticLayout) -> int:
        """Return the image's size when *layout*'s growth is over."""
        limit = self.member_set.config.size_bytes
        whole = layout.chunks * layout.chunk_bytes
        return whole if limit is None else min(limit, whole)

    def _widen(self, layout: ElasticLayout, records: Sequence[MemberRecord], parity: str) -> None:
        """Change to the wider shape, in memory, in one moment."""
        member_set, config = self.member_set, self.member_set.config
        changed = assign_role(member_set, config, records)
        member_set.config = replace(
            changed,
            width=layout.width,
            params={
                **config.params,
                **{HISTORY: list(layout.history), MIGRATED: 0, PARITY: parity},
            },
            jobs={**config.jobs, JOB_KEY: {"back": False}},
        )
        self.context.written.extend(layout.chunks)
        self.context.take_layout(layout)
        member_set.refresh()

    def _start(self, back: bool) -> int:
        return self.array.jobs.start(
            lambda context, job_id: Grow(context, job_id, back, self._conclude)
        ).job_id

    def resume(self) -> None:
        """At the start: go on with a growth that was under way."""
        if self.context.growth is not None:
            self._start(back=bool(self.member_set.config.jobs.get(JOB_KEY, {}).get("back")))

    # -- end -----------------------------------------------------------------------------------

    async def _conclude(self, back: bool) -> None:
        if back:
            await self._narrow()
        else:
            await self._finish()

    async def _finish(self) -> None:
        """All blocks lie as they are to: the places they left become the image's new end."""
        assert self.context.growth is not None
        layout = self.context.growth.layout
        before = layout.history[-2]

        def final_config(config: ArrayConfig) -> ArrayConfig:
            # What blocks have left there does not read as zero.
            members = tuple(
                replace(r, reads_zero=False) if 0 <= r.role < before else r for r in config.members
            )
            return replace(
                config,
                members=members,
                params=_without(config.params, MIGRATED, PARITY),
                jobs=_without(config.jobs, JOB_KEY),
            )

        if layout.surrogate is not None:
            await self._hand_over(layout, final_config)
        else:
            await self.member_set.update(final_config)
            self.context.note_zero_roles()
            layout.finish_growth()
            self.context.end_growth()
        log.warning("grown to %d members: the image has %d bytes", layout.width, layout.size_bytes)
        for hook in self.on_size:
            await hook()

    async def _hand_over(
        self, layout: ElasticLayout, final_config: Callable[[ArrayConfig], ArrayConfig]
    ) -> None:
        """Give the surrogate the role of the parity; who had it becomes a spare."""
        async with self.array.membership.attaching, self._undisturbed():
            # Records name roles: none may be replayed under the names that are given now. Nobody
            # writes until the superblocks have them: the door is closed, and what needs no lock
            # waits while a change of membership is not settled.
            journal = self.context.journal
            await journal.drain(journal.believe_all)
            while self.context.locks.held:  # what began at once ends
                await trio.lowlevel.checkpoint()
                await journal.drain(journal.believe_all)
            self._take_role(layout, final_config)
            self.context.journal.choose_roles()
            await self.member_set.update(lambda config: config)

    def _take_role(
        self, layout: ElasticLayout, final_config: Callable[[ArrayConfig], ArrayConfig]
    ) -> None:
        """Let the surrogate have the role of the parity, in memory, in one moment."""
        member_set, config = self.member_set, final_config(self.member_set.config)
        assert layout.surrogate is not None
        role = layout.role_of(layout.parity_cell, after=False)
        heir, former = config.record(layout.surrogate), config.record(role)
        others = tuple(r for r in config.members if r not in (heir, former))
        members = [*others, replace(heir, role=role)]
        queue = member_set.queues[role]
        if queue is not None:
            members.append(replace(former, role=NO_ROLE, state="spare", reads_zero=False))
            member_set.spares[former.member_uuid] = queue.member
            queue.close()
        member_set.queues[role] = member_set.queues.pop()
        member_set.config = replace(
            config,
            width=layout.history[-1],
            members=tuple(sorted(members, key=lambda r: (r.role < 0, r.role))),
        )
        layout.finish_growth()
        self.context.end_growth()
        member_set.refresh()

    @asynccontextmanager
    async def _undisturbed(self) -> AsyncIterator[None]:
        """Run the block while nobody holds a lock, and no job but the growth runs."""
        jobs = self.array.jobs
        while True:
            for job in jobs.running():  # they work with the shape as it is
                if job.kind != Grow.kind:
                    await job.finished.wait()
            await self.context.journal.drain()
            async with self.context.locks.alone():
                if all(job.kind == Grow.kind for job in jobs.running()):
                    yield
                    return

    async def _narrow(self) -> None:
        """All blocks lie as before: the members that came let go of."""
        member_set = self.member_set
        assert self.context.growth is not None
        history = self.context.growth.layout.history[:-1]
        released: list[Member] = []
        async with self.array.membership.attaching:
            async with self._undisturbed():
                released = self._take_back(history)
            await member_set.update(lambda config: config)
        await release(released, self.on_release)

    def _take_back(self, history: Sequence[int]) -> list[Member]:
        """Change to the narrower shape, in memory, in one moment; return who left."""
        member_set, config = self.member_set, self.member_set.config
        width = history[-1]
        kept = list(history) if len(history) > 1 else None
        layout = self._make(config, history, None, LIVE)
        gone = [queue for queue in member_set.queues[width:] if queue is not None]
        del member_set.queues[width:]
        params = _without(config.params, MIGRATED, PARITY)
        member_set.config = replace(
            config,
            width=width,
            members=tuple(r for r in config.members if r.role < width),
            params={**params, HISTORY: kept} if kept else _without(params, HISTORY),
            jobs=_without(config.jobs, JOB_KEY),
        )
        for role in [role for role in member_set.watermarks if role >= width]:
            del member_set.watermarks[role]
        self.context.written.extend(layout.chunks)
        self.context.take_layout(layout)
        self.context.reuse_epoch += 1
        member_set.refresh()
        for queue in gone:
            queue.close()
        return [queue.member for queue in gone]


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
