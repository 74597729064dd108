"""Power cuts at every write of a script that creates, resizes, renames and deletes volumes.

Each state is a choice of the writes since the last flush (dropped, kept, torn at sectors) on every
member; in half of the states a member is lost as well. RAIDX_VOLUME_STATES says how many states.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.format.configuration.volumes import VolumeTable
from raidx_fuse.format.create import create_array
from raidx_fuse.members.simulated.powercut import CutRecord, Image, PowerCutMember, SparseImage
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.allocate import free_ranges
from raidx_fuse.pool.array_volumes import ArrayVolumes, open_volumes
from raidx_fuse.pool.volume import Volume

STATES = int(os.environ.get("RAIDX_VOLUME_STATES", "80"))
PAGE, SECTOR = 4096, 512
MEMBER_BYTES = 1 << 20


@dataclass(frozen=True)
class Known:
    """What is promised from a moment on.

    *table*: the last that a command returned with. *later*: the one of the command under way.
    *flushed*: by UUID the content of a volume that was flushed; *written*: what may be there, too.
    """

    table: VolumeTable
    later: VolumeTable | None = None
    flushed: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)


class Play:
    """The script, on members whose power can be cut; *record* has its writes and what is known."""

    def __init__(self, width: int = 3) -> None:
        self.record = CutRecord()
        self.width = width
        self.known = Known(VolumeTable())

    def note(self, **changes: object) -> None:
        self.known = replace(self.known, **changes)
        self.record.note(self.known)

    async def run(self) -> None:
        images: list[Image] = [SparseImage(MEMBER_BYTES) for _ in range(self.width)]
        blank = [PowerCutMember(image, name=f"disk{n}") for n, image in enumerate(images)]
        numbers = iter(range(1, 99))
        await create_array(
            blank,
            "raid5",
            name="cut",
            now_s=0,
            chunk_bytes=PAGE,
            with_volume=False,
            uuid_source=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
        )
        members = [PowerCutMember(m.state.image, name=m.path, record=self.record) for m in blank]
        async with open_array(members) as array, open_volumes(array) as volumes:
            # "partial" promises nothing of a lost member's part of a full stripe in flight, and
            # stripes that a wipe has dropped may be written past the log
            await array.set("journal", "full")
            self.volumes = volumes
            self.note()
            one = await self.create("one", 12)
            await self.write(one, 1)
            two = await self.create("two", 7)
            await self.write(two, 2)
            await self.delete(one)
            three = await self.create("three", 12)  # where one was
            await self.resize(two, 15)
            await self.write(two, 3)
            await self.rename(two, "second")
            await self.resize(two, 3)
            await self.resize(three, 20)
            await self.delete(two)
            await self.create("four", 9)

    async def create(self, name: str, pages: int) -> Volume:
        self.note(later=None)
        volume = await self.volumes.create(name, pages * PAGE)
        zeros = {volume.uuid: bytes(volume.size_bytes)}
        self.done(flushed={**self.known.flushed, **zeros}, written={**self.known.written, **zeros})
        return volume

    async def write(self, volume: Volume, seed: int) -> None:
        data = random.Random(seed).randbytes(volume.size_bytes)
        self.note(written={**self.known.written, volume.uuid: data})
        await volume.write(0, data)
        await volume.flush()
        self.note(flushed={**self.known.flushed, volume.uuid: data})

    async def delete(self, volume: Volume) -> None:
        await self.volumes.delete(volume, lose_data=True)
        self.done()
        await self.volumes.wiped()
        self.done()

    async def rename(self, volume: Volume, name: str) -> None:
        await self.volumes.rename(volume, name)
        self.done()

    async def resize(self, volume: Volume, pages: int) -> None:
        size = pages * PAGE
        contents = {
            key: {**values, volume.uuid: values[volume.uuid][:size].ljust(size, b"\0")}
            for key, values in (("flushed", self.known.flushed), ("written", self.known.written))
        }
        await self.volumes.resize(volume, size, lose_data=True)
        self.done(**contents)
        await self.volumes.wiped()
        self.done()

    def done(self, **changes: object) -> None:
        self.note(table=self.volumes.table(), **changes)


async def judge(images: dict[int, Image], before: Known, after: Known) -> None:
    """Assert what must hold of what a cut between the notes *before* and *after* has left."""
    members = [PowerCutMember(image, name=f"disk{n}") for n, image in images.items()]
    async with open_array(members) as array:
        volumes = ArrayVolumes(array)
        table = volumes.table()
        assert table in (before.table, after.table), "neither the old table nor the new one"
        await check_contents(volumes, before, after)
        await check_free(volumes)
    async with open_array(members) as array, open_volumes(array) as volumes:
        await volumes.wiped()
        await check_contents(volumes, before, after)
        await check_free(volumes)
        size = volumes.free_bytes() // 2 // (2 * PAGE) * 2 * PAGE
        fresh = await volumes.create("fresh", size)
        assert not any(await fresh.read(0, size)), "a new volume shows old content"


async def check_contents(volumes: ArrayVolumes, before: Known, after: Known) -> None:
    for volume in volumes.volumes:
        found = bytes(await volume.read(0, volume.size_bytes))
        allowed = [
            known.get(volume.uuid, b"").ljust(len(found), b"\0")
            for known in (before.flushed, after.flushed, before.written, after.written)
        ]
        for at in range(0, len(found), SECTOR):
            sector = found[at : at + SECTOR]
            assert any(sector == one[at : at + SECTOR] for one in allowed), (volume.name, at)


async def check_free(volumes: ArrayVolumes) -> None:
    for extent in free_ranges(volumes.table().taken(), volumes.array.size_bytes):
        assert not any(await volumes.array.read(extent.offset, extent.length)), extent


@pytest.fixture(scope="module")
def played() -> Play:
    play = Play()
    run(play.run)
    return play


def test_a_cut_at_any_write_leaves_the_old_table_or_the_new_and_no_foreign_byte(
    played: Play,
) -> None:
    notes = [
        (index, event.note)
        for index, event in enumerate(played.record.events)
        if isinstance(event.note, Known)
    ]
    first = notes[0][0]
    moments = len(played.record.events) - first
    stride = max(1, moments * 2 // STATES)
    cuts = max(1, STATES * stride // (moments * 2))  # of one moment
    states = 0
    for index, disks, _ in played.record.moments():
        if index <= first or index % stride:
            continue
        before = next(known for at, known in reversed(notes) if at < index)
        after = next((known for at, known in notes if at >= index), before)
        for cut in range(cuts):
            rng = random.Random(f"{index} {cut}")
            for lost in (None, rng.randrange(played.width)):
                images = {n: d.crash(d.sample(rng)) for n, d in enumerate(disks) if n != lost}
                try:
                    run(judge, images, before, after)
                except BaseException as error:
                    error.add_note(f"moment {index}, cut {cut}, lost {lost}")
                    raise
                states += 1
    assert states >= STATES * 0.5


def test_the_judge_sees_a_table_that_is_neither_old_nor_new(played: Play) -> None:
    events = played.record.events
    *_, (_, disks, _) = played.record.moments()
    images = {n: disk.crash() for n, disk in enumerate(disks)}
    last = next(e.note for e in reversed(events) if isinstance(e.note, Known))
    assert isinstance(last, Known)
    with pytest.raises(AssertionError, match="neither the old table nor the new"):
        run(judge, images, Known(VolumeTable()), Known(VolumeTable()))
