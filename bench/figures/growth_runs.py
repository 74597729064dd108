"""One growth in virtual time, with nobody else asking: what it reads and writes, and how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio
from paper_common import log_bytes

from raidx_fuse.array.array import Array
from raidx_fuse.engine.growth_position import LIVE, SURROGATE
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.lab.experiments.modelled import BlankMember
from raidx_fuse.lab.experiments.simulate import Experiment, simulate
from raidx_fuse.lab.loads.request import Load
from raidx_fuse.lab.loads.workloads import generate, variant
from raidx_fuse.layouts.registry import code_for, width_max
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.store.queue import MemberQueue

DISK = "hdd"
CHUNK_BYTES = 64 << 10
MIB = 1 << 20
SEED = 5


def quiet(_size_bytes: int) -> Load:
    """Return a load of a few requests: a run must have one."""
    work = variant("uniform", read_share=1.0, span_bytes=CHUNK_BYTES, rate_s=1.0)
    return generate(work, seed=SEED, requests=1)


class Watched:
    """Grows an array before the load, without other requests, and records the cost."""

    def __init__(self, added: int, each_window: bool = False, parity: str = LIVE) -> None:
        self.added = added
        self.parity = parity
        self.each_window = each_window
        self.seconds = 0.0
        self.read_bytes = self.written_bytes = self.old_bytes = self.checkpoints = 0

    async def grow(self, array: Array) -> None:
        """Grow *array*, and count the bytes of the data regions."""
        self.old_bytes = array.size_bytes
        members = [
            disk(array.member_set.config.regions.data.end, 100 + n) for n in range(self.added)
        ]
        surrogate = disk(array.member_set.config.regions.data.end, 99)
        start_s = trio.current_time()
        queues = [queue for queue in array.member_set.queues if queue is not None]
        before = _bytes(queues)
        if self.parity == SURROGATE:
            await array.grow(members, surrogate=surrogate)
        else:
            await array.grow(members, self.parity)
        queues += [q for q in array.member_set.queues if q is not None and q not in queues]
        (job,) = (job for job in array.jobs.running() if isinstance(job, Grow))
        if self.each_window:
            make_ready = job.make_ready

            async def save_first() -> None:
                await job.growth.save()
                await make_ready()

            job.make_ready = save_first  # type: ignore[method-assign]
        await job.finished.wait()
        assert job.state == "done", job.error
        self.seconds = trio.current_time() - start_s
        self.checkpoints = job.growth.checkpoints
        after = _bytes(queues)
        self.read_bytes, self.written_bytes = after[0] - before[0], after[1] - before[1]

    @property
    def bytes_each(self) -> float:
        """Bytes read and written for each byte of old data."""
        return (self.read_bytes + self.written_bytes) / self.old_bytes


def _bytes(queues: Sequence[MemberQueue]) -> tuple[int, int]:
    return sum(q.read_bytes for q in queues), sum(q.write_bytes for q in queues)


def disk(size_bytes: int, number: int) -> ModelMember:
    """Return a modelled disk that drops its data."""
    memory = BlankMember(size_bytes, name=f"new{number}")
    return ModelMember(memory, make_model(DISK), seed=SEED * 1000 + number)


def log_of(layout: str, width: int, params: Mapping[str, Any], member_bytes: int) -> int:
    """Return the size of the log of an array that may grow as wide as its code allows."""
    rows = code_for(layout, width, params).rows
    stripe_bytes = rows * width_max(layout, width, params) * CHUNK_BYTES
    return log_bytes(member_bytes, stripe_bytes)


def grown(
    width: int,
    added: int,
    member_bytes: int,
    each_window: bool = False,
    parity: str = LIVE,
    journal: str = "partial",
    *,
    layout: str = "raid4",
    params: Mapping[str, Any] | None = None,
) -> Watched:
    """Return the cost of growing a full array without other load."""
    watched = Watched(added, each_window, parity)
    simulate(
        Experiment(
            layout=layout,
            params=params or {},
            members=(DISK,) * width,
            member_bytes=member_bytes,
            log_bytes=log_of(layout, width, params or {}, member_bytes),
            load=quiet,
            settings={"journal": journal},
            prepare=watched.grow,
            seed=SEED,
        )
    )
    return watched
