"""Changes of the shape of a running array: members join, roles change, with the gate closed.

No record of the log may be redone by recovery under other roles than it was written for. So the log
is empty when roles change, and the superblocks have the new roles before anything is logged again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from raidx_fuse.engine.context import ArrayContext
from raidx_fuse.format.configuration.config import MemberRecord
from raidx_fuse.jobs.attach import join, leave
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.jobs.services import ArrayServices
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.members.base import Member

AnyLayout = TypeVar("AnyLayout", bound=Layout)


async def take_in(
    array: ArrayServices,
    members: Sequence[Member],
    wider: Callable[[], AnyLayout],
    widen: Callable[[AnyLayout, Sequence[MemberRecord]], None],
) -> AnyLayout:
    """Let *members* join and change to the layout that *wider* returns; return that layout.

    *wider* raises RaidxError if the array may not change now. *widen* makes the change in memory
    and gives the new members, whose records it gets, their roles: while the gate of the layout is
    closed, which is published before it opens. The caller holds `MembershipServices.attaching`.
    Raises RaidxError.
    """
    context, membership, member_set = array.context, array.membership, array.member_set
    layout = wider()
    membership.hold_spares()  # the new members must not replace a member that fails now
    try:
        records = await join(member_set, members, layout.chunks)
        seated = False
        try:
            await context.written.pages.make_room(layout.chunks)
            # No record that names a new role's former member may ever be redone by recovery.
            async with context.closed():
                layout = wider()  # checked again: nothing comes between
                widen(layout, records)
                seated = True
                for pages in member_set.page_stores:
                    await pages.save_all()
                await member_set.flush()  # the maps before the superblock that gives a role
                await member_set.update(lambda config: config)
        except BaseException:
            if not seated:
                with trio.CancelScope(shield=True):  # members have a timeout
                    await leave(member_set, records)
            raise
    finally:
        membership.release_spares()
    return layout


@asynccontextmanager
async def undisturbed(array: ArrayServices) -> AsyncIterator[None]:
    """Run the block with the gate closed, while no other job than a growth runs and none attaches.

    Spares take roles while it waits for the other jobs, which may be paused. Raises as
    `ArrayContext.closed`.
    """
    while True:
        for job in array.jobs.running():  # those jobs rely on the current shape
            if job.kind != Grow.kind:
                await job.finished.wait()
        async with array.membership.attaching, array.context.closed():
            if all(job.kind == Grow.kind for job in array.jobs.running()):
                yield
                return


async def drain_for_new_roles(context: ArrayContext) -> None:
    """Empty the log before members change their roles: no record may be redone under the new ones.

    The caller has closed the gate. Tasks that never enter it, a mend say, may log meanwhile.
    """
    while True:
        await context.journal.drain(context.journal.believe_all)
        if not context.locks.held:
            return
        await context.locks.free()
