"""Pages of the maps: of two saves at once, the later one stays, on every member."""

from __future__ import annotations

import trio

from raidx_fuse.format.pages import load_pages
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.spy import WRITE, spying


def test_a_later_save_of_a_page_is_not_overtaken_by_an_earlier_one() -> None:
    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=4096, slow=True) as rig:
            written = rig.running.context.written
            for member in rig.members:
                member.slow(1.0, ("write",), count=1)  # the first of them; the second is faster
            async with trio.open_nursery() as nursery:
                nursery.start_soon(written.mark, [0])
                await trio.sleep(0.1)
                nursery.start_soon(written.mark, [1])
            member_set = written.pages.member_set
            for ram in rig.rams:
                region, uuid = written.pages.region, member_set.config.array_uuid
                found = await load_pages(ram, region, uuid, written.pages.pages)
                assert int(found.payload[0][0]) & 3 == 3, f"{ram.path} forgot the later save"

    run(main)


def test_a_flush_during_a_save_does_not_stand_for_it() -> None:
    """Else the next save takes the other slot, and a cut leaves a member without either copy."""

    async def main() -> None:
        async with spying("raid5", 3, chunk_bytes=4096, slow=True) as rig:
            written = rig.running.context.written
            region = written.pages.region
            rig.members[0].slow(1.0, ("write",), count=1)
            rig.log.touches.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(written.mark, [0])
                await trio.sleep(0.1)
                await rig.running.flush()
            await written.mark([1])
            places = [t.offset_bytes for t in rig.log.touches if t.kind == WRITE]
            assert len(places) == 2 * 3
            assert set(places) <= {region.slot_offset(0, slot) for slot in (0, 1)}
            assert len(set(places)) == 1

    run(main)
