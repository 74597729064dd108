"""A larger image: the kernel has its size when the growth ends, whatever else is under way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

from raidx_fuse.fuse.operations import VolumeOperations
from raidx_fuse.members.simulated.virtual_time import VirtualClock
from raidx_fuse.pool.volume import Volume
from tests.fuse.conftest import detach
from tests.mount import aio

Make = Callable[..., Any]

BLOCK_BYTES = 4096
MIB = 1 << 20
REFUSED = "the kernel did not take the new size"
MODES = pytest.mark.parametrize("mode", [[], ["--page-cache"]], ids=["direct", "page cache"])
ASYNCHRONOUS = pytest.mark.skipif(aio.why_not() is not None, reason=aio.why_not() or "")


@contextmanager
def writing(path: Path, depth: int = 8) -> Iterator[None]:
    """Keep *depth* writes under way on the first blocks of *path*, from another thread."""
    ended = threading.Event()
    problems: list[BaseException] = []
    written = 0

    def write() -> None:
        nonlocal written
        image = os.open(path, os.O_RDWR)
        queue = aio.Aio(depth, BLOCK_BYTES)
        try:
            tags = list(range(depth))
            while not ended.is_set():
                for tag in tags:
                    queue.submit(tag, aio.WRITE, image, tag * BLOCK_BYTES, BLOCK_BYTES)
                done = queue.wait()
                assert {answer for _, answer in done} == {BLOCK_BYTES}
                tags = [tag for tag, _ in done]
                written += len(done)
        except BaseException as error:
            problems.append(error)
        finally:
            queue.close()
            os.close(image)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not problems
    assert written > depth


def read(image: int, offset: int) -> int:
    """Read a block at *offset* asynchronously; return how many bytes came."""
    queue = aio.Aio(1, BLOCK_BYTES)
    try:
        queue.submit(0, aio.READ, image, offset, BLOCK_BYTES)
        ((_, answer),) = queue.wait()
        return answer
    finally:
        queue.close()


@pytest.mark.mount
@ASYNCHRONOUS
@MODES
def test_an_open_descriptor_reads_behind_the_old_end_under_writes(
    fake_mount: Make, mode: list[str]
) -> None:
    fake = fake_mount(*mode)
    image = os.open(fake.image, os.O_RDWR)
    try:
        with writing(fake.image):
            for size in range(MIB, 7 * MIB, MIB):
                fake.call("grow", by=MIB)
                assert os.fstat(image).st_size == size + MIB
                assert read(image, size) == BLOCK_BYTES
                assert read(image, size + MIB - BLOCK_BYTES) == BLOCK_BYTES
                assert read(image, size + MIB) == 0
                last = os.urandom(BLOCK_BYTES)  # the byte that set the size is nowhere to be seen
                assert os.pwrite(image, last, size + MIB - BLOCK_BYTES) == BLOCK_BYTES
                assert os.pread(image, MIB, size) == bytes(MIB - BLOCK_BYTES) + last
    finally:
        os.close(image)
    assert REFUSED not in fake.unmount()


@pytest.mark.mount
@ASYNCHRONOUS
def test_a_mount_that_was_detached_grows_for_who_is_still_in_it(fake_mount: Make) -> None:
    fake = fake_mount()
    image = os.open(fake.image, os.O_RDWR)
    try:
        with writing(fake.image):
            detach(str(fake.path))
            assert not fake.image.exists()
            fake.call("grow", by=MIB)
            assert read(image, MIB) == BLOCK_BYTES
    finally:
        os.close(image)
    assert REFUSED not in fake.end()


@pytest.mark.mount
def test_an_image_that_nobody_has_looked_at_grows(fake_mount: Make) -> None:
    fake = fake_mount()
    fake.call("grow", by=MIB)
    assert fake.image.stat().st_size == 2 * MIB
    assert REFUSED not in fake.unmount()


def test_the_size_is_told_when_answers_with_the_old_one_are_taken_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[float, int, int]] = []

    def member_set(inode: int, offset: int, data: bytes) -> None:
        told.append((trio.current_time(), offset, len(data)))

    async def unused(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(pyfuse3, "notify_store", member_set)
    volume = Volume("disk", MIB, read=unused, write=unused, flush=unused)
    operations = VolumeOperations([volume], started=lambda: None, mounted_ns=0)

    async def look() -> tuple[float, int]:
        entry = await operations.lookup(pyfuse3.ROOT_INODE, b"disk", pyfuse3.RequestContext())
        return trio.current_time(), entry.st_size

    async def change() -> tuple[float, int]:
        inode = pyfuse3.ROOT_INODE + 1
        fields, context = pyfuse3.SetattrFields(), pyfuse3.RequestContext()
        entry = await operations.setattr(inode, pyfuse3.EntryAttributes(), fields, None, context)
        return trio.current_time(), entry.st_size

    async def main() -> None:
        begin_s = trio.current_time()
        await volume.resize(2 * MIB)  # nobody has been told a size yet
        assert told == [(begin_s, 2 * MIB - 1, 1)]
        await volume.resize(2 * MIB)
        assert len(told) == 1
        for ask in (look, change):
            asked_s, size = await ask()
            assert size == volume.size_bytes
            await trio.sleep(0.25)
            answers: list[tuple[float, int]] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(volume.resize, size + MIB)
                await trio.sleep(0.25)
                assert volume.size_bytes == size

                async def ask_meanwhile() -> None:
                    answers.append(await ask())  # noqa: B023

                nursery.start_soon(ask_meanwhile)
            assert told[-1] == (asked_s + 1, size + MIB - 1, 1)
            assert answers == [(asked_s + 1, size + MIB)]

    trio.run(main, clock=VirtualClock())
