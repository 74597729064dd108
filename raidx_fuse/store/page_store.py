"""A bit table in memory, and its checksummed pages with two slots on every member.

A page is written to the slot that does not hold its last durable copy. A power cut during the write
therefore leaves that copy intact. A page that was saved before a flush began, and not again since,
is durable when the flush ends. A page whose save failed is saved to the same slot again, because
its last durable copy is in the other slot. Content is written elsewhere: store/cells.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import trio
from numpy.typing import NDArray

from raidx_fuse.errors import AssemblyError, MemberError, Reason
from raidx_fuse.format.pages import encode_page, load_pages, nothing_loaded
from raidx_fuse.format.regions import PAYLOAD_BYTES, page_count
from raidx_fuse.layouts.numbers import Role, by_role
from raidx_fuse.members.base import Member
from raidx_fuse.store.buffers import Zeroed, extend_zeroed, zeroed
from raidx_fuse.store.io_tuples import MemberIO
from raidx_fuse.store.member_set import MemberSet


class PageStore:
    """The pages of one region, with space for *bits* bits.

    Attributes: *payload* (the content of all pages, concatenated; `save` writes pages of it);
    *damaged* (one text for each damage found at the start).
    """

    def __init__(self, member_set: MemberSet, kind: str, bits: int) -> None:
        self.member_set = member_set
        self.kind = kind
        self.region = member_set.config.regions.pages(kind)
        self.payload_bytes = PAYLOAD_BYTES
        self.pages = min(self.region.pages, page_count(bits))
        self.payload = zeroed(self.pages * PAYLOAD_BYTES)
        self.damaged: list[str] = []
        self._uneven: set[tuple[int, Role]] = set()  # (page, role) that lacks the newest copy
        self.generations: dict[int, int] = {}
        self._slots: dict[int, int] = {}  # page -> slot of its newest copy
        self._loose: set[int] = set()  # newest copy not known to be durable
        self._durable: dict[int, int] = {}  # page -> generation that every present member has
        self._flushing: frozenset[int] = frozenset()
        self._saved_since: set[int] = set()
        self._unsaved: set[int] = set()  # pages being saved, or whose save failed
        self._saving = trio.Lock()
        self._settled: Callable[[int], bytes] = self.content
        member_set.page_stores.append(self)
        member_set.flush_observers.append(self)

    async def load(self) -> None:
        """Load the newest valid copy of every page from the present members.

        A page of which every member has only a torn first copy was never durable; it counts as
        never written. Raises AssemblyError in three cases:

        * no member can be read;
        * both slots of a page are damaged on a member and no member has a valid copy;
        * a member has an older copy of a page than every member is known to have had.
        """
        loaded = []
        unread = []
        space = np.frombuffer(self.payload, np.uint8).reshape(self.pages, PAYLOAD_BYTES)
        newest = nothing_loaded(space, self.pages)  # in place: maps can be large
        lost: set[int] = set()
        for role, queue in by_role(self.member_set.queues):
            if queue is None:
                continue
            try:
                found = await load_pages(
                    queue.member,
                    self.region,
                    self.member_set.config.array_uuid,
                    self.pages,
                    newest=newest,
                )
            except MemberError as error:
                self.damaged.append(f"{self.kind} map: {error.message}")
                unread.append(role)
                continue
            loaded.append((role, queue.member.path, found))
            damaged = {(page, slot) for page, slot, _generation in found.damaged}
            for page, slot in sorted(damaged):
                self.damaged.append(
                    f"{queue.member.path}: {self.kind} map: page {page}, slot {slot} is damaged"
                )
                if (page, 1 - slot) in damaged:
                    lost.add(page)
        if not loaded:
            raise AssemblyError(f"the {self.kind} map cannot be read from any member")
        gone = sorted(page for page in lost if not newest.generations[page])
        if gone:
            raise AssemblyError(
                f"page {gone[0]} of the {self.kind} map is damaged on every member",
                action="attach the missing members",
                reason=Reason.MEMBERS_MISSING,
            )
        older = np.maximum.reduce([found.older for _, _, found in loaded])
        for role, path, found in loaded:
            behind = (found.generations < older) & (found.generations > 0)
            if behind.any():
                raise AssemblyError(
                    f"{path} is an old copy of this member: page {int(behind.argmax())} of its "
                    f"{self.kind} map is older than what every member had",
                    action="give the member itself, or leave it out to start without it",
                    reason=Reason.OUTDATED,
                )
            differing = np.flatnonzero(found.generations != newest.generations)
            self._uneven.update((int(page), role) for page in differing)
        for role in unread:
            self._uneven.update((page, role) for page in newest.present())
        for page in newest.present():
            self.generations[page] = int(newest.generations[page])
            self._slots[page] = int(newest.slots[page])
        self._durable = {page: int(older[page]) for page in newest.present()}

    def durable_generations(self) -> dict[int, int]:
        """Return, for each page, the least generation that a member in use has of it."""
        return dict(self._durable)

    async def is_behind(self, member: Member, least: Mapping[int, int]) -> bool:
        """Return whether *member* has an older copy of a page than *least* says. MemberError."""
        uuid = self.member_set.config.array_uuid
        found = await load_pages(member, self.region, uuid, self.pages, payloads=False)
        return any(found.generations[page] < generation for page, generation in least.items())

    async def make_room(self, bits: int) -> None:
        """Extend the table to *bits* bits; it never shrinks. What is added is empty, also there.

        The array may have been larger, and have left pages behind the table: a page that is saved
        must be newer than what any member holds in its place. Raises MemberError.
        """
        first, pages = self.pages, min(self.region.pages, page_count(bits))
        if pages <= first:
            return
        uuid = self.member_set.config.array_uuid
        for queue in self.member_set.queues:
            if queue is None:
                continue
            found = await load_pages(queue.member, self.region, uuid, pages, payloads=False)
            for page in found.present():
                generation = int(found.generations[page])
                if page >= first and generation > self.generations.get(page, 0):
                    self.generations[page], self._slots[page] = generation, int(found.slots[page])
        extend_zeroed(self.payload, pages * PAYLOAD_BYTES)  # views are short-lived
        self.pages = pages
        await self.save([page for page in range(first, pages) if page in self.generations])

    def move_to(self, offset: int) -> None:
        """Have the pages from byte *offset* of the members on, where none of the array lies yet."""
        self.region = replace(self.region, offset=offset)

    async def heal(self) -> None:
        """Copy the newest pages to members that lack them after a power cut, and flush.

        Content that was read once must be found again when the members that held it are lost. The
        copy goes to the same slot, so that the other slot is the same on all members, too.
        """
        requests: list[MemberIO] = []
        for page, role in sorted(self._uneven):
            if page in self.generations:
                content = self._encode(page, self.content(page))
                offset = self.region.slot_offset(page, self._slots[page])
                requests.append((role, offset, [content], len(content)))
        self._uneven.clear()
        if requests:
            await self.member_set.write(requests)
            await self.member_set.flush()
        self._durable = dict(self.generations)

    async def save(self, pages: Sequence[int]) -> None:
        """Write *pages* as they are now to every present member; durable after the next flush."""
        contents = {page: self.content(page) for page in pages}
        await self.save_as(contents, contents.__getitem__)

    def content(self, page: int) -> bytes:
        return bytes(self.payload[page * PAYLOAD_BYTES : (page + 1) * PAYLOAD_BYTES])

    def settle_by(self, content: Callable[[int], bytes]) -> None:
        """Let `save_all` write pages as *content* returns them: without what only records say."""
        self._settled = content

    async def save_as(self, pages: Iterable[int], content: Callable[[int], bytes]) -> None:
        """Write *pages* as *content* returns them, which need not be as they are in memory.

        One call after another, as they came: a member may turn round two writes to one slot, and
        the older content would stand there last. *content* is asked when it is the call's turn.
        """
        if self._saving.locked():
            await self._saving.acquire()
        else:
            self._saving.acquire_nowait()  # without a suspension
        try:
            await self._save_now({page: content(page) for page in pages})
        finally:
            self._saving.release()

    async def _save_now(self, pages: Mapping[int, bytes]) -> None:
        requests: list[MemberIO] = []
        for page, payload in pages.items():
            slot = self._slots.get(page, 1)
            if page not in self._loose:
                slot = 1 - slot
            self._slots[page] = slot
            self._loose.add(page)
            self._unsaved.add(page)
            self._saved_since.add(page)
            generation = self.generations.get(page, 0) + 1
            self.generations[page] = generation
            content = self._encode(page, payload)
            offset = self.region.slot_offset(page, slot)
            requests.extend(
                (role, offset, [content], len(content))
                for role, queue in by_role(self.member_set.queues)
                if queue is not None
            )
        if requests:
            await self.member_set.write(requests)
        self._unsaved.difference_update(pages)

    def _encode(self, page: int, payload: bytes) -> bytes:
        uuid = self.member_set.config.array_uuid
        return encode_page(page, self.generations[page], self.kind, payload, uuid)

    async def save_all(self) -> None:
        """Write every page that was ever saved, because a new member must hold them, too."""
        await self.save_as(sorted(self.generations), self._settled)

    def flush_begins(self) -> None:
        """Note which pages the flush that begins now covers."""
        self._flushing = frozenset(self._loose - self._unsaved)
        self._saved_since = set()

    def flush_ends(self) -> None:
        """Count the covered pages as durable, except those saved again since the flush began."""
        for page in self._flushing - self._saved_since:
            self._durable[page] = self.generations[page]
        self._loose -= self._flushing - self._saved_since
        self._flushing = frozenset()


def set_bits_in(bits: Zeroed, first: int, end: int) -> NDArray[np.int64]:
    """Return which of the bits *first* .. *end* - 1 of *bits* are set, in ascending order."""
    packed = np.frombuffer(bits, np.uint8)[first >> 3 : (end + 7) >> 3]
    occupied = np.flatnonzero(packed)  # most bytes of a large map are zero: skip them
    found = np.flatnonzero(np.unpackbits(packed[occupied], bitorder="little"))
    numbers: NDArray[np.int64] = (occupied[found >> 3] << 3) + (found & 7) + (first & ~7)
    return numbers[(numbers >= first) & (numbers < end)]


def put_bit(bits: Zeroed, number: int, value: bool) -> None:
    if value:
        bits[number >> 3] |= 1 << (number & 7)
    else:
        bits[number >> 3] &= ~(1 << (number & 7)) & 0xFF


async def load_page_store(member_set: MemberSet, kind: str, bits: int) -> PageStore:
    """Return the page store of *kind*, loaded from the members. Raises AssemblyError."""
    pages = PageStore(member_set, kind, bits)
    await pages.load()
    return pages
