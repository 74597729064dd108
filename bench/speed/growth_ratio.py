"""How fast does an array grow, compared with the least time that copying the moved bytes takes?

    python bench/speed/growth_ratio.py

- RAM members, all memory touched before: RAID-4 grows from 4 members to 5, all chunks written.
  numpy copies as many bytes from one member's memory to another's, whole or in blocks of a chunk,
  whichever is faster here.
- Modelled disks, in virtual time: the limit is the bandwidth of the busiest member; for a rotating
  disk it includes the gaps that pass under its head. Measured between 10 % and 90 % of the growth,
  without other load.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter

import numpy as np
import trio
from lines import Line, main_of
from rebuild_ratio import ram_member

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.engine.growth_position import LIVE
from raidx_fuse.format.create import create_array
from raidx_fuse.jobs.grow.job import Grow
from raidx_fuse.lab.experiments.modelled import BlankMember
from raidx_fuse.layouts.numbers import chunk_range
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.simulated.service import make_model
from raidx_fuse.members.simulated.virtual_time import run as run_virtually

MIB = 1 << 20
CHUNK_BYTES = 64 << 10
BAR = 0.5
MODEL_BAR = 0.9
IDLE_S = 0.3  # until the array takes its users to be gone
OVERHEAD_BYTES = 64 * MIB


async def full_array(array: Array) -> None:
    """Write all of *array*, and wait until it is idle."""
    noise = np.random.default_rng(1).bytes(3 * CHUNK_BYTES * 16)
    for at in range(0, array.size_bytes, len(noise)):
        await array.write(at, noise[: array.size_bytes - at])
    await array.flush()
    await trio.sleep(IDLE_S)


def grow_of(array: Array) -> Grow:
    """Return the growth that runs."""
    (job,) = (job for job in array.jobs.running() if isinstance(job, Grow))
    return job


def numpy_s(source: Member, target: Member, size_bytes: int) -> float:
    """Return the least time in which numpy copies *size_bytes* of one memory to the other."""
    best_s = float("inf")
    whole, out = (np.frombuffer(m.memory, dtype=np.uint8) for m in (source, target))  # type: ignore[attr-defined]
    for block_bytes in (CHUNK_BYTES, 1 << 40):
        start_s = perf_counter()
        for at in range(0, size_bytes, block_bytes):
            end = min(at + block_bytes, size_bytes)
            out[at:end] = whole[at:end]
        best_s = min(best_s, perf_counter() - start_s)
    return best_s


async def in_memory(data_bytes: int, rounds: int) -> list[tuple[float, float, int]]:
    """Return (growth, numpy) in seconds, and the bytes moved, for each round."""
    size = data_bytes + OVERHEAD_BYTES
    results = []
    for _ in range(rounds):
        members = [ram_member(f"ram{number}", size) for number in range(4)]
        joining, scratch = ram_member("new", size), ram_member("scratch", size)
        await create_array(members, "raid4", name="bench", now_s=0, chunk_bytes=CHUNK_BYTES)
        async with open_array(members) as array:
            await full_array(array)
            await array.grow([joining])
            job = grow_of(array)
            start_s = perf_counter()
            await job.finished.wait()
            elapsed_s = perf_counter() - start_s
            assert job.state == "done", job.error
            results.append(
                (elapsed_s, numpy_s(members[0], scratch, job.done_bytes), job.done_bytes)
            )
    return results


async def _modelled(kind: str, added: int, data_bytes: int, parity: str) -> tuple[float, float]:
    model = make_model(kind)
    size = data_bytes + OVERHEAD_BYTES

    def disk(number: int) -> ModelMember:
        return ModelMember(BlankMember(size, name=f"disk{number}"), model, seed=number)

    members = [disk(number) for number in range(4)]
    await create_array(
        members, "raid4", name="bench", now_s=0, chunk_bytes=CHUNK_BYTES, overwrite_signature=True
    )
    async with open_array(members) as array:
        array.context.written.set_bits(chunk_range(0, array.size_bytes // CHUNK_BYTES))
        await array.grow([disk(4 + number) for number in range(added)], parity)
        job = grow_of(array)
        marks: list[tuple[float, int]] = []
        while len(marks) < 2 and not job.finished.is_set():
            if job.layout.migrated >= job.layout.stripes * (0.1 if not marks else 0.9):
                marks.append((trio.current_time(), job.layout.migrated))
            await trio.sleep(0.0005)
        await job.finished.wait()
    (begin_s, first), (end_s, last) = marks
    rows = (last - first) * CHUNK_BYTES
    # A new disk takes v of every w chunks; one that turns passes all of them.
    share = 1.0 if model.rpm else 3 / (3 + added)
    return rows * share / (model.write_mb_s * 1e6), end_s - begin_s


def modelled(kind: str, added: int, data_bytes: int, parity: str = LIVE) -> float:
    """Return the share of the bandwidth that growing 4 modelled disks by *added* reaches."""
    least_s, took_s = run_virtually(_modelled, kind, added, data_bytes, parity, seed=1)
    return least_s / took_s


def run(data_mib: int = 256, rounds: int = 5) -> list[Line]:
    """Measure and return the lines of growth."""
    results = trio.run(in_memory, data_mib * MIB, rounds)
    shares = [numpy_took_s / took_s for took_s, numpy_took_s, _ in results]
    rate = statistics.median(moved / took_s for took_s, _, moved in results) / MIB
    lines = [
        Line.over(
            shares,
            "growth 4+1, RAM members",
            "raid4",
            f"{rate:,.0f} MiB/s",
            bar=BAR,
            unit=" of memcpy",
            detail={"rounds": results},
        )
    ]
    for kind in ("hdd", "ssd", "nvme"):
        shares = [modelled(kind, added, data_mib * MIB) for added in (1, 2)]
        lines.append(
            Line(
                row=f"growth 4+1 and 4+2, modelled {kind}",
                subject="raid4",
                figure="virtual time",
                value=min(shares),
                low=min(shares),
                high=max(shares),
                bar=MODEL_BAR,
                unit=" of the bandwidth",
                detail={"shares": shares},
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(main_of(run, __doc__ or "", 256))
