"""Creation: what is refused (with nothing written), what is cleared, what comes out."""

from __future__ import annotations

import itertools
import random
import uuid
from functools import partial
from typing import Any

import pytest

from raidx_fuse.errors import RaidxError, Reason, SignatureFoundError, UsageError
from raidx_fuse.format.assemble import assemble
from raidx_fuse.format.both_ends import read_superblock
from raidx_fuse.format.configuration.config import ArrayConfig, uuid_bytes
from raidx_fuse.format.create import create_array, prepare_member, shape
from raidx_fuse.format.examine import examine
from raidx_fuse.format.log_record import DATA, RecordBody, encode_record
from raidx_fuse.format.pages import encode_page, load_pages
from raidx_fuse.format.regions import NO_REGION, PAGE_BYTES, PAGE_SLOTS, PAYLOAD_BYTES
from raidx_fuse.format.signature import find_signatures
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.virtual_time import run
from tests.support.reasons import because

MIB = 1 << 20


def rams(count: int, size: int = 2 * MIB) -> list[RamMember]:
    return [RamMember(size, name=f"d{number}") for number in range(count)]


def numbered(start: int = 1) -> Any:
    numbers = itertools.count(start)
    return lambda: str(uuid.UUID(int=next(numbers)))


def create(members: list[Any], layout: str = "raid5", **options: Any) -> ArrayConfig:
    async def make() -> ArrayConfig:
        arguments = {"name": "disk", "now_s": 17, "chunk_bytes": 4096, "uuid_source": numbered()}
        return await create_array(members, layout, **arguments | options)

    return run(make)


def test_an_array_is_made_and_every_member_says_so() -> None:
    members = rams(4)
    config = create(members, size_bytes=MIB)
    assert (config.layout, config.width, config.chunk_bytes) == ("raid5", 4, 4096)
    assert (config.events, config.clean, config.size_bytes) == (1, True, MIB)
    assert (config.name, config.created_s) == ("disk", 17)
    assert [r.path_hint for r in config.members] == ["d0", "d1", "d2", "d3"]
    assert all(r.reads_zero and r.state == "active" for r in config.members)
    for role, member in enumerate(members):
        found = run(read_superblock, member)
        assert found is not None
        assert found.config == config
        assert found.member_uuid == config.record(role).member_uuid


def test_the_same_seed_makes_the_same_bytes() -> None:
    first, second = rams(3), rams(3)
    create(first)
    create(second)
    for one, other in zip(first, second, strict=True):
        assert bytes(one.memory) == bytes(other.memory)


def test_unequal_members_are_used_as_far_as_the_smallest_reaches() -> None:
    members = [RamMember(size, name=str(size)) for size in (4 * MIB, 2 * MIB + 512, 9 * MIB)]
    config = create(members, chunk_bytes=65536)
    assert config.regions.data.end <= 2 * MIB
    assert config.regions.data.length % 65536 == 0
    assert config.regions.data.end > 2 * MIB + 512 - 2 * 65536
    assert [r.size_bytes for r in config.members] == [4 * MIB, 2 * MIB + 512, 9 * MIB]


def odd(size: int) -> list[RamMember]:
    return [*rams(3), RamMember(size, name="odd")]


