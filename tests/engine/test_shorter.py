"""A member file that somebody truncates: failed, never extended, and nothing reads as zeros."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.array.presence import LOOK_EACH_S
from raidx_fuse.errors import RaidxError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import filled, noise

MIB = 1 << 20
SIZE = 4 * MIB
LEFT = SIZE // 3
CHUNK = 4096
CUT = 1  # the role whose member is cut off
LAYOUTS = {"raid0": 2, "raid1": 2, "raid5": 4, "rdp": 6, "raidx-parity": 5}


class Files:
    """An array on member files in *folder*; *model* is its content."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.paths = [str(folder / f"m{number}") for number in range(LAYOUTS[layout])]
        self.layout = layout
        self.model = b""
        self.array: Array | None = None

    @property
    def running(self) -> Array:
        """The array, which is open."""
        assert self.array is not None
        return self.array

    @asynccontextmanager
    async def open(self, *without: int) -> AsyncIterator[Array]:
        """Start the array, without the members of some roles."""
        async with AsyncExitStack() as stack:
            members = []
            for number, path in enumerate(self.paths):
                if number not in without:
                    members.append(LocalMember(path))
                    stack.callback(members[-1].close)
            self.array = await stack.enter_async_context(
                open_array(members, start_degraded=bool(without))
            )
            yield self.running

    async def create(self) -> None:
        """Make the files, fill the image, and leave it at rest."""
        for path in self.paths:
            create_file(path, SIZE)
        members = [LocalMember(path, reads_zero=True) for path in self.paths]
        await create_array(members, self.layout, chunk_bytes=CHUNK, name="a", now_s=0)
        for member in members:
            member.close()
        async with self.open() as array:
            self.model = noise(array.size_bytes)
            await array.write(0, self.model)

    def truncate(self, size: int = LEFT) -> None:
        """Cut the member off."""
        os.truncate(self.paths[CUT], size)

    async def check_reads(self) -> int:
        """Read everything: right, or an error. Return how many reads were refused."""
        errors = 0
        for at in range(0, len(self.model), 64 << 10):
            wanted = self.model[at : at + (64 << 10)]
            try:
                assert bytes(await self.running.read(at, len(wanted))) == wanted
            except RaidxError:
                errors += 1
        return errors


async def reads(files: Files) -> None:
    """Read near its end."""
    await files.check_reads()


async def small_writes(files: Files) -> None:
    """Write what is there already, a sector in each chunk."""
    for at in range(0, len(files.model), CHUNK):
        await files.running.write(at, files.model[at : at + 512])
    await files.running.context.journal.drain()


async def large_write(files: Files) -> None:
    """Write the whole image anew."""
    await files.running.write(0, files.model)


async def flush(files: Files) -> None:
    """Flush: nothing is to be written to the member."""
    await files.running.flush()


async def superblocks(files: Files) -> None:
    """Change a setting."""
    await files.running.set("speed_max", "1MiB")


async def discard(files: Files) -> None:
    """Discard the last part of the image."""
    at = len(files.model) - 16 * CHUNK * len(files.paths)
    await files.running.discard(at, len(files.model) - at)
    files.model = files.model[:at] + bytes(len(files.model) - at)


async def scrub(files: Files) -> None:
    """Scrub and repair."""
    await files.running.jobs.wait(await files.running.start_scrub(repair=True))


async def nothing(_files: Files) -> None:
    """Leave the array alone for a while."""
    await trio.sleep(2 * LOOK_EACH_S)


OPERATIONS = (reads, small_writes, large_write, flush, superblocks, discard, scrub, nothing)
Operation = Callable[[Files], Awaitable[None]]


@pytest.mark.parametrize(
    ("layout", "journal", "operations"),
    [
        ("raid5", "partial", OPERATIONS),
        ("raid5", "none", OPERATIONS[1:3]),
        *((layout, "partial", (reads, small_writes)) for layout in ("raid1", "rdp")),
        ("raidx-parity", "partial", (reads, large_write)),
    ],
)
def test_a_member_that_is_cut_off_is_failed_by_whatever_comes_first(
    layout: str, journal: str, operations: Sequence[Operation], tmp_path: Path
) -> None:
    for number, operation in enumerate(operations):
        folder = tmp_path / str(number)
        folder.mkdir()

        async def main(folder: Path = folder, operation: Operation = operation) -> None:
            files = Files(folder, layout)
            await files.create()
            async with files.open() as array:
                await array.set("journal", journal)
                await trio.sleep(30)
                files.truncate()
                await operation(files)
                if layout != "raid1" or operation is not reads:  # the other copy may answer
                    assert array.member_set.lost == {CUT}, operation
                assert not await files.check_reads()
                await array.flush()
                assert os.stat(files.paths[CUT]).st_size == LEFT
                assert not array.context.bad_chunks

        run(main)


@pytest.mark.parametrize("operation", [small_writes, large_write, flush, superblocks, nothing])
async def test_without_redundancy_it_stays_and_what_needs_it_fails(
    operation: Operation, tmp_path: Path
) -> None:
    files = Files(tmp_path, "raid0")
    await files.create()
    async with files.open() as array:
        await trio.sleep(30)
        files.truncate()
        if operation is nothing:
            await nothing(files)
        else:
            with pytest.raises(RaidxError, match=r"has become shorter|lacks the newest"):
                await operation(files)
        assert not array.member_set.lost
        assert 0 < await files.check_reads() < len(files.model) // (64 << 10)
        with pytest.raises(RaidxError):
            await array.write(0, files.model)
        with pytest.raises(RaidxError):
            await array.flush()
        files.truncate(SIZE)  # does not bring it back
        assert await files.check_reads()
        with pytest.raises(RaidxError):
            await array.flush()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "raid0"])
async def test_one_that_was_cut_off_while_it_was_away_does_not_come_back(
    layout: str, tmp_path: Path
) -> None:
    files = Files(tmp_path, layout)
    await files.create()
    async with files.open(CUT) as array:
        await array.write(0, files.model[:CHUNK])
    files.truncate()
    async with files.open() as array:
        assert array.member_set.lost == {CUT}
        assert any(files.paths[CUT] in warning for warning in array.warnings)
        assert not await files.check_reads()


async def test_a_path_that_does_not_lead_to_its_member_is_said_and_nothing_more(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path, "raid5")
    await files.create()
    async with files.open() as array:
        moved, deleted, replaced, stays = files.paths
        os.rename(moved, f"{moved}.new")
        os.unlink(deleted)
        os.rename(replaced, f"{replaced}.old")
        create_file(replaced, SIZE)
        await nothing(files)
        warnings = "\n".join(array.status()["warnings"])
        assert f"{moved}: the path does not lead to the member any more" in warnings
        assert f"{deleted}: the file was deleted" in warnings
        assert f"{replaced}: the path leads to something else" in warnings
        assert stays not in warnings
        assert array.status()["state"] == "clean"
        os.rename(f"{moved}.new", moved)
        await nothing(files)
        assert moved not in "\n".join(array.status()["warnings"])


async def test_a_flush_looks_at_members_that_it_need_not_flush() -> None:
    rig = await filled("raid5", 4, chunk_bytes=CHUNK)
    rig.members[2].shorten(MIB)
    await rig.array.flush()
    assert rig.array.member_set.lost == {2}
    await rig.compare()
