"""Finding the written stripes in a map that is mostly empty, against looking at every chunk."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from raidx_fuse.layouts.registry import make_layout
from raidx_fuse.store.page_store import PageStore
from raidx_fuse.store.written_map import WrittenMap


class Pages:
    """Stands for a page store: one page of bits."""

    def __init__(self, chunks: int) -> None:
        self.payload = bytearray(-(-chunks // 8))
        self.payload_bytes = len(self.payload)

    def settle_by(self, content: object) -> None:
        """Ignore it: nothing is saved here."""


@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
@pytest.mark.parametrize(("name", "width"), [("raid0", 3), ("raid5", 4), ("rdp", 6)])
def test_scans_find_what_is_written(name: str, width: int, density: float) -> None:
    rng = random.Random(f"{name}{density}")
    for _ in range(20):
        layout = make_layout(name, width, rng.randrange(8, 60), 4096)
        written = WrittenMap(layout.chunks, cast("PageStore", cast("Any", Pages(layout.chunks))))
        chunks = [chunk for chunk in range(layout.chunks) if rng.random() < density]
        written.set_bits(chunks)
        stripes = sorted({layout.locate(chunk)[0] for chunk in chunks})
        start = rng.randrange(layout.stripes)
        end = rng.randrange(start, layout.stripes + 1)
        limit = rng.randrange(1, 20)
        expected = [stripe for stripe in stripes if start <= stripe < end]
        assert written.written_stripes(layout, start, limit, end) == expected[:limit]
        assert written.count_live(layout, start, end) == len(expected)
        assert written.count_written() == len(chunks)
