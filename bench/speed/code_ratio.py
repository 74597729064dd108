"""How fast do the two-loss codes encode and decode, as a share of numpy's XOR of the same bytes?

    python bench/speed/code_ratio.py
    python bench/speed/code_ratio.py --only rdp,upc --size 64

All memory was touched before, and there is more of it than fits into the cache. Rounds alternate,
and each share is taken within its round. One thread does everything and never waits, so CPU time is
measured, which other programs disturb less.

* encode: the parities of full stripes from their data (`raidx_fuse.store.xor.encoder`, as in a
  full-stripe write); numpy XORs the data of each stripe into one chunk, once. RDP does
  1.7 XORs for each of numpy's at p = 7, and no code of two losses fewer than about that.
* decode: two members of a running array of RAM members are lost and rebuilt at once, from the
  first stripe to the last, jobs, locks, maps and all; numpy XORs the survivors into one member.
* write: whole stripes through the array, whose members must be written too; beside raid5, no bar.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from collections.abc import Sequence
from time import process_time

import numpy as np
import trio
from lines import Line, print_lines
from numpy.typing import NDArray

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.layouts.codes.code import bits
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.layouts.registry import make_code
from raidx_fuse.members.ram import RamMember
from raidx_fuse.store.xor import encoder

Bytes = NDArray[np.uint8]
MIB = 1 << 20
CHUNK_BYTES = 64 << 10
ENCODE_BAR, DECODE_BAR = 0.5, 0.35
LOST = (0, 2)
CODES = (
    ("rdp", 8, 7),
    ("rdp", 12, 11),
    ("evenodd", 9, 7),
    ("evenodd", 13, 11),
    ("xcode", 7, 7),
    ("xcode", 11, 11),
    ("pcode", 6, 7),
    ("pcode", 10, 11),
    ("upc", 6, 7),
    ("upc", 10, 11),
)


def touched_member(name: str, size_bytes: int) -> RamMember:
    """Return a member whose memory is there: page faults are not measured."""
    member = RamMember(size_bytes, name=name)
    np.frombuffer(member.memory, dtype=np.uint8)[::4096] = 0
    return member


def numpy_s(groups: Sequence[Sequence[Bytes]], out: Bytes) -> float:
    """Return the time in which numpy XORs the arrays of each group into *out*, the quicker way.

    Whole arrays are XORed one after the other, or blocks of them that stay in the cache.
    """
    best_s = float("inf")
    size = groups[0][0].size
    for block_bytes in (64 << 10, 256 << 10, size):
        start_s = process_time()
        for group in groups:
            for at in range(0, size, block_bytes):
                end = at + block_bytes
                target = out[at:end]
                np.bitwise_xor(group[0][at:end], group[1][at:end], target)
                for array in group[2:]:
                    np.bitwise_xor(target, array[at:end], target)
        best_s = min(best_s, process_time() - start_s)
    return best_s


def encode_shares(name: str, width: int, data_bytes: int, rounds: int) -> list[tuple[float, float]]:
    """Return (encode, numpy) in seconds for each round, over *data_bytes* of data."""
    code = make_code(name, width)
    stripe_bytes = code.data_count * CHUNK_BYTES
    stripes = max(2, data_bytes // stripe_bytes)
    data = np.frombuffer(np.random.default_rng(1).bytes(stripes * stripe_bytes), dtype=np.uint8)
    cells = data.reshape(stripes, code.data_count, CHUNK_BYTES)
    parity = np.zeros((code.parity_count, CHUNK_BYTES), dtype=np.uint8)  # as the writer's: reused
    out = np.zeros(CHUNK_BYTES, dtype=np.uint8)
    program = encoder(code)
    results = []
    for _ in range(rounds):
        theirs_s = numpy_s([list(stripe) for stripe in cells], out)
        start_s = process_time()
        for stripe in cells:
            program.run([*stripe, *parity])
        results.append((process_time() - start_s, theirs_s))
    last = [*cells[-1], *parity]
    for mask in code.chain_masks:
        assert not np.bitwise_xor.reduce([last[cell] for cell in bits(mask)]).any()
    return results


async def filled_array(array: Array, chunks: Sequence[bytes]) -> float:
    """Write all of *array* in whole stripes, twice; return the time of the second in seconds."""
    stripe = b"".join(chunks[i % len(chunks)] for i in range(array.context.code.data_count))
    for _ in range(2):
        start_s = process_time()
        for at in range(0, array.size_bytes // len(stripe) * len(stripe), len(stripe)):
            await array.write(at, stripe)
    elapsed_s = process_time() - start_s
    await array.flush()
    return elapsed_s


async def rebuild_two_s(array: Array, spares: Sequence[RamMember]) -> float:
    """Lose two members, rebuild them onto *spares* at once; return the seconds of the job."""
    for spare in spares:
        await array.add_spare(spare)
    for role in LOST:
        assert array.member_set.fail(Role(role), "bench")
    while not array.jobs.running():
        await array.member_set.published()
        async with array.membership.attaching:
            pass
    (job,) = array.jobs.running()
    start_s = process_time()
    await job.finished.wait()
    elapsed_s = process_time() - start_s
    assert job.state == "done", job.status()
    return elapsed_s


async def decode_shares(
    name: str, width: int, data_bytes: int, rounds: int
) -> tuple[list[tuple[float, float]], float, int]:
    """Return (rebuild, numpy) in seconds for each round, those of writing, and the data's bytes."""
    code = make_code(name, width)
    member_bytes = data_bytes // (width - 2) // MIB * MIB + 16 * MIB
    members = [touched_member(f"ram{role}", member_bytes) for role in range(width)]
    spares = [touched_member(f"spare{number}", member_bytes) for number in range(len(LOST))]
    await create_array(members, name, name="bench", now_s=0, chunk_bytes=CHUNK_BYTES)
    results = []
    async with open_array(members) as array:
        await array.set("journal", "none")  # all content is in its place then
        rng = np.random.default_rng(1)
        write_s = await filled_array(array, [rng.bytes(CHUNK_BYTES) for _ in range(7)])
        start = array.member_set.data_offset
        end = start + array.context.layout.stripes * code.rows * CHUNK_BYTES
        out = np.zeros(end - start, dtype=np.uint8)
        for _ in range(rounds):
            content = [np.frombuffer(m.memory, dtype=np.uint8)[start:end] for m in members]
            survivors = [strip for role, strip in enumerate(content) if role not in LOST]
            theirs_s = numpy_s([survivors], out)
            ours_s = await rebuild_two_s(array, spares)
            results.append((ours_s, theirs_s))
            for i, role in enumerate(LOST):
                new = np.frombuffer(spares[i].memory, dtype=np.uint8)
                assert np.array_equal(new[start:end], content[role]), "something else was rebuilt"
                members[role], spares[i] = spares[i], members[role]
                np.frombuffer(spares[i].memory, dtype=np.uint8)[:start] = 0  # no member any more
        return results, write_s, array.size_bytes


