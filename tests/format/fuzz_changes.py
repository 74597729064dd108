"""Changes of structures of the format whose checksums are made right again."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from typing import Any

import crc32c

from raidx_fuse.format.log_record import ENTRY, ENTRY_BYTES, RECORD_HEADER, RECORD_HEADER_BYTES
from raidx_fuse.format.pages import PAGE_HEADER, PAGE_MAGIC
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_HEADER_BYTES, REGION_KINDS
from raidx_fuse.format.superblock import HEADER, HEADER_BYTES
from raidx_fuse.format.table_page import ENTRY as SHARE_ENTRY
from raidx_fuse.format.table_page import shares_of
from tests.format.fuzz_images import Image

SLOT_BYTES = 64 << 10
NUMBERS = (0, 1, 2, 3, 255, 256, 4095, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
LARGE = (1 << 40, 1 << 53, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
WEIRD: tuple[Any, ...] = (
    *(None, True, False, "", "x" * 3000, "\x1b[2J\x00", "a/b", "..", "\ud800", "raid5", "active"),
    *(-1, 0.5, 1e308, -1e308, [], {}, [[]], [0] * 300, {"": {}}, {"counts": [1], "bundles": 1}),
    *(1e400, float("nan"), 10**300),
)


def number(rng: random.Random, old: int, bits: int) -> int:
    """Return another number than *old*, most often one at an edge."""
    pick = rng.random()
    if pick < 0.3:
        new = rng.choice(NUMBERS)
    elif pick < 0.5:
        new = rng.choice(LARGE)
    elif pick < 0.8:
        new = old + rng.choice((-1, 1, -old // 2, old, 512, -512, 4096))
    else:
        new = rng.getrandbits(rng.randrange(1, bits + 1))
    return new & (1 << bits) - 1


def some_field(rng: random.Random, packer: struct.Struct, content: bytearray, at: int) -> None:
    """Change a field of the structure at *at*."""
    fields = list(packer.unpack_from(content, at))
    which = rng.randrange(len(fields))
    if isinstance(fields[which], bytes):
        fields[which] = rng.randbytes(len(fields[which]))
    else:
        codes = [code for code in packer.format if code in "BHIQ"]
        kinds = [code for code in packer.format.lstrip("<") if not code.isdigit()]
        bits = {"B": 8, "H": 16, "I": 32, "Q": 64}[kinds[which] if kinds[which] in codes else "B"]
        fields[which] = number(rng, fields[which], bits)
    packer.pack_into(content, at, *fields)


def value(rng: random.Random, old: Any) -> Any:
    """Return another JSON value than *old*."""
    if isinstance(old, bool) or rng.random() < 0.3:
        return rng.choice(WEIRD)
    if isinstance(old, int):
        new = number(rng, abs(old), 64)
        return -new if rng.random() < 0.1 else new
    if isinstance(old, str):
        return rng.choice((old[:-1], old + "0", old.upper(), rng.choice(WEIRD)))
    return rng.choice(WEIRD)


def somewhere(rng: random.Random, values: Any) -> None:
    """Change something in *values*, deep or not."""
    while True:
        keys = list(values) if isinstance(values, dict) else list(range(len(values)))
        if not keys:
            if isinstance(values, dict):
                values[rng.choice(("length", "history", "rebuild:1", "restripe", "x"))] = 1
            else:
                values.append(rng.choice(WEIRD))
            return
        key = rng.choice(keys)
        inner = values[key]
        if isinstance(inner, dict | list) and rng.random() < 0.85:
            values = inner
            continue
        if rng.random() < 0.1:
            del values[key]
        elif rng.random() < 0.1 and isinstance(values, list):
            values.append(inner)
        else:
            values[key] = value(rng, inner)
        return


def superblock(rng: random.Random, content: bytearray, seed: int) -> None:
    """Change a header, or the configuration as *seed* says: alike on all members."""
    for slot in rng.sample((0, 1), rng.choice((1, 2, 2))):
        at = slot * SLOT_BYTES
        fields = list(HEADER.unpack_from(content, at))
        if fields[0] != b"RAIDX-SB" or fields[4] > SLOT_BYTES - HEADER_BYTES:
            continue
        body = bytes(content[at + HEADER_BYTES : at + HEADER_BYTES + fields[4]])
        same = random.Random(seed)
        if same.random() < 0.8:
            with suppress(ValueError):
                values = json.loads(body)
                for _ in range(same.choice((1, 1, 2, 3))):
                    somewhere(same, values)
                if isinstance(values.get("events"), int):
                    fields[6] = values["events"] & (1 << 64) - 1
                body = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
            body = body[: SLOT_BYTES - HEADER_BYTES]
            fields[4] = len(body)
            HEADER.pack_into(content, at, *fields)
            content[at + HEADER_BYTES : at + HEADER_BYTES + len(body)] = body
        else:
            some_field(rng, HEADER, content, at)
        content[at + 12 : at + 16] = bytes(4)
        crc = crc32c.crc32c(bytes(content[at : at + HEADER_BYTES + len(body)]))
        struct.pack_into("<I", content, at + 12, crc)


def page(rng: random.Random, content: bytearray, at: int, entry: struct.Struct | None) -> None:
    """Change the page at *at*, its header or its payload, or make one."""
    if struct.unpack_from("<I", content, at)[0] != PAGE_MAGIC and rng.random() < 0.5:
        return
    if rng.random() < 0.3:
        some_field(rng, PAGE_HEADER, content, at)
    elif entry is not None and rng.random() < 0.9:
        for _ in range(rng.choice((1, 1, 2, 8))):
            space = (PAGE_BYTES - PAGE_HEADER_BYTES) // entry.size
            place = rng.choice((0, 1, rng.randrange(space)))
            some_field(rng, entry, content, at + PAGE_HEADER_BYTES + place * entry.size)
    else:
        for _ in range(rng.choice((1, 4, 40))):
            content[at + PAGE_HEADER_BYTES + rng.randrange(PAGE_BYTES - PAGE_HEADER_BYTES)] = (
                rng.randrange(256)
            )
    content[at + 4 : at + 8] = bytes(4)
    struct.pack_into("<I", content, at + 4, crc32c.crc32c(bytes(content[at : at + PAGE_BYTES])))


def pages(rng: random.Random, content: bytearray, image: Image) -> None:
    """Change a page of a map, of the journal's head, or of a share of the table."""
    regions = [image.config.regions.pages(kind) for kind in REGION_KINDS]
    shares = list(shares_of(image.config).values())
    region = rng.choice(regions * 2 + shares * 3)
    number_of = rng.randrange(min(region.pages, 2))
    entry = {"journal": struct.Struct("<Q"), "table": SHARE_ENTRY}.get(region.kind)
    for slot in rng.sample((0, 1), rng.choice((1, 2))):
        at = region.slot_offset(number_of, slot)
        if at + PAGE_BYTES <= len(content):
            page(rng, content, at, entry)


