"""Make the fixtures of tests/format/test_made_by.py with the code of one commit.

    git worktree add --detach /tmp/old COMMIT
    cd /tmp/old && PYTHONPATH=. python .../tests/format/made/make.py FOLDER COMMIT

Writes FOLDER/COMMIT-LAYOUT.xz: the members of one array, end to end. It uses nothing that has not
been in the code since the format was first written.
"""

from __future__ import annotations

import lzma
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CHUNK = 4096
MEMBER_BYTES = 384 << 10
ARRAYS = {"raid5": 3, "rdp": 4, "raidx-parity": 5}
WRITES = ((0, 3 * CHUNK, 1), (5 * CHUNK + 100, 700, 2), (11 * CHUNK, CHUNK, 3))
LOGGED = ((CHUNK + 9, 50, 4), (11 * CHUNK, 512, 5))  # and then the power goes


def content(writes: Any) -> bytearray:
    """Return the beginning of the image after *writes* of (offset, length, seed)."""
    image = bytearray(16 * CHUNK)
    for offset, length, seed in writes:
        image[offset : offset + length] = random.Random(seed).randbytes(length)
    return image


def found(name: str, *modules: str) -> Any:
    """Return *name* from the first of *modules* that exists and has it."""
    for module in modules:
        try:
            return getattr(import_module(f"raidx_fuse.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"there is no {name}")


async def make(layout: str, width: int) -> bytes:
    """Return the members of an array that lost power with records in its log."""
    ram = found("RamMember", "members.ram", "members.local")
    members = [ram(MEMBER_BYTES, name=f"disk{role}") for role in range(width)]
    create = found("create_array", "format.create")
    await create(members, layout, name="made", now_s=0, chunk_bytes=CHUNK)
    open_array = found("open_array", "array.open", "runtime", "array")
    async with open_array(members) as array:
        for offset, length, seed in WRITES:
            await array.write(offset, random.Random(seed).randbytes(length))
        await array.flush()
    async with open_array(members) as array:
        for offset, length, seed in LOGGED:
            await array.write(offset, random.Random(seed).randbytes(length))
        await array.flush()
        return b"".join(bytes(member.memory) for member in members)


def main() -> None:
    """Make one file for each of ARRAYS."""
    run = found("run", "members.simulated.virtual_time", "virtual_time")
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    for layout, width in ARRAYS.items():
        images = run(make, layout, width)
        packed = lzma.compress(images, preset=9 | lzma.PRESET_EXTREME)
        (folder / f"{commit}-{layout}.xz").write_bytes(packed)


if __name__ == "__main__":
    main()
