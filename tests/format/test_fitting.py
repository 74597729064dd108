"""What fits into a superblock: measured before it is used; what is shortened if space is scarce."""

from __future__ import annotations

import base64
import random
import uuid
import zlib
from dataclasses import replace

import pytest

from raidx_fuse.errors import FormatError, Reason
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    NO_ROLE,
    SPARE,
    ArrayConfig,
    MemberRecord,
    encode_config,
)
from raidx_fuse.format.configuration.fitting import RESERVE_BYTES, fitted
from raidx_fuse.format.configuration.lost_chunks import (
    ENCODED_BYTES_MAX,
    FRAME_BYTES,
    KEY,
    LostChunks,
    decode_chunks,
    encode_chunks,
    packed,
)
from raidx_fuse.format.regions import plan_regions
from raidx_fuse.format.superblock import BODY_BYTES_MAX
from tests.support.reasons import because


def config(width: int, spares: int = 0, hint: str = "/disks/a") -> ArrayConfig:
    members = [
        MemberRecord(
            role if role < width else NO_ROLE,
            str(uuid.UUID(int=1000 + role)),
            ACTIVE if role < width else SPARE,
            1 << 40,
            f"{hint}{role}",
        )
        for role in range(width + spares)
    ]
    return ArrayConfig(
        array_uuid=str(uuid.UUID(int=1)),
        name="disk",
        layout="raid5",
        chunk_bytes=4096,
        width=width,
        members=tuple(members),
        regions=plan_regions(1 << 40, 4096, width),
    )


def lost(*chunks: int) -> LostChunks:
    found = LostChunks()
    found.update(chunks)
    return found


def scattered(count: int, image_chunks: int) -> LostChunks:
    return lost(*random.Random(count).sample(range(image_chunks), count))


def test_long_paths_give_way_from_the_front() -> None:
    whole = fitted(config(4, spares=21, hint="/" + "long/" * 700), RESERVE_BYTES)
    assert len(encode_config(whole)) <= BODY_BYTES_MAX - RESERVE_BYTES
    assert all(len(record.path_hint) == 96 for record in whole.members)
    assert whole.members[24].path_hint.endswith("/long/24")
    assert fitted(config(4, 21)) == config(4, 21)


def test_a_path_that_is_no_text_can_be_written() -> None:
    assert fitted(config(2, hint="/disk\udcff\x07")).members[0].path_hint == "/disk??0"


def test_220_members_and_24000_lost_chunks_fit() -> None:
    bad = scattered(24_000, 1 << 34)
    full = config(220)
    full = replace(full, jobs={KEY: encode_chunks(bad)})
    shrunk = fitted(full)
    assert len(encode_config(shrunk)) <= BODY_BYTES_MAX
    kept = decode_chunks(shrunk.jobs[KEY])
    assert all(chunk in kept for chunk in bad)
    assert shrunk.members != full.members, "where members were last seen gives way first"


def test_what_a_user_asks_for_leaves_room_and_the_rest_uses_it() -> None:
    members = next(n for n in range(100, 400, 2) if not _fits(config(200, n), RESERVE_BYTES))
    assert _fits(config(200, members), 0), "the room that is kept free"
    with pytest.raises(FormatError, check=because(Reason.METADATA_FULL)):
        fitted(config(200, members + 100))


def _fits(wanted: ArrayConfig, reserve_bytes: int) -> bool:
    try:
        fitted(wanted, reserve_bytes)
    except FormatError:
        return False
    return True


@pytest.mark.parametrize("count", [0, 1, 3, 1000, 24_000])
@pytest.mark.parametrize("room", [200, 2048, 20_000, ENCODED_BYTES_MAX])
def test_lost_chunks_are_rounded_up_never_down(count: int, room: int) -> None:
    bad = scattered(count, 1 << 34)
    encoded = encode_chunks(bad, room)
    kept = decode_chunks(encoded)
    assert len(str(encoded)) <= room
    assert set(kept.first(count)) == set(bad) or all(chunk in kept for chunk in bad)
    assert kept.count() == encoded["count"] >= count
    if "steps" in encoded:
        assert kept.first(count + 1) == sorted(bad)