def record(rng: random.Random, content: bytearray, image: Image) -> None:
    """Plant a record behind the last one, or change one that is there."""
    log = image.config.regions.log
    if rng.random() < 0.5:
        at, size = _forged(rng, content, image)
    else:
        begins = log.offset + 2 * PAGE_BYTES
        marks = [at for at in range(begins, log.end, 512) if content[at : at + 4] == b"RDXJ"]
        if not marks:
            return
        at = rng.choice(marks)
        size = min(RECORD_HEADER_BYTES + RECORD_HEADER.unpack_from(content, at)[5], log.end - at)
        if rng.random() < 0.3:
            some_field(rng, RECORD_HEADER, content, at)
        else:
            entries = max(1, min(RECORD_HEADER.unpack_from(content, at)[6], 20))
            which = at + RECORD_HEADER_BYTES + rng.randrange(entries) * ENTRY_BYTES
            if which + ENTRY_BYTES <= log.end:
                some_field(rng, ENTRY, content, which)
    content[at + 4 : at + 8] = bytes(4)
    struct.pack_into("<I", content, at + 4, crc32c.crc32c(bytes(content[at : at + size])))


def _forged(rng: random.Random, content: bytearray, image: Image) -> tuple[int, int]:
    epoch, sequence, position = image.forge
    data_offset, end = image.config.regions.data.offset, image.config.regions.data.end
    entries = b""
    data = 0
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.randrange(1, 7)
        length = rng.choice((0, 1, 512, 4096, number(rng, 1, 32)))
        place = rng.choice((0, 1, data_offset, data_offset + 4096, end - 512, number(rng, 9, 64)))
        role = rng.choice((0, 1, 2, number(rng, 1, 16)))
        if kind == 1 and length <= 8192:
            data += length
        entries += ENTRY.pack(kind, role, length, place)
    body = entries + rng.randbytes(data)
    head = RECORD_HEADER.pack(
        *(0x4A584452, 0, epoch, sequence, position, len(body), len(entries) // ENTRY_BYTES, 0),
        bytes.fromhex(image.config.array_uuid.replace("-", "")),
    )
    at = image.ring_at
    room = image.config.regions.log.end - at
    content[at : at + min(room, len(head + body))] = (head + body)[:room]
    return at, min(room, len(head + body))


def torn(rng: random.Random, content: bytearray, image: Image) -> None:
    """Change bytes of the metadata, and no checksum."""
    for _ in range(rng.choice((1, 10))):
        content[rng.randrange(image.config.regions.data.offset)] = rng.randrange(256)


def changed(image: Image, case: int) -> dict[str, bytes]:
    """Return the members of *image*, changed as *case* says."""
    rng = random.Random(case)
    contents = {path: bytearray(content) for path, content in image.members.items()}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        seed = rng.getrandbits(32)
        hit = list(contents) if rng.random() < 0.5 else rng.sample(list(contents), 1)
        how = rng.choice(("superblock", "superblock", "page", "page", "record", "record", "torn"))
        alike = rng.getrandbits(32)
        for path in hit:
            content = contents[path]
            inner = random.Random(alike)
            if how == "superblock":
                superblock(inner, content, seed)
            elif how == "page":
                pages(inner, content, image)
            elif how == "record":
                record(inner, content, image)
            else:
                torn(inner, content, image)
    if rng.random() < 0.05:
        path = rng.choice(list(contents))
        del contents[path][rng.choice((512, 4096, SLOT_BYTES, 3 * SLOT_BYTES)) :]
    return {path: bytes(content) for path, content in contents.items()}
