"""The lock of an export: a heartbeat in its superblock area, because NBD has no locks.

A daemon that holds a member writes this page every HEARTBEAT_S seconds, with a number that counts
up (FORMAT.md, "The heartbeat"; ZFS calls it multihost, ext4 MMP). Another daemon that wants the
member watches the page: if it changes within STALE_S, the member is in use; if not, its holder is
gone.

    holder          writes ... writes ... writes              writes
    other daemon         reads ------- reads: changed      -> refused
    after a crash   writes (killed)
    other daemon         reads ------------------ reads: unchanged for STALE_S -> takes over

Laws:
 1. A claim is written, left alone for CLAIM_S, and read back: of two that claim at once only the
    last one holds the member. No other write goes out before (`NbdMember`).
 2. A holder whose last heartbeat is older than FENCE_S writes nothing else until it has read its
    own page again. FENCE_S is less than STALE_S: no other daemon can have taken over before. The
    age is looked at when a write is sent; what was sent before and may still be on this machine is
    dropped in time (`Lock.guard`).
 3. A holder that finds the page of another one never writes again.
 4. A page is written only within CLAIM_S after a look that allowed it, or while law 2 allows
    writes. Otherwise a process that was stopped in between would write over a claim which its
    owner has read back already, and both would hold the member.
 5. A page of a holder that was cut off on its way may land late, over that of another holder that
    took over meanwhile. Such a holder, if its last heartbeat is younger than STALE_S, puts its page
    back. So after a pause, if such a late page may exist, a holder that finds its own page knows
    nothing before it has watched the page for STALE_S, as any other daemon would.

Times are those of a clock that goes on in a suspend. A packet on its way, or a process that is
stopped between asking and sending, only the server can refuse (examples/network.md).

Cost: one read and one write of a page in HEARTBEAT_S seconds for each member; all members of a
process wake together. Opening a member costs one read and one write; one whose holder died costs
STALE_S, once for all members of that holder.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from raidx_fuse.errors import BusyError, InUseError
from raidx_fuse.members.nbd.protocol.wire import shown

SUPERBLOCK_MAGIC = b"RAIDX-SB"  # at the beginning of a slot: the export is a member already
SUPERBLOCK_OFFSETS = (0, 64 << 10)
HEARTBEAT_OFFSET = 124 << 10  # the last page of the second superblock slot
HEARTBEAT_BYTES = 4096
HEARTBEAT_S = 2.0
STALE_S = 10.0
FENCE_S = 6.0
CLAIM_S = 0.5
# What was sent before and has no answer is dropped so long after the last heartbeat, as late as is
# safe: over TCP a server that does not take bytes for longer than that is a lost one.
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
class Heartbeat:
    """The content of the page: *holder* is unique for a process, *text* is its name in messages."""

    holder: bytes
    number: int
    held: bool
    text: str

    def encode(self) -> bytes:
        text = self.text.encode()[:_TEXT_BYTES_MAX]
        state = HELD if self.held else RELEASED
        fields = FIELDS.pack(MAGIC, 0, state, self.holder, self.number, len(text))
        page = bytearray((fields + text).ljust(HEARTBEAT_BYTES, b"\0"))
        struct.pack_into("<I", page, CRC_OFFSET, crc32c.crc32c(bytes(page)))
        return bytes(page)


def decode_heartbeat(page: bytes) -> Heartbeat | None:
    """Return the heartbeat in *page*, None if there is no valid one."""
    if len(page) != HEARTBEAT_BYTES or not page.startswith(MAGIC):
        return None
    _, crc, state, holder, number, length = FIELDS.unpack_from(page)
    bare = bytearray(page)
    struct.pack_into("<I", bare, CRC_OFFSET, 0)
    if crc != crc32c.crc32c(bytes(bare)) or length > _TEXT_BYTES_MAX:
        return None
    text = shown(page[FIELDS.size : FIELDS.size + length])
    return Heartbeat(holder, number, state == HELD, text)


def in_use(path: str, heartbeat: Heartbeat) -> BusyError:
    return InUseError(f"{path}: in use by {heartbeat.text}", action="unmount it there first")
