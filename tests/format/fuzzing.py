"""Structures of the format, changed with their checksums made right again, and arrays of them.

A case is a number: it says which array, what of it is changed, and how. `play` looks at what comes
of it by `examine`, by `check` and by a mount. As a program: plays the cases from the first number
given to the second, every so many (the third), each within MEMORY_BYTES more address space than
before and CASE_S seconds, and prints a line for each that shows what must never be.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import crc32c
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.check import check_members
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError, single
from raidx_fuse.format.configuration.config import ArrayConfig
from raidx_fuse.format.create import create_array
from raidx_fuse.format.examine import examine
from raidx_fuse.format.log_record import ENTRY, ENTRY_BYTES, RECORD_HEADER, RECORD_HEADER_BYTES
from raidx_fuse.format.pages import PAGE_HEADER, PAGE_MAGIC
from raidx_fuse.format.regions import PAGE_BYTES, PAGE_HEADER_BYTES, REGION_KINDS
from raidx_fuse.format.superblock import HEADER, HEADER_BYTES
from raidx_fuse.format.table_page import ENTRY as SHARE_ENTRY
from raidx_fuse.format.table_page import shares_of
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run

MEMORY_BYTES = 256 << 20
CASE_S = 20
KIB = 1 << 10
CHUNK = 4096
SLOT_BYTES = 64 << 10
PATIENCE_S = 1e6  # of virtual time: what waits longer waits for ever
NUMBERS = (0, 1, 2, 3, 255, 256, 4095, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32)
LARGE = (1 << 40, 1 << 53, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
WEIRD: tuple[Any, ...] = (
    *(None, True, False, "", "x" * 3000, "\x1b[2J\x00", "a/b", "..", "\ud800", "raid5", "active"),
    *(-1, 0.5, 1e308, -1e308, [], {}, [[]], [0] * 300, {"": {}}, {"counts": [1], "bundles": 1}),
    *(1e400, float("nan"), 10**300),
)


@dataclass(frozen=True)
class Image:
    """An array at rest or as a crash left it: the *members*' contents by path, and what it was."""

    members: dict[str, bytes]
    config: ArrayConfig
    ring_at: int  # byte behind the last record
    forge: tuple[int, int, int]  # epoch, next sequence, position


def image_of(members: Sequence[RamMember], array: Array) -> Image:
    ring = array.context.journal.ring
    return Image(
        {member.path: bytes(member.memory) for member in members},
        array.member_set.config,
        ring.offset + ring.position % ring.capacity,
        (ring.epoch, ring.next_sequence, ring.position),
    )


