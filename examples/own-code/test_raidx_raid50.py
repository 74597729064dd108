"""The contract of raidx, for the code and the policy of this package (which must be installed)."""

from __future__ import annotations

import pytest
from raidx_raid50 import raid50, shortest

from raidx_fuse.lab import contract
from raidx_fuse.layouts.codes.code import LayoutError


@pytest.mark.parametrize("width", [6, 8, 10])
def test_it_is_a_code(width: int) -> None:
    contract.check_code(raid50, width)


def test_other_widths_do_not_exist() -> None:
    contract.check_widths(raid50)
    with pytest.raises(LayoutError):
        raid50(7)


def test_it_survives_power_cuts() -> None:
    contract.check_campaign("raid50", states=60)


def test_it_is_a_policy() -> None:
    contract.check_policy(shortest)


def test_the_policy_avoids_a_long_queue() -> None:
    assert shortest((0, 3), (1, 2), (9, 0, 0, 0)) == "rcw"
    assert shortest((0, 3), (1, 2), (0, 0, 0, 0)) == "rmw"
