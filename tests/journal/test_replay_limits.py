"""Recovery accepts only records of log members, and only what an array can have written."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import crc32c
import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import AssemblyError, MemberError, OtherVersionError
from raidx_fuse.format.log_record import (
    DATA,
    HEAD,
    MARK,
    PARITY_BEFORE,
    TABLE,
    UNVERIFIED,
    UNWRITTEN,
    WRITTEN,
    RecordBody,
    encode_record,
    record_bytes,
)
from raidx_fuse.format.pages import encode_page, load_pages
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.ram import RamMember
from tests.support.arrays import jobs_ended, parity_holds, ram_array

MIB = 1 << 20
CHUNK = 4096
Entries = Sequence[tuple[int, int, int, int]]  # kind, role, length, offset


def copy_of(member: RamMember) -> RamMember:
    twin = RamMember(member.size_bytes, name=member.path)
    twin.memory[:] = member.memory
    return twin


class Crashed:
    """The members of an array of *layout* as a crash left them, with records to be replayed."""

    def __init__(self, layout: str, width: int) -> None:
        self.layout, self.width = layout, width
        self.members: list[RamMember] = []
        self.forge: Callable[[Entries, int, int], bytes]

    async def make(self, stranger: int | None = None) -> Crashed:
        """Make them; *stranger* is the role of a member that has no part of the log."""
        members = await ram_array(self.layout, self.width)
        async with open_array(members) as array:
            if stranger is not None:
                journal = array.context.journal
                others = tuple(Role(role) for role in range(self.width) if role != stranger)
                await journal.drain()
                journal.log_members.take(others)
                journal.ring.holders = journal.log_members.holders()
                await array.write(0, b"0")
                await journal.place()  # saves the head page, which named it until now
            for chunk in range(5):
                await array.write(chunk * CHUNK, b"%d" % chunk * 512)
            await array.flush()
            self.members = [copy_of(member) for member in members]
            self._note(array)
        return self

    def _note(self, array: Array) -> None:
        ring = array.context.journal.ring
        epoch, sequence, position, name = ring.epoch, ring.next_sequence, ring.position, ring.array
        self.at = ring.offset + position % ring.capacity
        self.data_offset = array.member_set.data_offset
        self.roles = array.context.journal.log_members.at(self.at)
        self.head = array.member_set.config.regions.pages("journal")
        self.uuid = array.uuid

        def forge(entries: Entries, data_bytes: int, skip: int = 0) -> bytes:
            fields = [value for entry in entries for value in entry]
            body = RecordBody(fields, b"", [b"\xee" * data_bytes], data_bytes)
            return encode_record(epoch, sequence + skip, position, name, body)

        self.forge = forge

    def plant(self, role: int, entries: Entries, data_bytes: int = 0) -> None:
        record = self.forge(entries, data_bytes, 0)
        assert len(record) == record_bytes(len(entries), data_bytes)
        self.members[role].memory[self.at : self.at + len(record)] = record

    def content(self) -> list[bytes]:
        return [bytes(member.memory) for member in self.members]


SUPERBLOCKS = [(DATA, role, CHUNK, slot << 16) for role in range(3) for slot in (0, 1)]


@pytest.mark.parametrize("layout", ["raid5", "raid4", "rdp", "raid0", "raidx-parity"])
async def test_only_members_of_the_log_are_believed(layout: str) -> None:
    """One record behind the last, on a member that has no log: not even looked at."""
    stranger = 4
    crashed = await Crashed(layout, 5).make(stranger)
    place = crashed.data_offset + 3 * CHUNK
    crashed.plant(stranger, [(DATA, role, CHUNK, place) for role in range(5)], 5 * CHUNK)
    async with open_array(crashed.members) as array:
        assert array.replayed is not None
        for chunk in range(5):
            assert bytes(await array.read(chunk * CHUNK, 512)) == b"%d" % chunk * 512
        members = [bytes(member.memory) for member in crashed.members]
        assert not any(b"\xee" * 512 in m[place : place + CHUNK] for m in members)


async def test_the_same_record_on_a_member_of_the_log_is_redone() -> None:
    """Else the test above shows nothing."""
    crashed = await Crashed("raid5", 5).make()
    place = crashed.data_offset + 9 * CHUNK
    crashed.plant(crashed.roles[1], [(DATA, 0, CHUNK, place)], CHUNK)
    async with open_array(crashed.members):
        assert bytes(crashed.members[0].memory[place : place + CHUNK]) == b"\xee" * CHUNK


BEYOND = 1 << 40
WRONG: list[tuple[str, str, Entries, int]] = [
    ("superblocks", "raid5", SUPERBLOCKS, 6 * CHUNK),
    ("before the data", "raid5", [(DATA, 0, 512, 4096)], 512),
    ("behind the data", "raid5", [(DATA, 0, 512, MIB - 256)], 512),
    ("beyond a member", "raid5", [(DATA, 0, 512, BEYOND)], 512),
    ("no such role", "raid5", [(DATA, 9, 512, MIB // 2)], 512),
    ("role 65535", "raid5", [(DATA, 65535, 512, MIB // 2)], 512),
    ("no bytes", "raid5", [(DATA, 0, 0, MIB // 2)], 0),
    ("behind the share's chunks", "raidx-parity", [(DATA, 0, 512, MIB - 4096)], 512),
    ("a chunk too many", "raid5", [(WRITTEN, 0, 1, BEYOND)], 0),
    ("too many chunks", "raid5", [(WRITTEN, 0, (1 << 32) - 1, 0)], 0),
    ("no chunks", "raid5", [(WRITTEN, 0, 0, 1)], 0),
    ("a chunk unwritten", "raid5", [(UNWRITTEN, 0, 1, BEYOND)], 0),
    ("a wrapped chunk", "raid5", [(UNWRITTEN, 0, 2, (1 << 64) - 1)], 0),
    ("no table", "raid5", [(TABLE, 0, 1, 1)], 0),
    ("a cell too many", "raidx-parity", [(TABLE, 0, 1, BEYOND)], 0),
    ("a chunk of a member too many", "raidx-parity", [(TABLE, 0, BEYOND >> 10, 1)], 0),
    ("a role too many", "raidx-parity", [(TABLE, 200, 1, 1)], 0),
    ("no restripe", "raid5", [(MARK, 0, 0, 1)], 0),
    ("unverified before the data", "raid5", [(UNVERIFIED, 0, 4096, 4096)], 0),
    ("unverified without a role", "raid5", [(UNVERIFIED, 9, 4096, MIB // 2)], 0),
    ("unverified without an end", "raid5", [(UNVERIFIED, 0, (1 << 32) - 4096, MIB // 2)], 0),
    ("more unverified than the log has", "raid5", [(UNVERIFIED, 0, MIB // 4, MIB // 2)], 0),
]


@pytest.mark.parametrize(
    ("layout", "entries", "data_bytes"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
async def test_an_impossible_record_is_refused_and_nothing_written(
    layout: str, entries: Entries, data_bytes: int
) -> None:
    crashed = await Crashed(layout, 5).make()
    for role in crashed.roles:
        crashed.plant(role, entries, data_bytes)
    before = crashed.content()
    for start in (open_array(crashed.members), open_array(crashed.members, read_only=True)):
        with pytest.raises(AssemblyError, match="of the journal is impossible") as caught:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(start)
        assert "\n" not in str(caught.value)
    with pytest.raises(AssemblyError):
        await check_members(crashed.members)
    assert crashed.content() == before


@pytest.mark.parametrize("source", ["record", "map"])
async def test_a_chunk_that_the_image_does_not_have_yet_is_unwritten_when_it_gets_it(
    source: str,
) -> None:
    """Its place has old bytes: with a bit in the written map they would be read."""
    crashed = await Crashed("raidx-copy", 5).make()
    async with open_array([copy_of(member) for member in crashed.members]) as array:
        before = array.context.layout.chunks
    if source == "record":
        for role in crashed.roles:
            crashed.plant(role, [(WRITTEN, 0, 2, before)])
    else:
        async with open_array(crashed.members) as array:
            await array.context.written.mark([before, before + 1])
    new = RamMember(2 * MIB, name="new")
    new.memory[:] = b"\xee" * len(new.memory)
    new.reads_zero = False
    async with open_array(crashed.members) as array:
        await array.grow([new])
        await jobs_ended(array)
        more = (array.context.layout.chunks - before) * CHUNK
        assert more > 0
        assert not any(bytes(await array.read(before * CHUNK, more)))
    async with open_array([*crashed.members, new]) as array:
        assert not any(bytes(await array.read(before * CHUNK, more)))
        await parity_holds(array)


async def test_an_impossible_record_beside_a_good_one_is_passed_over() -> None:
    crashed = await Crashed("raid5", 5).make()
    place = crashed.data_offset + 9 * CHUNK
    crashed.plant(crashed.roles[0], [(DATA, 9, 512, place)], 512)
    crashed.plant(crashed.roles[1], [(DATA, 0, CHUNK, place)], CHUNK)
    async with open_array(crashed.members):
        assert bytes(crashed.members[0].memory[place : place + CHUNK]) == b"\xee" * CHUNK


async def test_a_record_that_claims_more_entries_than_it_has_is_refused() -> None:
    crashed = await Crashed("raid5", 5).make()
    whole = crashed.forge([(DATA, 0, 512, MIB // 2)], 512, 0)
    for count in (2, 50, (1 << 32) - 1):
        record = bytearray(whole)
        struct.pack_into("<I", record, 36, count)
        struct.pack_into("<I", record, 4, 0)
        struct.pack_into("<I", record, 4, crc32c.crc32c(record[: 64 + 16 + 512]))
        crashed.members[crashed.roles[0]].memory[crashed.at : crashed.at + len(record)] = record
        await _refused(crashed.members, "record 6 of the journal")


async def _refused(members: Sequence[RamMember], words: str) -> None:
    """Check that the array of *members* does not start, and that nothing is written then."""
    before = [bytes(member.memory) for member in members]
    with pytest.raises(OtherVersionError, match=words):
        async with open_array(members):
            raise AssertionError("it starts")
    assert [bytes(member.memory) for member in members] == before


@pytest.mark.parametrize("unknown", ["entry", "header", "before"])
async def test_a_record_that_is_not_known_is_no_end_of_the_log(unknown: str) -> None:
    """What was flushed behind it would be gone. Torn, or of another array, it is the end."""
    crashed = await Crashed("raid5", 5).make()
    data = (DATA, 0, 512, MIB // 2)
    kind = PARITY_BEFORE if unknown == "before" else 10
    record = bytearray(crashed.forge([(kind, 0, 0, 0), data], 512, 0))
    if unknown == "header":
        record = bytearray(crashed.forge([data], 512, 0))
        struct.pack_into("<Q", record, 40, 1)
        body = int.from_bytes(record[32:36], "little")
        struct.pack_into("<I", record, 4, 0)
        struct.pack_into("<I", record, 4, crc32c.crc32c(record[: 64 + body]))
    for role in crashed.roles:
        memory = crashed.members[role].memory
        memory[crashed.at : crashed.at + len(record)] = record
    words = {
        "entry": "an entry of kind 10, unknown to",
        "header": "an unknown header",
        "before": "record 6 of the journal is of a raidx before commit 79fb2b4; mount",
    }
    await _refused(crashed.members, words[unknown])
    for torn in (70, 500, 53):  # an entry, the content, the array
        members = [copy_of(member) for member in crashed.members]
        for role in crashed.roles:
            members[role].memory[crashed.at + torn] ^= 1
        async with open_array(members) as array:
            assert bytes(await array.read(4 * CHUNK, 3)) == b"444"


HEADS = [
    ((1 << 64) - 1, 1, 0, 0),
    (1, (1 << 64) - 1, 0, 0),
    (1, 0, 0, 0),
    (1, 1, (1 << 64) - 512, 0),
    (1, 1, 77, 0),
    (1, 1, 512, 0),  # nothing is before the first record
    (1, 5, 3 * 512, 0),  # four records take four sectors
    (1, 5, 1 << 40, 0),  # and not that many laps
    (1, 1, 0, 0, 1, 503),  # more log members than the page has room for
]


@pytest.mark.parametrize("head", HEADS)
async def test_an_impossible_head_is_refused(head: tuple[int, ...]) -> None:
    crashed = await Crashed("raid5", 5).make()
    payload = bytearray(4064)
    HEAD.pack_into(payload, 0, *(*head, 0, 0)[:6])
    for member in crashed.members:
        found = await load_pages(member, crashed.head, crashed.uuid)
        page = encode_page(0, int(found.generations[0]) + 1, "journal", payload, crashed.uuid)
        at = crashed.head.slot_offset(0, 0)
        member.memory[at : at + len(page)] = page
    before = crashed.content()
    with pytest.raises(AssemblyError, match="the head of the journal is impossible"):
        async with open_array(crashed.members):
            pass
    assert crashed.content() == before


async def test_a_head_of_before_79fb2b4_without_log_members_is_refused() -> None:
    crashed = await Crashed("raid5", 5).make()
    for member in crashed.members:
        found = await load_pages(member, crashed.head, crashed.uuid)
        payload = bytearray(found.payload[0].tobytes())
        payload[32:] = bytes(len(payload) - 32)
        page = encode_page(0, int(found.generations[0]) + 1, "journal", payload, crashed.uuid)
        at = crashed.head.slot_offset(0, 1 - int(found.slots[0]))
        member.memory[at : at + len(page)] = page
    await _refused(crashed.members, "head of the journal is of a raidx before commit 79fb2b4")


async def test_who_holds_the_log_next_is_named_before_it_has_records() -> None:
    """A rebuilt member takes its part of the log over; a cut right then finds every record."""
    members = await ram_array("raid5", 4)
    async with open_array(members[1:]) as array:
        assert array.context.journal.log_members.roles == (1, 2, 3)
        fresh = RamMember(MIB, name="fresh")
        await array.replace_disk(0, fresh)
        await jobs_ended(array)
        assert len(array.context.journal.log_members.roles) == 4
        await array.write(0, b"on the new one")
        await array.flush()
        copies = [copy_of(member) for member in (fresh, *members[2:])]
    async with open_array(copies) as array:  # without the other member of the log
        assert bytes(await array.read(0, 14)) == b"on the new one"


async def test_who_held_the_log_is_believed_when_the_log_could_not_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head page names the next holders already, and the records go on to those of before."""
    members = await ram_array("raid5", 4)
    async with open_array(members) as array:
        journal = array.context.journal
        believe_also = journal.ring.believe_also

        async def no_flush() -> None:
            raise MemberError("d2", "flush", 0, errno.EIO)

        async def then_no_flush(others: Iterable[bytes]) -> None:
            await believe_also(others)
            monkeypatch.setattr(array.member_set, "flush", no_flush)

        leaving, other = journal.log_members.at(journal.ring.next_place(CHUNK)[1])
        others = tuple(role for role in journal.log_members.roles if role != leaving)
        choose = partial(journal.log_members.take, others)
        monkeypatch.setattr(journal.log_members, "choose", choose)
        monkeypatch.setattr(journal.ring, "believe_also", then_no_flush)
        with pytest.raises(MemberError):
            await journal.reform()
        assert array.member_set.flush is no_flush, "the log did not try to move"
        monkeypatch.undo()
        assert journal.log_members.roles == (0, 1, 2, 3)
        await array.write(0, b"on those of before")
        await array.flush()
        copies = [copy_of(m) for role, m in enumerate(members) if role != other]
    async with open_array(copies) as array:  # without the other one that has the record
        assert bytes(await array.read(0, 18)) == b"on those of before"
