"""A hole that is punched while a member is being replaced reads as zeros on its successor, too."""

from __future__ import annotations

import pytest

from raidx_fuse.jobs.replace import Twin
from raidx_fuse.members.ram import RamMember

SIZE_BYTES, OWN_BYTES = 1 << 16, 4096


@pytest.mark.parametrize("can_punch", [True, False])
async def test_the_successor_has_the_holes(
    can_punch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [RamMember(SIZE_BYTES, name=name) for name in ("old", "new")]
    for member in both:
        member.memory[:] = b"a" * SIZE_BYTES

    async def cannot(_offset_bytes: int, _length_bytes: int) -> bool:
        return False

    if not can_punch:
        monkeypatch.setattr(both[1], "punch", cannot)
    twin = Twin(both[0], both[1], OWN_BYTES, lambda: 1.0)
    assert await twin.punch(2 * OWN_BYTES, OWN_BYTES)
    for member in both:
        expected = b"a" * 2 * OWN_BYTES + bytes(OWN_BYTES) + b"a" * (SIZE_BYTES - 3 * OWN_BYTES)
        assert bytes(member.memory) == expected, member.path
