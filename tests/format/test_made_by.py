"""Members made by earlier versions mount, with and without one of them, and so does their log.

made/COMMIT-LAYOUT.xz are the members of one array that lost power with records in its log, made by
made/make.py. No set is ever removed. Arrays of commits from 79fb2b4 on are on the shelf
(test_shelf.py).
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from raidx_fuse.array.open import open_array
from raidx_fuse.members.simulated.virtual_time import run
from tests.format.made import make
from tests.support.spy import members_from

MADE = Path(make.__file__).parent
FIXTURES = sorted(path.stem for path in MADE.glob("*.xz"))
COMMITS = {name.partition("-")[0] for name in FIXTURES}


def images_of(name: str) -> list[bytes]:
    """Return the members of a fixture, by role."""
    data = lzma.decompress((MADE / f"{name}.xz").read_bytes())
    assert len(data) == make.MEMBER_BYTES * make.ARRAYS[name.partition("-")[2]]
    return [data[at : at + make.MEMBER_BYTES] for at in range(0, len(data), make.MEMBER_BYTES)]


def test_each_version_has_every_array() -> None:
    assert len(COMMITS) >= 2
    assert set(FIXTURES) == {f"{commit}-{layout}" for commit in COMMITS for layout in make.ARRAYS}


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("missing", [None, 0, 1])
def test_members_of_an_earlier_version_mount(name: str, missing: int | None) -> None:
    async def main() -> None:
        images = images_of(name)
        members = members_from([image for n, image in enumerate(images) if n != missing])
        expected = bytes(make.content((*make.WRITES, *make.LOGGED)))
        async with open_array(members) as array:
            assert array.replayed is not None
            assert array.replayed.records > 0, "its log has something to redo"
            assert bytes(await array.read(0, len(expected))) == expected
            await array.write(7 * make.CHUNK, b"new" * 1000)
            if missing is None:
                scrub = await array.jobs.wait(await array.start_scrub(repair=False))
                assert scrub["mismatches"] == 0
        async with open_array(members) as array:
            assert array.was_clean
            assert bytes(await array.read(7 * make.CHUNK, 3000)) == b"new" * 1000
            assert bytes(await array.read(0, 6 * make.CHUNK)) == expected[: 6 * make.CHUNK]

    run(main)