def test_patterns_are_kept_as_they_are() -> None:
    """A hundred thousand chunks of one role: less than one in four fits without the pattern."""
    bad = lost(*(4 * stripe + stripe % 5 for stripe in range(100_000) if stripe % 5 < 4))
    encoded = encode_chunks(bad)
    assert "steps" in encoded
    assert decode_chunks(encoded).first(10**6) == sorted(bad)


def test_a_chunk_that_was_written_again_leaves_its_range() -> None:
    found = LostChunks.of_ranges([10, 100], [20, 101])
    assert (bool(found), found.count(), 15 in found, 20 in found) == (True, 11, True, False)
    for chunk in (15, 10, 19, 100, 15):
        found.discard(chunk)
    assert found.first(100) == [11, 12, 13, 14, 16, 17, 18]
    found.add(30)
    found.add(12)
    assert found.first(100) == [11, 12, 13, 14, 16, 17, 18, 30]
    for chunk in (11, 12, 13, 14, 16, 17, 18):
        assert found
        found.discard(chunk)
    assert found.first(9) == [30]
    found.discard(30)
    assert not found
    assert found.count() == 0


WRONG = [
    7,
    {"count": 1},
    {"count": 1, "steps": 5},
    {"count": 1, "steps": "&"},
    {"count": 1, "steps": "AAAA"},
    {**encode_chunks(lost(1, 2)), "steps": encode_chunks(lost(3 << 61))["steps"]},
    {"count": 1, "shift": 70, "ranges": encode_chunks(lost(1, 2))["steps"]},
    {"count": 1, "shift": 1, "ranges": encode_chunks(lost(1, 2, 3))["steps"]},
    {**encode_chunks(lost(1, 2)), "pages": "AAAA"},
    {**encode_chunks(lost(1, 2)), "pages": packed(b"")},
    {**encode_chunks(lost(1, 2)), "pages": packed(bytes(39))},
    {**encode_chunks(lost(1, 2)), "pages": packed(b"\1" + bytes(39))},  # no page
    {**encode_chunks(lost(1, 2)), "pages": packed(b"\3" + bytes(7) + b"\1" + bytes(31))},
]


@pytest.mark.parametrize("values", WRONG)
def test_lists_of_lost_chunks_that_cannot_be_are_refused(values: object) -> None:
    with pytest.raises(FormatError, match="the list of lost chunks cannot be read"):
        decode_chunks(values)


def test_pages_of_chunks_are_kept_and_become_whole_chunks_where_there_is_no_room() -> None:
    bad = lost(1, 7)
    for chunk, pages in ((2, 0b0110), (3, 0b1), (9, 0b1011), (7, 0b1), (4, 0b1), (4, 0b1110)):
        bad.add_pages(chunk, pages, 0b1111)
    assert bad.parts == {2: 0b0110, 3: 0b1, 9: 0b1011}, "1, 4 and 7 are lost whole"
    assert [(low // 4096, end // 4096) for low, end in bad.byte_ranges(4 * 4096)] == [
        *((4, 8), (9, 11), (12, 13), (16, 20), (28, 32), (36, 38), (39, 40))
    ]
    encoded = encode_chunks(bad)
    kept = decode_chunks(encoded)
    assert (kept.parts, kept.first(9)) == (bad.parts, bad.first(9))
    small = encode_chunks(bad, len(encoded["steps"]) + FRAME_BYTES)
    assert "pages" not in small
    assert (decode_chunks(small).parts, decode_chunks(small).first(9)) == ({}, bad.first(9))
    assert decode_chunks(encoded, 3).parts == {2: 0b0110}
    kept.discard_pages(2, 0b0010, 0b1111)
    kept.discard_pages(1, 0b0111, 0b1111)
    kept.discard_pages(3, 0b0001, 0b1111)
    kept.discard_pages(5, 0b0001, 0b1111)  # it was not lost
    assert [kept.pages_of(chunk) for chunk in (1, 2, 3, 5, 7)] == [0b1000, 0b0100, 0, 0, -1]
    kept.update(lost(1, 9))
    assert kept.parts == {2: 0b0100}
    kept.take_pages(0b0011)
    assert (kept.pages_of(2), kept.parts) == (-1, {}), "no chunk has such a page"


def test_a_list_cannot_demand_memory_without_end() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(40 << 20), 9)).decode()
    with pytest.raises(FormatError, match="too long"):
        decode_chunks({"count": 1, "shift": 0, "ranges": bomb})
