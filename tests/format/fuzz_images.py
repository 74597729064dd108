"""The arrays that fuzzing changes, in states from crashed to restriped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.arrays import jobs_ended

KIB = 1 << 10
CHUNK = 4096


@dataclass(frozen=True)
class Image:
    """An array at rest or as a crash left it: the *members*' contents by path, and what it was."""

    members: dict[str, bytes]
    config: ArrayConfig
    ring_at: int  # byte behind the last record
    forge: tuple[int, int, int]  # epoch, next sequence, position


def image_of(members: Sequence[RamMember], array: Array) -> Image:
    ring = array.context.journal.ring
    return Image(
        {member.path: bytes(member.memory) for member in members},
        array.member_set.config,
        ring.offset + ring.position % ring.capacity,
        (ring.epoch, ring.next_sequence, ring.position),
    )


async def _written(array: Array, count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        at = rng.randrange(max(1, array.size_bytes - 9000))
        await array.write(at, rng.randbytes(rng.choice((100, 4096, 8192))))


async def _prepared(
    layout: str,
    sizes: Sequence[int],
    then: Callable[[Array, list[RamMember]], Any],
) -> Image:
    members = [RamMember(size * KIB, name=f"d{n}") for n, size in enumerate(sizes)]
    await create_array(members, layout, name="disk", now_s=0, chunk_bytes=CHUNK)
    image: Image | None = None
    async with open_array(members) as array:
        await _written(array, 12)
        await then(array, members)
        image = image_of(members, array)
    return image


async def _crash(array: Array, _members: list[RamMember]) -> None:
    await array.flush()
    await _written(array, 5)


async def _rest(array: Array, _members: list[RamMember]) -> None:
    await trio.sleep(30)
    array.context.bad_chunks.update((3, 4, 9))
    array.context.bad_chunks.add_pages(7, 0b01, 0b11)
    await array.set("speed_max", "7MiB")
    await trio.sleep(30)


async def _rebuild(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "4096")
    await array.replace_disk(1, members[-1])
    await trio.sleep(3)
    await array.flush()
    await _written(array, 3)


async def _grow(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "8192")
    await array.grow(members[-1:])
    await trio.sleep(5)
    await _written(array, 3)


async def _grown(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.grow(members[-1:])
    await jobs_ended(array)
    await _written(array, 6)


async def _restripe(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "8192")
    await array.restripe(members[-1:], None, {})
    await trio.sleep(3)
    await _written(array, 3)


KINDS: tuple[tuple[str, tuple[int, ...], Any], ...] = (
    ("raid5", (512,) * 4, _rest),
    ("raid5", (512,) * 4, _crash),
    ("rdp", (512,) * 5, _crash),
    ("raid1", (512,) * 2, _crash),
    ("raid0", (512,) * 2, _rest),
    ("raid5", (512,) * 4, _rebuild),
    ("raid4", (512,) * 3, _grow),
    ("raid5", (512,) * 3, _restripe),
    ("raidx-parity", (512, 640, 560, 520), _crash),
    ("raidx-parity", (512, 640, 560, 520), _grown),
    ("raidx-copy", (512, 640, 560), _grow),
)


def prepare() -> list[Image]:
    """Return the arrays that cases begin with."""

    async def main() -> list[Image]:
        return [await _prepared(*kind) for kind in KINDS]

    return run(main)
