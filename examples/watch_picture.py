"""Draw the picture of `raidx watch` in the manual: a rebuild under load, on modelled disks.

    python examples/watch_picture.py > cli/watch.svg     (or all pictures: tests/docs/pictures.py)

The array runs in virtual time in this process: no root, no mount, the same picture on every machine
with the same Textual.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING

import trio

from raidx_fuse.array import statistics
from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.cli.screen.app import WatchApp
from raidx_fuse.cli.screen.frame import Feed, Frame
from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.engine.chunk_map import ChunkMap
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run

if TYPE_CHECKING:
    from raidx_fuse.answers import Watched

MIB = 1 << 20
COLUMNS, LINES = 80, 24
PARTS = 2 * (COLUMNS - 5)
LOOKS = 17
INTERVAL_S = 0.5


def disk(number: int) -> Member:
    """Return a modelled disk of 48 MiB."""
    return model_member(RamMember(48 * MIB, name=f"/srv/disk{number}.img"), "ssd", seed=number)


async def load(array: Array) -> None:
    """Read and write 4 KiB at a time; a few places take most of it."""
    chance = random.Random(2)
    for number in count():
        place = int(chance.paretovariate(0.4) * 70_000) % (64 * MIB) & ~4095
        if chance.random() < 0.3:
            await array.write(place, chance.randbytes(4096))
        else:
            await array.read(place, 4096)
        await trio.sleep(0.002 * (1 + number // 400 % 4))


async def looks() -> list[Watched]:
    """Return what is seen of an array while one of its members is rebuilt."""
    members = [disk(number) for number in range(4)]
    await create_array(members, "raid5", chunk_bytes=65536, name="lecture", now_s=0)
    found: list[Watched] = []
    async with open_array(members) as array:
        for at in range(0, 90 * MIB, MIB):
            await array.write(at, random.Random(at).randbytes(MIB))
        await array.flush()
        chunk_map = ChunkMap(array.context)
        await chunk_map.chunk_map(PARTS)
        await array.fail_disk(1)
        job = (await array.replace_disk(1, disk(4)))["job"]
        array.jobs.limit(job, 2 * MIB, 2 * MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, array)
            for _ in range(LOOKS):
                before = statistics.snapshot(array)
                await trio.sleep(INTERVAL_S)
                found.append(
                    {
                        "status": array.status(),
                        "stats": statistics.difference(before, statistics.snapshot(array)),
                        "chunk_map": await chunk_map.chunk_map(PARTS),
                    }
                )
            nursery.cancel_scope.cancel()
        array.jobs.cancel(job)
    return found


class Recorded(Feed):
    """The looks of the array, one after the other; *has_ended* after the last one."""

    def __init__(self, found: list[Watched]) -> None:
        super().__init__("/mnt", INTERVAL_S)
        self._found = list(found)
        self._end = threading.Event()
        self.has_ended = False

    def look(self, _parts: int) -> Watched:
        """Return the next look; after the last one, nothing more comes."""
        if not self._found:
            self.has_ended = True
            self._end.wait()
            raise ControlError("the screen has ended")
        return self._found.pop(0)

    def stop(self) -> None:
        """End the wait."""
        self._end.set()


async def draw(found: list[Watched]) -> str:
    """Return the screen after the last of the looks as SVG."""
    feed = Recorded(found)
    app = WatchApp(feed, Frame())
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        while not feed.has_ended:
            await pilot.pause()
        await pilot.pause()
        picture = app.export_screenshot(title="raidx watch /mnt")
        app.exit()
    # The page is read offline: the browser's own fixed-width font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return picture.replace("Fira Code", "DejaVu Sans Mono")


def main() -> None:
    """Print the picture."""
    found = run(looks)
    sys.stdout.write(asyncio.run(draw(found)).rstrip() + "\n")


if __name__ == "__main__":
    main()
