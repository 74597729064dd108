"""The tables about growth behind the McPod paper's, at a small size: sign and range."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

MIB = 1 << 20


@pytest.fixture
def tables(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("growth_tables")


def test_raid5_grows_with_the_least_bytes_and_faster_than_by_a_restripe(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CODES", tables.CODES[:1])
    (row,) = tables.every_code(32 * MIB).rows
    layout, disks, least, ours, restripe, least_s, seconds, most, own, *others = row
    large, small = others
    assert (layout, disks) == ("raid5", "4+1")
    assert least == pytest.approx(8 / 15)
    assert ours == pytest.approx(least, rel=0.05)  # metadata weighs more in a small array
    assert restripe > 2
    assert least_s < seconds
    assert most == pytest.approx(1.875)
    assert 1.5 < large <= own
    assert large < small


def test_two_losses_cost_the_least_too(tables: ModuleType) -> None:
    assert tables.least_bytes(6, 2, 2) == 0.75
    for layout in ("rdp", "evenodd"):
        seen = tables.grown(6, 2, 48 * MIB, layout=layout, params=tables.PRIME)
        assert seen.bytes_each == pytest.approx(0.75, rel=0.05)


def test_a_grown_array_is_as_fast_as_one_made_as_wide_on_ssds(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CODES", tables.CODES[:1])
    monkeypatch.setattr(tables, "MODELS", ("ssd",))
    monkeypatch.setattr(tables, "LOADS", tables.LOADS[:4])
    (row,) = tables.grown_beside_made(64 * MIB).rows
    for share in row[3:7]:
        assert 0.95 < share < 1.1
