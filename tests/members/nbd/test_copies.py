"""Copies of writes that are kept until a flush: they never change, nor touch each other."""

from __future__ import annotations

import random

from raidx_fuse.members.nbd.member import LARGE_BYTES, Copies


def test_copies_stay_as_they_were_made() -> None:
    chance = random.Random(1)
    copies, made = Copies(), []
    for _ in range(60):  # several maps
        size = chance.choice((1, 4096, LARGE_BYTES, LARGE_BYTES + 1, 700_000, 9 << 20))
        source = bytearray(chance.randbytes(size))
        cut = chance.randrange(size)
        copy = copies.of([memoryview(source)[:cut], bytes(source[cut:])], size)
        made.append((copy, bytes(source)))
        source[:] = bytes(size)
    for number, (copy, content) in enumerate(made):
        assert bytes(copy) == content
        if number % 2:
            copy[:] = bytes(len(copy))  # they can be written, each alone
    assert all(bytes(copy) == content for copy, content in made[::2])
