"""The look-up table (chunk table) on disk: 15 bytes for each chunk, after the data of its member.

    member:  | regions, equal on all | data: its own number of chunks | its share of the table |

The share of a member names for each of its chunks the cell that lies there. It consists of two-slot
pages (pages.py) of 270 entries. Except during an update both slots of a page have the same entries,
so that one damaged slot loses nothing. A page that was never written stands for the entries of the
greedy allocation.

    entry   cell + 1 (8 bytes, 0: free) | last access (4) | mean interval (2) | role (1)

The role guards against a share on the wrong member. *cell* is bundle * L + column.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from raidx_fuse.format.pages import PAIR_BYTES
from raidx_fuse.format.regions import NO_REGION, PAYLOAD_BYTES, REGION_KINDS, PageRegion
from raidx_fuse.layouts.numbers import Role, by_role

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raidx_fuse.format.configuration.config import ArrayConfig, MemberRecord

ENTRY_DTYPE = [("cell", "<u8"), ("last", "<u4"), ("interval", "<u2"), ("role", "u1")]
ENTRY = struct.Struct("<QIHB")
"""cell + 1, last access, mean interval, role; the same fields as `ENTRY_DTYPE`."""
ENTRY_BYTES = ENTRY.size
PAGE_ENTRIES = PAYLOAD_BYTES // ENTRY_BYTES
KIND = "table"


def share_pages(chunks: int) -> int:
    """Return how many pages the share of a member of *chunks* chunks has."""
    return -(-chunks // PAGE_ENTRIES)


def share_bytes(chunks: int) -> int:
    """Return the size of the share of a member of *chunks* chunks, both slots of every page."""
    return share_pages(chunks) * PAIR_BYTES


def chunks_that_fit(member_bytes: int, data_offset: int, chunk_bytes: int) -> int:
    """Return how many chunks fit on a member together with its share of the table."""
    room = member_bytes - data_offset
    chunks = max(0, room // chunk_bytes)
    while chunks and chunks * chunk_bytes + share_bytes(chunks) > room:
        excess = chunks * chunk_bytes + share_bytes(chunks) - room
        chunks -= max(1, excess // (chunk_bytes + PAIR_BYTES))
    return chunks


def chunks_on(config: ArrayConfig, member_bytes: int) -> int:
    """Return how many chunks a member of *member_bytes* has in the raidx array of *config*.

    What is behind the data region has no checksums, so it is not used if there are any.
    """
    data, size = config.regions.data, config.chunk_bytes
    chunks = chunks_that_fit(config.usable_bytes(member_bytes), data.offset, size)
    return chunks if config.regions.sums == NO_REGION else min(chunks, data.length // size)


def share_region(data_offset: int, chunk_bytes: int, chunks: int) -> PageRegion:
    return PageRegion(data_offset + chunks * chunk_bytes, share_pages(chunks), KIND)


def shares_of(config: ArrayConfig) -> dict[Role, PageRegion]:
    """Return the share of every role of *config*; empty for layouts without a table."""
    return {
        role: share_region(config.regions.data.offset, config.chunk_bytes, chunks)
        for role, chunks in by_role(config.params.get("chunk_counts", ()))
    }


def page_regions_of(config: ArrayConfig, role: Role) -> list[PageRegion]:
    """Return every region of pages that the member in *role* has (-1: one without a role)."""
    regions = [config.regions.pages(kind) for kind in REGION_KINDS]
    return regions + [share for holder, share in shares_of(config).items() if holder == role]


def bytes_needed(config: ArrayConfig, role: Role | None) -> int:
    """Return the size in bytes that the member in *role* needs; None: a spare, for one role."""
    shares = shares_of(config)
    if not shares:
        return config.regions.end
    ends = {r: share.offset + share.length for r, share in shares.items() if share.pages}
    return ends[role] if role is not None and role in ends else min(ends.values())


def bytes_needed_by(config: ArrayConfig, record: MemberRecord | None) -> int:
    """Return the size in bytes that the member of *record* needs; None: one of no role.

    A spare of a raidx layout may be smaller than every member.
    """
    if record is None or record.role >= 0:
        return bytes_needed(config, None if record is None else record.role)
    return min(bytes_needed(config, None), record.size_bytes)


def encode_entries(
    cells: NDArray[np.int64], last: NDArray[np.uint32], interval: NDArray[np.uint16], role: Role
) -> bytes:
    """Return the payload of a page for a member in *role*.

    *cells* are the cells at the chunks of the page, -1 for free; *last* and *interval* likewise.
    """
    entries = np.zeros(len(cells), ENTRY_DTYPE)
    entries["cell"] = (cells + 1).astype(np.uint64)
    entries["last"] = last
    entries["interval"] = interval
    entries["role"] = role
    return entries.tobytes().ljust(PAYLOAD_BYTES, b"\0")


def decode_entries(payload: Any, chunks: int) -> NDArray[Any]:
    """Return the first *chunks* entries of a page's payload, fields as in `ENTRY_DTYPE`."""
    return np.frombuffer(payload, ENTRY_DTYPE, count=chunks)