REFUSED: list[tuple[str, list[RamMember], dict[str, Any], str]] = [
    ("raid5", [], {}, "no members given"),
    ("raid5", rams(2), {}, r"raid5 does not exist for 2 members .*nearest: 3"),
    ("pcode", rams(5), {}, r"pcode does not exist for 5 members .*nearest: 4 or 6"),
    ("raid1", rams(1), {}, r"nearest: 2"),
    ("raid55", rams(3), {}, r"unknown layout 'raid55'; did you mean raid5"),
    ("raid5", rams(3), {"chunk_bytes": 5000}, "chunk of 5000 bytes .*powers of two"),
    ("raid5", rams(3), {"chunk_bytes": 2048}, "chunk of 2048 bytes"),
    ("raid5", rams(3), {"chunk_bytes": 2 * MIB}, "chunk of 2097152 bytes"),
    ("raid5", rams(3), {"chunk_bytes": 0}, "chunk of 0 bytes"),
    ("raid5", odd(2 * MIB + 100), {}, "odd has 2097252 bytes, not a multiple of 512"),
    ("raid5", odd(128 << 10), {}, r"member of 131072 bytes is too small"),
    ("raid5", rams(3), {"chunk_bytes": MIB}, r"too small"),
    ("xcode", rams(5, 3 * MIB), {"chunk_bytes": MIB}, r"too small|needs at least"),
    ("raid5", rams(3), {"size_bytes": 64 * MIB}, "image of 67108864 bytes is not possible"),
    ("raid5", rams(3), {"size_bytes": 0}, "image of 0 bytes"),
    ("raid5", rams(3), {"size_bytes": 1000}, "not a multiple of 512"),
    ("raid5", rams(3), {"name": ""}, "cannot be an array's name"),
    ("raid5", rams(3), {"name": "a/b"}, "cannot be an array's name"),
    ("raid5", rams(3), {"name": ".."}, "cannot be an array's name"),
    ("raid5", rams(3), {"name": "x" * 300}, "cannot be an array's name"),
    ("raid5", rams(3), {"name": "a\x1b[2Jb"}, "no terminal can show"),
    ("raid5", rams(3), {"name": "a\nb"}, "no terminal can show"),
    ("raid5", rams(3), {"name": "a\udc80"}, "no terminal can show"),
    ("raid5", rams(3), {"name": "a\u202eb"}, "no terminal can show"),
    ("raid5", rams(3), {"params": {"colour": 1}}, "no parameter 'colour'"),
    ("mcpod", rams(3), {}, "mcpod"),
]


def test_a_small_member_of_a_raidx_array_is_not_full_of_room_for_checksums() -> None:
    unlike, alike = [64 * MIB, 4000 * MIB, 4000 * MIB], [64 * MIB] * 2 + [256 * MIB]
    options: Any = ("raidx-copy", unlike, 65536, {})
    without, _ = shape(*options)
    with_sums, _ = shape(*options, sums=True)
    assert with_sums.data.offset - without.data.offset > 15 * MIB
    assert without.data.end < 64 * MIB
    kept, made = shape("raidx-copy", alike, 65536, {})
    assert (kept.sums, kept.data.length >= 480 * MIB) == (NO_REGION, True)
    assert shape("raidx-copy", alike, 65536, {}, sums=True)[1].counts == made.counts  # type: ignore[attr-defined]


