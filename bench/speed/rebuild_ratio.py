"""How fast are rebuild and scrub, compared with numpy's XOR of the same bytes?

    python bench/speed/rebuild_ratio.py

RAM members, all memory touched before. A rebuild of RAID-5 reads the strips of all members but one
and writes their XOR to the new member; numpy does the same with the same memory, in blocks that fit
in the cache or whole, whichever is faster here. A scrub reads all members; numpy XORs them into one
block. Rounds alternate, and each share is taken within its round.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Awaitable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import trio
from lines import Line, main_of
from numpy.typing import NDArray

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember

Bytes = NDArray[np.uint8]
MIB = 1 << 20
CHUNK_BYTES = 64 << 10
MEMBERS = 4
BAR = 0.6
REBUILT = 1  # the role that is lost and rebuilt
BLOCKS_BYTES = (256 << 10, 1 << 40)


def ram_member(name: str, size_bytes: int) -> RamMember:
    """Return a member whose memory has been touched: page faults are not measured."""
    member = RamMember(size_bytes, name=name)
    np.frombuffer(member.memory, dtype=np.uint8)[::4096] = 0
    return member


def numpy_s(sources: Sequence[Bytes], out: Bytes | None) -> float:
    """Return the least time in which numpy XORs *sources* into *out* (None: a block of its own)."""
    best_s = float("inf")
    for block_bytes in BLOCKS_BYTES:
        if out is None and block_bytes > sources[0].size:
            continue
        scratch = np.zeros(min(block_bytes, sources[0].size), dtype=np.uint8)
        start_s = perf_counter()
        for at in range(0, sources[0].size, block_bytes):
            blocks = [source[at : at + block_bytes] for source in sources]
            target = scratch[: blocks[0].size] if out is None else out[at : at + block_bytes]
            np.bitwise_xor(blocks[0], blocks[1], target)
            for block in blocks[2:]:
                np.bitwise_xor(target, block, target)
        best_s = min(best_s, perf_counter() - start_s)
    return best_s


async def job_s(array: Array, start: Awaitable[int | Mapping[str, Any]]) -> float:
    """Return how long it takes to *start* a job, which names it, and to run it."""
    start_s = perf_counter()
    started = await start
    job_id = started if isinstance(started, int) else started["job"]
    status = await array.jobs.wait(job_id)
    assert status["state"] == "done", status
    return perf_counter() - start_s


async def measure(data_bytes: int, rounds: int) -> list[tuple[float, float, float, float]]:
    """Return (rebuild, its numpy, scrub, its numpy) in seconds for each round."""
    member_bytes = data_bytes + 64 * MIB
    members = [ram_member(f"ram{number}", member_bytes) for number in range(MEMBERS)]
    spare = ram_member("spare", member_bytes)
    await create_array(members, "raid5", name="bench", now_s=0, chunk_bytes=CHUNK_BYTES)
    results = []
    async with open_array(members) as array:
        await array.set("journal", "none")  # all content is in its place then
        noise = np.random.default_rng(1).bytes(MIB)
        for at in range(0, (MEMBERS - 1) * data_bytes, MIB):
            await array.write(at, noise)
        await array.flush()
        start = array.member_set.data_offset
        for _ in range(rounds):
            strips = [
                np.frombuffer(m.memory, dtype=np.uint8)[start : start + data_bytes] for m in members
            ]
            new = np.frombuffer(spare.memory, dtype=np.uint8)[start : start + data_bytes]
            others = strips[:REBUILT] + strips[REBUILT + 1 :]
            rebuild_numpy_s = numpy_s(others, new)
            old = members[REBUILT]
            rebuild_s = await job_s(array, array.replace_disk(REBUILT, spare))
            assert np.array_equal(new, strips[REBUILT]), "the rebuild made something else"
            members[REBUILT], spare = spare, old
            np.frombuffer(spare.memory, dtype=np.uint8)[:start] = 0  # nobody's member any more
            scrub_numpy_s = numpy_s([*others, new], None)
            scrub_s = await job_s(array, array.start_scrub(repair=False))
            results.append((rebuild_s, rebuild_numpy_s, scrub_s, scrub_numpy_s))
    return results


def run(data_mib: int = 512, rounds: int = 5) -> list[Line]:
    """Measure and return the lines of rebuild and scrub."""
    results = trio.run(measure, data_mib * MIB, rounds)
    lines = []
    for row, at in (("rebuild, RAM members", 0), ("scrub, RAM members", 2)):
        shares = [result[at + 1] / result[at] for result in results]
        rate = MEMBERS * data_mib / statistics.median(result[at] for result in results)
        lines.append(
            Line.over(
                shares,
                row,
                "raid5",
                f"{rate:,.0f} MiB/s",
                bar=BAR,
                unit=" of numpy",
                detail={"rounds_s": results, "mib_of_all_members": MEMBERS * data_mib},
            )
        )
    return lines


if __name__ == "__main__":
    sys.exit(main_of(run, __doc__ or "", 512))
