"""An array with a man in the middle of one member's connections, who cuts, delays and reorders."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.open import open_export
from tests.support.nbd_proxy import Proxy
from tests.support.nbd_real import real_server

DISK_BYTES = 8 << 20
WORKERS = 4
AREA = 128 << 10  # of one worker: small, so that writes meet older ones
LATE_S = 0.2


async def work(array: Array, model: bytearray, seed: int, steps: int) -> None:
    """Write and read at random places, never two at once on the same bytes."""

    async def worker(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        for _ in range(steps):
            size = chance.choice((1, 512, 4096, 5000, 20000))
            at = number * AREA + chance.randrange(AREA - size)
            if chance.random() < 0.7:
                data = chance.randbytes(size)
                await array.write(at, data)
                model[at : at + size] = data
            elif chance.random() < 0.2:
                await array.flush()
            else:
                assert await array.read(at, size) == model[at : at + size]

    async with trio.open_nursery() as nursery:
        for number in range(WORKERS):
            nursery.start_soon(worker, number)


@pytest.mark.parametrize("seed", [0])
def test_whatever_arrives_late_no_byte_of_the_array_is_wrong(seed: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        folders = [tmp_path / f"m{number}" for number in range(3)]
        for folder in folders:
            folder.mkdir()
        uris = [stack.enter_context(real_server("nbdkit", each, DISK_BYTES)) for each in folders]

        def members(*uris: str) -> list[Member]:
            return [open_export(uri) for uri in uris]

        async def main() -> None:
            fresh = members(*uris)
            await create_array(fresh, "raid5", name="disk", now_s=0, chunk_bytes=4096)
            close(fresh)
            model = bytearray(WORKERS * AREA)
            target = uris[0].partition("socket=")[2]
            proxy = Proxy(str(tmp_path / "p"), target, random.Random(seed), LATE_S)
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                through = f"nbd+unix:///disk?socket={proxy.path}"
                opened = await trio.to_thread.run_sync(members, through, *uris[1:])
                async with open_array(opened) as array:
                    await array.set("io.timeout_s", "1s")
                    await work(array, model, seed, 60)
                    assert proxy.cuts
                    for at in range(0, len(model), AREA):
                        assert await array.read(at, AREA) == model[at : at + AREA]
                    states = [member["state"] for member in array.status()["members"]]
                    assert states[1:] == ["active", "active"]
                await trio.to_thread.run_sync(close, opened)  # over the proxy
                await trio.sleep(2 * LATE_S)  # now everything late has arrived
                nursery.cancel_scope.cancel()
            opened = await trio.to_thread.run_sync(members, *uris)
            async with open_array(opened) as array:
                if array.status()["members"][0]["state"] != "active":
                    begun = await array.replace_disk(0, open_export(uris[0]))
                    await array.jobs.wait(begun["job"])
                scrub = await array.jobs.wait(await array.start_scrub(repair=False))
                assert scrub["mismatches"] == 0
                await array.fail_disk(1)  # so that what the proxied member holds counts
                for at in range(0, len(model), AREA):
                    assert await array.read(at, AREA) == model[at : at + AREA]
            close(opened)

        trio.run(main)


def close(members: list[Member]) -> None:
    for member in members:
        member.close()