async def _written(array: Array, count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        at = rng.randrange(max(1, array.size_bytes - 9000))
        await array.write(at, rng.randbytes(rng.choice((100, 4096, 8192))))


async def _prepared(
    layout: str,
    sizes: Sequence[int],
    then: Callable[[Array, list[RamMember]], Any],
) -> Image:
    members = [RamMember(size * KIB, name=f"d{n}") for n, size in enumerate(sizes)]
    await create_array(members, layout, name="disk", now_s=0, chunk_bytes=CHUNK)
    image: Image | None = None
    async with open_array(members) as array:
        await _written(array, 12)
        await then(array, members)
        image = image_of(members, array)
    return image


async def _crash(array: Array, _members: list[RamMember]) -> None:
    await array.flush()
    await _written(array, 5)


async def _rest(array: Array, _members: list[RamMember]) -> None:
    await trio.sleep(30)
    array.context.bad_chunks.update((3, 4, 9))
    await array.set("speed_max", "7MiB")
    await trio.sleep(30)


async def _rebuild(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "4096")
    await array.replace_disk(1, members[-1])
    await trio.sleep(3)
    await array.flush()
    await _written(array, 3)


async def _grow(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "8192")
    await array.grow(members[-1:])
    await trio.sleep(5)
    await _written(array, 3)


async def _grown(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.grow(members[-1:])
    for job in array.jobs.running():
        await job.finished.wait()
    await _written(array, 6)


async def _restripe(array: Array, members: list[RamMember]) -> None:
    members.append(RamMember(members[0].size_bytes, name="fresh"))
    await array.set("speed_max", "8192")
    await array.restripe(members[-1:], None, {})
    await trio.sleep(3)
    await _written(array, 3)


KINDS: tuple[tuple[str, tuple[int, ...], Any], ...] = (
    ("raid5", (512,) * 4, _rest),
    ("raid5", (512,) * 4, _crash),
    ("rdp", (512,) * 5, _crash),
    ("raid1", (512,) * 2, _crash),
    ("raid0", (512,) * 2, _rest),
    ("raid5", (512,) * 4, _rebuild),
    ("raid4", (512,) * 3, _grow),
    ("raid5", (512,) * 3, _restripe),
    ("raidx-parity", (512, 640, 560, 520), _crash),
    ("raidx-parity", (512, 640, 560, 520), _grown),
    ("raidx-copy", (512, 640, 560), _grow),
)


def prepare() -> list[Image]:
    """Return the arrays that cases begin with."""

    async def main() -> list[Image]:
        return [await _prepared(*kind) for kind in KINDS]

    return run(main)


# -- changes -------------------------------------------------------------------------------------


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


# -- what comes of it ----------------------------------------------------------------------------


class Violation(Exception):
    """Something that must never be."""


def members_of(contents: dict[str, bytes]) -> list[RamMember]:
    members = []
    for path, content in contents.items():
        member = RamMember(len(content), name=path)
        member.memory[:] = content
        members.append(member)
    return members


def play(image: Image, case: int) -> None:
    """Let everything look at *case* of *image*. Raises Violation."""
    contents = changed(image, case)
    for step in (_check, _mount) if case % 4 else (_examine, _check, _mount):
        members = members_of(contents)
        refused = _guarded(step, members)
        if step is not _mount or refused:
            for member in members:
                if bytes(member.memory) != contents[member.path]:
                    raise Violation(f"{step.__name__} wrote to {member.path}")


def _guarded(step: Callable[[list[RamMember]], Any], members: list[RamMember]) -> bool:
    """Run *step*; say whether it was refused. Raises Violation."""

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await step(members)

    try:
        run(main)
    except BaseExceptionGroup as group:
        error: BaseException = single(group)
    except (KeyboardInterrupt, Violation):
        raise
    except BaseException as caught:
        error = caught
    else:
        return False
    if not isinstance(error, RaidxError):
        raise Violation(f"{step.__name__}: {error!r}") from error
    text = str(error)
    if "\n" in text or len(text) > 4000 or "more memory" in text or "a bug" in text:
        raise Violation(f"{step.__name__}: {text[:500]!r}") from error
    return not isinstance(error, Used)


class Used(RaidxError):
    """An error of a running array, not of its start."""


async def _examine(members: list[RamMember]) -> None:
    for member in members:
        json.dumps(await examine(member))


async def _check(members: list[RamMember]) -> None:
    json.dumps(await check_members(list[Member](members)))


async def _mount(members: list[RamMember]) -> None:
    async with open_array(list[Member](members), start_degraded=True) as array:
        try:
            rng = random.Random(len(members))
            json.dumps([array.status(), array.stats(), array.settings()])
            for _ in range(6):
                at = rng.randrange(max(1, min(array.size_bytes, 1 << 20) - 5000))
                with suppress(RaidxError):
                    await array.read(at, min(5000, array.size_bytes - at))
                with suppress(RaidxError):
                    await array.write(at, bytes(min(3000, array.size_bytes - at)))
            with suppress(RaidxError):
                await array.flush()
            await trio.sleep(rng.choice((0.1, 20)))
        except RaidxError as error:
            raise Used(str(error)) from error


# -- as a program --------------------------------------------------------------------------------


def _late(_signal: int, _frame: Any) -> None:
    raise Violation(f"no end within {CASE_S} s")


def main(first: int, end: int, step: int) -> None:
    """Play the cases and print what must never be; the last line says how many there were."""
    logging.disable(logging.CRITICAL)
    images = prepare()
    play(images[0], 1)  # what is made once is made now
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    signal.signal(signal.SIGALRM, _late)
    cases = range(first, end, step)
    for case in cases:
        signal.alarm(CASE_S)
        try:
            play(images[case % len(images)], case)
        except Violation as violation:
            at = traceback.extract_tb((violation.__cause__ or violation).__traceback__)[-1]
            print(f"case {case} ({at.name}, line {at.lineno}): {violation}", flush=True)
        signal.alarm(0)
    print(f"{len(cases)} cases", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
