"""Draw the picture of `raidx watch` in the manual: a rebuild under load, on modelled disks.

    python examples/watch_picture.py > cli/watch.svg

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
from typing import Any

import trio

from raidx_fuse.array import statistics
from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.cli.screen.app import WatchApp
from raidx_fuse.cli.screen.frame import Style
from raidx_fuse.cli.screen.orders import Said
from raidx_fuse.cli.screen.snapshot import Snapshot, snapshot
from raidx_fuse.daemon.control_socket import ControlError
from raidx_fuse.engine.chunk_map import ChunkMap
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.virtual_time import run

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


async def looks() -> list[Snapshot]:
    """Return what is seen of an array while one of its members is rebuilt."""
    members = [disk(number) for number in range(4)]
    await create_array(members, "raid5", chunk_bytes=65536, name="lecture", now_s=0)
    found: list[Snapshot] = []
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
                stats = statistics.difference(before, statistics.snapshot(array))
                found.append(snapshot(array.status(), stats, await chunk_map.chunk_map(PARTS)))
            nursery.cancel_scope.cancel()
        array.jobs.cancel(job)
    return found


class Recorded:
    """The looks of the array, one after the other."""

    interval_s = INTERVAL_S

    def __init__(self, found: list[Snapshot]) -> None:
        self._found = list(found)
        self._stopped = threading.Event()

    def look(self, _parts: int) -> Snapshot:
        """Return the next look; after the last one, nothing more comes."""
        if not self._found:
            self._stopped.wait()
            raise ControlError("the screen has ended")
        return self._found.pop(0)

    def stop(self) -> None:
        """End the wait."""
        self._stopped.set()


def no_command(_words: Any) -> Said:
    """Run nothing: no key is pressed."""
    return Said(0, ())


async def draw(found: list[Snapshot]) -> str:
    """Return the screen after the last of the looks as SVG."""
    last = found[-1]
    app = WatchApp("/mnt", Recorded(found), Style(), no_command)
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        while app.model.look is not last:
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
