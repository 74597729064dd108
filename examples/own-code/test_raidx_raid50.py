"""The contract of raidx, for what this package (which must be installed) brings."""

from __future__ import annotations

from collections import Counter

import pytest
from raidx_raid50 import declustered, raid50, shortest

from raidx_fuse.lab import contract
from raidx_fuse.layouts.codes.code import LayoutError


@pytest.mark.parametrize("width", [6, 8, 10])
def test_it_is_a_code(width: int) -> None:
    contract.check_code(raid50, width)


def test_other_widths_do_not_exist() -> None:
    contract.check_widths(raid50)
    with pytest.raises(LayoutError):
        raid50(7)


@pytest.mark.parametrize("width", [5, 7, 11])
def test_it_is_a_placement(width: int) -> None:
    contract.check_code(declustered, width)


def test_other_widths_of_it_do_not_exist() -> None:
    contract.check_widths(declustered)


def test_a_rebuild_reads_equally_much_of_every_other_member() -> None:
    pattern = declustered(11).pattern
    reads = Counter(role for stripe in pattern if 0 in stripe for role in stripe)
    assert {reads[role] for role in range(1, 11)} == {6}


@pytest.mark.parametrize("theme", ["", "restripe"])
@pytest.mark.parametrize("name", ["raid50", "declustered"])
def test_it_survives_power_cuts(name: str, theme: str) -> None:
    contract.check_campaign(name, states=60, theme=theme)


def test_it_is_a_policy() -> None:
    contract.check_policy(shortest)


def test_the_policy_avoids_a_long_queue() -> None:
    assert shortest((0, 3), (1, 2), (9, 0, 0, 0)) == "rcw"
    assert shortest((0, 3), (1, 2), (0, 0, 0, 0)) == "rmw"
