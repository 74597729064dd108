"""The contract for plug-ins: what it holds for, and that it notices what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from raidx_fuse.lab import contract
from raidx_fuse.layouts.codes.code import Code, LayoutError
from raidx_fuse.layouts.codes.horizontal import (
    evenodd,
    is_prime,
    rdp,
    replicas,
    single_parity,
    striping,
)
from raidx_fuse.layouts.codes.vertical import pcode, upc, xcode
from raidx_fuse.layouts.placements.rotated import RotatedLayout
from raidx_fuse.layouts.planning.stripe_plan import write_plans
from tests.support.packages import installed, write_package


@pytest.mark.parametrize(
    ("build", "width"),
    [
        *((striping, 3), (replicas, 3), (single_parity, 4), (rdp, 6), (evenodd, 5)),
        *((xcode, 5), (pcode, 6), (upc, 6)),
    ],
)
def test_it_holds_for_the_codes_of_raidx(build: Callable[[int], Code], width: int) -> None:
    contract.check_code(build, width)


def test_it_notices_a_code_that_is_none() -> None:
    def greedy(width: int) -> Code:
        return dataclasses.replace(single_parity(width), tolerance=2)

    with pytest.raises(AssertionError, match="claims to tolerate 2, but not without columns 0, 1"):
        contract.check_code(greedy, 4)
    numbers = itertools.count(0)

    def moody(width: int) -> Code:
        code = single_parity(width)
        return code if next(numbers) else dataclasses.replace(code, data=code.data[::-1])

    with pytest.raises(AssertionError, match="build different codes"):
        contract.check_code(moody, 4)


def test_it_notices_a_wrong_solver_and_wrong_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_code: Code, _lost: int, wanted: int) -> tuple[tuple[int, int], ...]:
        return tuple((cell, 0) for cell in range(8) if wanted >> cell & 1)

    with monkeypatch.context() as patch:
        patch.setattr(Code, "solve", wrong)
        with pytest.raises(AssertionError, match="D0 is lost"):
            contract.check_code(single_parity, 4)

    def without_output(*given: int) -> tuple[object, ...]:
        made = write_plans(*given)
        return tuple(plan and dataclasses.replace(plan, outputs=()) for plan in made)

    monkeypatch.setattr(contract, "write_plans", without_output)
    with pytest.raises(AssertionError, match="of D0 leaves P0 wrong"):
        contract.check_code(single_parity, 4)


def test_it_notices_two_cells_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RotatedLayout, "place", lambda *_: (0, 0))
    with pytest.raises(AssertionError, match="two cells lie at member chunk 0 of role 0"):
        contract.check_code(single_parity, 4)


def test_it_notices_a_policy_that_is_none() -> None:
    answers = itertools.cycle(("rmw", "rmw", "rmw", "rcw"))

    def moody(_rmw: Sequence[int], _rcw: Sequence[int], _waiting: Sequence[int]) -> str:
        return next(answers)

    with pytest.raises(AssertionError, match="the policy says 'both' for reads of"):
        contract.check_policy(lambda *_: "both")
    with pytest.raises(AssertionError, match="the policy changes its mind"):
        contract.check_policy(moody)
    contract.check_policy(lambda rmw, rcw, waiting: "rmw" if len(rmw) < len(rcw) else "rcw")


def test_it_notices_widths_that_fail() -> None:
    contract.check_widths(xcode_or_none)
    with pytest.raises(AssertionError, match="for 1 members the code raises AssertionError: raid4"):
        contract.check_widths(single_parity)
    with pytest.raises(AssertionError, match="exists for no width"):
        contract.check_widths(xcode_or_none, range(1, 5))


def xcode_or_none(width: int) -> Code:
    """Return the X-code where it exists."""
    if width < 5 or not is_prime(width):
        raise LayoutError("primes only")
    return xcode(width)


LIAR = '''
def liar(width):
    """It has no code."""
    raise ValueError("no code")
'''


def test_a_campaign_that_cannot_run_fails(tmp_path: Path) -> None:
    write_package(tmp_path / "site", "liars", LIAR, layouts={"liar": "liar"})
    with installed(tmp_path / "site"), pytest.raises((AssertionError, ValueError)) as caught:
        contract.check_campaign("liar", states=5)
    assert "package liars 1.0 fails" in str(caught.value)
