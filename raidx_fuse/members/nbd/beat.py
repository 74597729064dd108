"""The lock of an export: a beat in its superblock area, because NBD has no locks.

A daemon that holds a member writes this page every BEAT_S seconds, with a number that counts up
(FORMAT.md, "The beat"; ZFS calls it multihost, ext4 MMP). Another daemon that wants the member
watches the page: if it changes within STALE_S, the member is in use; if not, its holder is gone.

    holder          beat ... beat ... beat              beat
    other daemon         reads ------- reads: changed      -> refused
    after a crash   beat (killed)
    other daemon         reads ------------------ reads: unchanged for STALE_S -> takes over

Laws:
 1. A claim is written, left alone for CLAIM_S, and read back: of two that claim at once only the
    last one holds the member. No other write goes out before (`NbdMember`).
 2. A holder that could not beat for FENCE_S writes nothing until it has read its own page again.
    FENCE_S is less than STALE_S: nobody can have taken over before. That is asked when a write is
    sent; what was sent before and may still be on this machine is dropped in time (`Lock.guard`).
 3. A holder that finds the page of another one never writes again.
 4. A page is written only within CLAIM_S after a look that allowed it, or while law 2 allows
    writes. Otherwise a process that was stopped in between would write over a claim which its
    owner has read back already, and both would hold the member.

 5. A page of ours that was cut off on its way may land late, over that of a holder that took over
    meanwhile. Such a holder, if its last beat is younger than STALE_S, puts its page back. So after
    a pause, if such a page of ours is on its way, finding our page says nothing before we have
    watched it for STALE_S, as anybody else would.

Times are those of a clock that goes on in a suspend. A packet on its way, or a process that is
stopped between asking and sending, only the server can refuse (examples/network.md).

Cost: one read and one write of a page in BEAT_S seconds for each member; all members of a process
wake together. Opening a member costs one read and one write; one whose holder died costs STALE_S,
once for all members of that holder.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from raidx_fuse.errors import BusyError, InUseError
from raidx_fuse.members.nbd.protocol.wire import shown

SUPERBLOCK_MAGIC = b"RAIDX-SB"  # at the beginning of a slot: the export is a member already
SUPERBLOCK_OFFSETS = (0, 64 << 10)
BEAT_OFFSET = 124 << 10  # the last page of the second superblock slot
BEAT_BYTES = 4096
BEAT_S = 2.0
STALE_S = 10.0
FENCE_S = 6.0
CLAIM_S = 0.5
# What was sent before and has no answer is dropped so long after the last beat, as late as is safe:
# over TCP a server that stands still longer than that while it is written to is a lost one.
DROP_S = 9.0
GRACE_S = 0.5  # before that, after a pause of this process: all answers may be there already
LOOKS_MAX = 10  # at pages that came too late for a write (law 4)
LOOK_S = 1.0  # between two looks at the page of another holder

MAGIC = b"RAIDX-HB"
FIELDS = struct.Struct("<8sII16sQI")  # magic, crc, state, holder, number, size of the text
CRC_OFFSET = 8
RELEASED, HELD = 0, 1
_TEXT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class Beat:
    """The content of the page: *holder* is unique for a process, *text* names it for people."""

    holder: bytes
    number: int
    held: bool
    text: str

    def encode(self) -> bytes:
        """Return the page."""
        text = self.text.encode()[:_TEXT_BYTES_MAX]
        state = HELD if self.held else RELEASED
        fields = FIELDS.pack(MAGIC, 0, state, self.holder, self.number, len(text))
        page = bytearray((fields + text).ljust(BEAT_BYTES, b"\0"))
        struct.pack_into("<I", page, CRC_OFFSET, crc32c.crc32c(bytes(page)))
        return bytes(page)


def decode_beat(page: bytes) -> Beat | None:
    """Return the beat in *page*, None if there is no valid one."""
    if len(page) != BEAT_BYTES or not page.startswith(MAGIC):
        return None
    _, crc, state, holder, number, length = FIELDS.unpack_from(page)
    bare = bytearray(page)
    struct.pack_into("<I", bare, CRC_OFFSET, 0)
    if crc != crc32c.crc32c(bytes(bare)) or length > _TEXT_BYTES_MAX:
        return None
    text = shown(page[FIELDS.size : FIELDS.size + length])
    return Beat(holder, number, state == HELD, text)


class Holder:
    """One process that holds members: *uid* is unique, *text* names it, *round* counts its beats.

    All members of a process beat with the same number. So if one member shows that a foreign holder
    is dead, its others with the same number need not be watched as well.
    """

    def __init__(self, uid: bytes, text: str) -> None:
        self.uid = uid
        self.text = text
        self.round = 1
        self.dead: dict[bytes, int] = {}  # holder -> the number of its last beat

    def beat(self, held: bool = True) -> Beat:
        """Return the beat of the current round."""
        return Beat(self.uid, self.round, held, self.text)

    def knows_dead(self, beat: Beat) -> bool:
        """Return whether *beat* is of the last rounds of a holder that is known to be dead."""
        last = self.dead.get(beat.holder)
        return last is not None and abs(beat.number - last) <= 1


def in_use(path: str, beat: Beat) -> BusyError:
    return InUseError(f"{path}: in use by {beat.text}", action="unmount it there first")
