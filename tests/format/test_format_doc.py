"""FORMAT.md against the code: byte tables, constants and the worked example."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import raidx_fuse
from raidx_fuse.format import log_record, pages, regions, superblock, table_page
from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.members.nbd import heartbeat

DOCUMENT = Path(raidx_fuse.__file__).with_name("FORMAT.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (\d+) \| ([\w ]+) \|", re.MULTILINE)


def tables() -> list[list[tuple[int, int, str]]]:
    """Return the byte tables of the document in their order."""
    found: list[list[tuple[int, int, str]]] = []
    for match in ROW.finditer(DOCUMENT):
        offset, size, name = int(match[1]), int(match[2]), match[3]
        if offset == 0:
            found.append([])
        found[-1].append((offset, size, name))
    return found


STRUCTS = [
    superblock.HEADER,
    heartbeat.FIELDS,
    pages.PAGE_HEADER,
    table_page.ENTRY,
    log_record.HEAD,
    log_record.RECORD_HEADER,
    log_record.ENTRY,
]


@pytest.mark.parametrize("number", range(len(STRUCTS)))
def test_a_byte_table_is_the_struct(number: int) -> None:
    described = tables()[number]
    layout = STRUCTS[number]
    parts = re.findall(r"(\d*)([a-zA-Z])", layout.format.lstrip("<"))
    offset = 0
    sizes = []
    for count, code in parts:
        repeat = 1 if code == "s" else int(count or 1)
        size = struct.calcsize("<" + (count + code if code == "s" else code))
        for _ in range(repeat):
            sizes.append((offset, size))
            offset += size
    assert [(at, size) for at, size, _ in described] == sizes
    assert offset == layout.size


def test_there_is_a_table_for_every_struct_and_no_other() -> None:
    assert len(tables()) == len(STRUCTS)


def test_magics_and_kinds_are_the_documents() -> None:
    assert superblock.MAGIC.decode() in DOCUMENT
    for magic in (pages.PAGE_MAGIC, log_record.RECORD_MAGIC):
        assert f"`{struct.pack('<I', magic).decode()}`" in DOCUMENT
    for name, number in regions.PAGE_KINDS.items():
        assert f"{number} {name}" in DOCUMENT
    kinds = f"{log_record.DATA} data, {log_record.WRITTEN} written, {log_record.TABLE} table"
    assert f"{kinds}, {log_record.UNWRITTEN} unwritten, {log_record.MARK} mark" in DOCUMENT
    assert f"{log_record.PARITY_BEFORE}: refused" in DOCUMENT
    assert f"{table_page.PAGE_ENTRIES} p .. " in DOCUMENT


def test_the_worked_example_is_true() -> None:
    plan = regions.plan_regions(1 << 20, 4096, 4)
    assert (plan.bitmap.offset, plan.bitmap.length) == (131072, 8192)
    assert (plan.written.offset, plan.written.length) == (139264, 8192)
    assert (plan.log.offset, plan.log.length) == (147456, 131072)
    assert plan.data.offset == 278528
    layout = make_layout("raid5", 4, plan.data.length // 4096, 4096)
    assert layout.locate(7) == (2, 1)
    role, chunk = layout.place(2, 1)
    assert (role, plan.data.offset + chunk * 4096) == (3, 286720)
    assert layout.place(2, 3)[0] == 1
    for number in (131072, 139264, 147456, 278528, 286720):
        assert str(number) in DOCUMENT


def test_the_record_in_hexadecimal_is_what_the_code_writes() -> None:
    (text,) = re.findall(r"```hex\n(.*?)```", DOCUMENT, re.DOTALL)
    printed = bytes.fromhex("".join(line[6:] for line in text.splitlines()))
    writes = [(3, 286720, [b"raidx"], 5), (1, 286720, [b"raidx"], 5)]
    body = log_record.RecordBody()
    body.add_data(writes)
    body.add_maps([7], [], [])
    record = log_record.encode_record(9, 41, 1024, bytes(range(16)), body)
    assert record == printed.ljust(512, b"\0")


def test_the_version_history_ends_with_the_version_that_is_written() -> None:
    *_, last = re.findall(r"^\| (\d+\.\d+) \| ", DOCUMENT, re.MULTILINE)
    assert last == f"{superblock.MAJOR}.{superblock.MINOR}"