@pytest.mark.parametrize(("layout", "members", "options", "said"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(
    layout: str, members: list[RamMember], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        create(members, layout, **options)
    assert "\n" not in str(refused.value)
    for member in members:
        assert list(member.data_extents(0, member.size_bytes)) == [], "nothing was written"


def test_one_member_twice_is_refused() -> None:
    one, two = rams(2)
    with pytest.raises(UsageError, match="d0 is given twice"):
        create([one, two, one])


def test_a_read_only_member_is_refused() -> None:
    with pytest.raises(UsageError, check=because(Reason.READ_ONLY)):
        create([*rams(2), RamMember(2 * MIB, name="ro", read_only=True)])


def test_a_member_with_a_signature_is_refused_and_nothing_is_written() -> None:
    members = rams(3)
    members[2].memory[:4] = b"XFSB"
    before = [bytes(member.memory) for member in members]
    with pytest.raises(
        SignatureFoundError, match="d2 carries an XFS file system; --overwrite-signature"
    ):
        create(members)
    assert [bytes(member.memory) for member in members] == before


def test_a_member_of_an_array_is_refused_by_the_arrays_name() -> None:
    members = rams(3)
    create(members, name="precious")
    with pytest.raises(SignatureFoundError, match="d0 carries a raidx member of array 'precious'"):
        create(members)


def test_overwriting_clears_what_was_there() -> None:
    members = rams(3)
    for member in members:
        member.memory[512:520] = b"EFI PART"
        member.memory[2 * MIB - 512 : 2 * MIB - 504] = b"EFI PART"
        member.memory[65600:65608] = b"_BHRfS_M"
    config = create(members, overwrite_signature=True)
    for member in members:
        assert {s.name for s in run(find_signatures, member)} == {"a raidx member"}
    assert not any(record.reads_zero for record in config.members), "data was there before"


def test_a_disk_that_is_not_blank_does_not_read_zero() -> None:
    members = rams(3)
    members[1].reads_zero = False
    assert [r.reads_zero for r in create(members).members] == [True, False, True]


def test_an_earlier_arrays_superblocks_and_pages_never_come_back() -> None:
    members = rams(3)
    old = create(members)
    for member in members:
        member.reads_zero = False
        region = old.regions.pages("written")
        content = encode_page(0, 99, "written", b"\xff" * PAYLOAD_BYTES, old.array_uuid)
        member.try_writev(region.slot_offset(0, 1), [content])
    # The very same UUIDs again, as if a disk came back into its own array.
    new = create(members, "raid0", overwrite_signature=True)
    assert new.array_uuid == old.array_uuid
    for member in members:
        found = run(read_superblock, member)
        assert found is not None
        assert found.config == new
        loaded = run(load_pages, member, new.regions.pages("written"), new.array_uuid, None)
        assert loaded.present() == []


def test_a_member_that_cannot_be_written_is_named() -> None:
    class Stuck(FaultMember):
        pass

    members: list[Member] = [*rams(2), Stuck(RamMember(2 * MIB, name="stuck"))]
    assert isinstance(members[2], FaultMember)
    members[2].vanish()
    with pytest.raises(RaidxError, match="stuck"):
        create(members)


@pytest.mark.parametrize(("layout", "copies"), [("raid0", 1), ("raid5", 2), ("raid1", 4)])
def test_checksums_have_a_place_that_reads_as_zeros(layout: str, copies: int) -> None:
    noise = random.Random(5).randbytes(2 * MIB)
    members: list[Any] = [NoHoles(2 * MIB, name="device"), *rams(3)]
    for member in members:
        member.memory[:] = noise
    config = create(members, layout, sums=True, uuid_source=numbered(0xA1B2C3D4 << 96))
    regions = config.regions
    tables = [
        [role, [[(role + 1 + slot) % 4, slot] for slot in range(copies)]] for role in range(4)
    ]
    sums = {"algorithm": 1, "copies": copies, "seed": 0xD4C3B2A1, "tables": tables, "given": 4}
    sums["tail"] = 4096
    assert config.jobs == {"sums": sums}
    assert config.needs == ("sums", "sums.tail")
    assert config.settings == {"sums": "on"}
    assert regions.sums.length == copies * (regions.sum_table_bytes + 4096) > 0
    for member in members:
        assert not any(member.memory[regions.sums.offset : regions.sums.end])
        assert bytes(member.memory[regions.sums.end :]) == noise[regions.sums.end :]
        found = run(read_superblock, member)
        assert found is not None
        assert found.config == config


class NoHoles(RamMember):
    """As a block device: a range reads as zeros only if zeros were written to it."""

    async def punch(self, offset_bytes: int, length_bytes: int) -> bool:
        return False


def test_a_member_that_keeps_its_data_keeps_its_checksums() -> None:
    config = create(rams(4), sums=True)
    back = RamMember(2 * MIB, name="back")
    back.memory[:] = b"\xff" * (2 * MIB)
    run(partial(prepare_member, kept_bytes=config.regions.data.end), back, config.regions)
    assert all(back.memory[config.regions.sums.offset : config.regions.sums.end])


def test_creation_touches_little() -> None:
    """Instant: superblocks only, on members of any size."""
    members = [RamMember(1 << 40, name=f"d{n}") for n in range(3)]
    create(members, chunk_bytes=65536)
    for member in members:
        touched = sum(length for _, length in member.data_extents(0, member.size_bytes))
        assert touched <= 2 * MIB


def test_a_used_disk_is_prepared_without_its_data() -> None:
    members = rams(3)
    config = create(members)
    used = RamMember(2 * MIB, name="used")
    noise = random.Random(5).randbytes(2 * MIB)
    used.memory[:] = noise
    used.memory[0:4] = b"XFSB"
    body = RecordBody([DATA, 0, 4, 0], b"", [b"RDXJ"], 4)
    record = encode_record(3, 1, 0, uuid_bytes(config.array_uuid), body)
    first = config.regions.log.offset + PAGE_BYTES * PAGE_SLOTS
    used.memory[first : first + len(record)] = record
    written = config.regions.pages("written").offset
    page = encode_page(0, 5, "written", bytes(PAYLOAD_BYTES), config.array_uuid)
    used.memory[written : written + PAGE_BYTES] = page
    run(prepare_member, used, config.regions)
    assert run(find_signatures, used) == []
    assert run(read_superblock, used) is None
    assert not any(used.memory[first : first + 4]), "a record of the array that it was in"
    assert not any(used.memory[written : written + 4]), "a page of the array that it was in"
    data = config.regions.data.offset
    assert bytes(used.memory[data:]) == noise[data:]


# -- examine -------------------------------------------------------------------------------------


def test_examine_tells_what_a_member_says() -> None:
    members = rams(3)
    config = create(members)
    region = config.regions.pages("written")
    content = encode_page(0, 5, "written", bytes(PAYLOAD_BYTES), config.array_uuid)
    members[1].try_writev(region.slot_offset(0, 0), [content])
    members[1].try_writev(region.slot_offset(0, 1), [content[:-1] + b"\1"])
    said = run(examine, members[1])
    assert (said["valid"], said["problem"]) == (True, None)
    assert (said["role"], said["state"], said["format"]) == (1, "active", "1.0")
    assert said["array_uuid"] == config.array_uuid
    assert said["member_uuid"] == config.record(1).member_uuid
    assert (said["layout"], said["chunk_bytes"], said["events"]) == ("raid5", 4096, 1)
    assert said["regions"]["data"] == [config.regions.data.offset, config.regions.data.length]
    assert [slot["state"] for slot in said["slots"]] == ["valid", "valid"]
    assert said["carries"] == "a raidx member"
    pages = {report["kind"]: report for report in said["pages"]}
    assert (pages["written"]["written"], pages["written"]["damaged"]) == (1, ["page 0 slot 1"])
    assert pages["bitmap"]["written"] == 0


def test_examine_tells_of_damage_instead_of_failing() -> None:
    members = rams(3)
    create(members)
    for at in (0, 64 << 10):
        members[0].memory[at + 200] ^= 1
    said = run(examine, members[0])
    assert said["valid"] is False
    assert said["problem"].startswith("no superblock is valid"), "the path is named beside it"
    assert said["slots"][0]["state"] == "damaged"
    assert "checksum" in said["slots"][0]["problem"]


def test_examine_tells_of_strangers_and_of_truncated_members() -> None:
    stranger = RamMember(MIB, name="s")
    stranger.memory[:4] = b"XFSB"
    said = run(examine, stranger)
    assert said["valid"] is False
    assert said["problem"] == "no member of a raidx array"
    assert said["carries"] == "an XFS file system"
    assert [slot["state"] for slot in said["slots"]] == ["other", "empty"]
    assert run(examine, RamMember(512))["valid"] is False

    members = rams(3)
    create(members)
    short = RamMember(MIB, name="short")
    short.memory[:] = members[0].memory[:MIB]
    said = run(examine, short)
    assert said["valid"] is True
    assert "1048576 bytes, but the array needs" in said["problem"]


def test_what_was_created_assembles() -> None:
    members = rams(4)
    config = create(members)
    assembly = run(assemble, list(reversed(members)))
    assert assembly.config == config
    assert [assembly.by_role[role].path for role in range(4)] == ["d0", "d1", "d2", "d3"]
    assert assembly.warnings == []
