"""The decode of lost cells step by step, for people to follow (zig-zag for two lost columns).

`Code.schedule` says in which order lost cells are computed; here each step also names the chains
that it uses, and which of its cells are read, were read before, or were computed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.gf2 import Step, bits


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Cell *cell* is the XOR of *reads*, *kept* and *computed*, by the sum of *chains*.

    *reads* are surviving cells that no step before has read, *kept* those that one has; *computed*
    are lost cells that steps before have computed. Numbers of cells and chains as in `Code`.
    """

    cell: int
    chains: tuple[int, ...]
    reads: tuple[int, ...]
    kept: tuple[int, ...]
    computed: tuple[int, ...]


def decode_steps(code: Code, steps: Sequence[Step], lost: int) -> list[DecodeStep]:
    """Return *steps*, as `Code.schedule` or `Code.recover` orders them, for the cells *lost*.

    >>> from raidx_fuse.layouts.codes.horizontal import single_parity
    >>> code = single_parity(4)
    >>> decode_steps(code, code.schedule(0b0010, 0b0010), 0b0010)
    [DecodeStep(cell=1, chains=(0,), reads=(0, 2, 3), kept=(), computed=())]
    """
    found = []
    known = 0
    for cell, sources in steps:
        surviving = sources & ~lost
        found.append(
            DecodeStep(
                cell,
                chains_of(code, sources | 1 << cell),
                tuple(bits(surviving & ~known)),
                tuple(bits(surviving & known)),
                tuple(bits(sources & lost)),
            )
        )
        known |= surviving
    return found


def chains_of(code: Code, equation: int) -> tuple[int, ...]:
    """Return the chains whose sum is *equation*, a set of cells; one chain if there is one.

    Raises AssertionError if no sum of chains is: a bug.
    """
    if equation in code.chain_masks:
        return (code.chain_masks.index(equation),)
    basis: dict[int, tuple[int, int]] = {}  # highest bit -> (row, chains in it)
    for number, chain in enumerate(code.chain_masks):
        row, used = _reduce(basis, chain, 1 << number)
        if row:
            basis[row.bit_length()] = row, used
    row, used = _reduce(basis, equation, 0)
    assert not row, "the equation of a step is a sum of chains"
    return tuple(bits(used))


def _reduce(basis: dict[int, tuple[int, int]], row: int, used: int) -> tuple[int, int]:
    while row and row.bit_length() in basis:
        other, chains = basis[row.bit_length()]
        row, used = row ^ other, used ^ chains
    return row, used
