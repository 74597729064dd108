"""`TrioClient`: the commands of a running array for programs that use trio."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

from raidx_fuse.client.client import POLL_S, Client, Ref, late
from raidx_fuse.client.documents import Event, Job, Plan, Started, Stats, Status
from raidx_fuse.client.health import HEALTHY, is_in
from raidx_fuse.members.threads import in_thread

T = TypeVar("T")
ANSWER_S = 3600.0  # without a *timeout_s*: `Client` itself gives up a daemon that hangs


class TrioClient:
    """As `Client`, with methods to be awaited; each makes its request in a thread of its own.

    A request that is cancelled goes on in the daemon, as one of a `raidx` command that is killed.
    """

    def __init__(self, array: str | os.PathLike[str], *, timeout_s: float | None = None) -> None:
        self._client = Client(array, timeout_s=timeout_s)

    async def _do(self, method: Callable[..., T], *positional: Any, **named: Any) -> T:
        limit_s = (self._client.timeout_s or ANSWER_S) + 1.0
        ask = partial(method, *positional, **named)
        return await in_thread(self._client.array, ask, limit_s=limit_s)

    async def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """See `Client.call`."""
        return await self._do(self._client.call, command, **arguments)

    async def status(self) -> Status:
        """See `Client.status`."""
        return await self._do(self._client.status)

    async def stats(self, interval_s: float | None = None) -> Stats:
        """See `Client.stats`."""
        return await self._do(self._client.stats, interval_s)

    async def heat(self) -> dict[str, Any]:
        """See `Client.heat`."""
        return await self._do(self._client.heat)

    async def advise(self) -> dict[str, Any]:
        """See `Client.advise`."""
        return await self._do(self._client.advise)

    async def jobs(self) -> list[Job]:
        """See `Client.jobs`."""
        return await self._do(self._client.jobs)

    async def settings(self) -> dict[str, Any]:
        """See `Client.settings`."""
        return await self._do(self._client.settings)

    async def events(self, *, since_s: float = 0.0) -> list[Event]:
        """See `Client.events`."""
        return await self._do(self._client.events, since_s=since_s)

    async def wait(self, *states: str, timeout_s: float | None = None) -> Status:
        """See `Client.wait`."""
        begin_s = trio.current_time()
        while True:
            found = await self.status()
            if all(is_in(each, states or (HEALTHY,)) for each in found["arrays"]):
                return found
            if timeout_s is not None and trio.current_time() - begin_s >= timeout_s:
                raise late(found, states, timeout_s)
            await trio.sleep(POLL_S)

    async def wait_job(self, job: int) -> Job:
        """See `Client.wait_job`."""
        return await self._do(self._client.wait_job, job)

    async def set(self, key: str, value: str | int | float) -> dict[str, Any]:
        """See `Client.set`."""
        return await self._do(self._client.set, key, value)

    async def fail_disk(self, member: Ref, *, lose_data: bool = False) -> dict[str, Any]:
        """See `Client.fail_disk`."""
        return await self._do(self._client.fail_disk, member, lose_data=lose_data)

    async def replace_disk(
        self,
        old: Ref,
        new: str | os.PathLike[str],
        *,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: bool = False,
    ) -> Started | Plan:
        """See `Client.replace_disk`."""
        options = {"create": create, "overwrite_signature": overwrite_signature}
        return await self._do(self._client.replace_disk, old, new, **options, dry_run=dry_run)

    async def add_disks(
        self,
        *members: str | os.PathLike[str],
        spare: bool = False,
        create: bool = False,
        overwrite_signature: bool = False,
        dry_run: bool = False,
    ) -> Started | Plan:
        """See `Client.add_disks`."""
        options = {"create": create, "overwrite_signature": overwrite_signature}
        options |= {"spare": spare, "dry_run": dry_run}
        return await self._do(self._client.add_disks, *members, **options)

    async def remove_disk(self, member: Ref, *, dry_run: bool = False) -> Started | Plan:
        """See `Client.remove_disk`."""
        return await self._do(self._client.remove_disk, member, dry_run=dry_run)

    async def reshape(
        self, layout: str, *, dry_run: bool = False, **options: Any
    ) -> Started | Plan:
        """See `Client.reshape`."""
        return await self._do(self._client.reshape, layout, dry_run=dry_run, **options)

    async def scrub(self, *, repair: bool = False) -> Started:
        """See `Client.scrub`."""
        return await self._do(self._client.scrub, repair=repair)

    async def pause(self, job: int) -> Job:
        """See `Client.pause`."""
        return await self._do(self._client.pause, job)

    async def resume(self, job: int) -> Job:
        """See `Client.resume`."""
        return await self._do(self._client.resume, job)

    async def cancel(self, job: int) -> Job:
        """See `Client.cancel`."""
        return await self._do(self._client.cancel, job)

    async def limit(
        self, job: int, *, minimum: int | None = None, maximum: int | None = None
    ) -> Job:
        """See `Client.limit`."""
        return await self._do(self._client.limit, job, minimum=minimum, maximum=maximum)