def line(
    row: str,
    subject: str,
    moved_bytes: int,
    results: Sequence[tuple[float, float]],
    bar: float | None,
) -> Line:
    """Return the line of (ours, numpy's) seconds for *moved_bytes*."""
    shares = [theirs / ours for ours, theirs in results]
    return Line(
        row=row,
        subject=subject,
        figure=f"{moved_bytes / MIB / statistics.median(r[0] for r in results):,.0f} MiB/s",
        value=statistics.median(shares),
        low=min(shares),
        high=max(shares),
        bar=bar,
        unit=" of numpy",
        detail={"rounds_s": list(results), "bytes": moved_bytes},
    )


def run(only: Sequence[str] = (), data_mib: int = 1024, rounds: int = 5) -> list[Line]:
    """Measure and return the lines of all codes, or of those named in *only*."""
    logging.disable(logging.ERROR)  # members that are lost on purpose
    lines = []
    for name, width, p in CODES:
        if only and name not in only:
            continue
        subject = f"{name} {p}"
        data_bytes = data_mib * MIB
        encoded = encode_shares(name, width, data_bytes, rounds)
        lines.append(line(f"encode, {width} members", subject, data_bytes, encoded, ENCODE_BAR))
        decoded, write_s, size = trio.run(decode_shares, name, width, data_bytes, rounds)
        lines.append(line(f"decode two of {width}", subject, size, decoded, DECODE_BAR))
        theirs = [(write_s, pair[1]) for pair in decoded]
        lines.append(line("write whole stripes", subject, size, theirs, None))
    return lines


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAMES", help="codes, separated by commas")
    parser.add_argument("--size", type=int, default=1024, help="data of each array, MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    return print_lines(run(only, options.size, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
