"""Who lies? Find the cells whose content cannot be right from the chains that do not hold.

The XOR of a chain's cells is its *syndrome*: zero, unless a cell of it lies. A code that survives
two losses can name one liar: no two members explain the same syndromes, or else both could be lost
and nothing would tell their contents apart. Three steps, from the likely to the unlikely:

1. one cell: the violated chains all have the same syndrome, and one cell alone is in just those;
2. one member, several of its cells (a lost write of a strip, an overwritten area): the equations
   "XOR of the errors of the member's cells in this chain = its syndrome" are solvable for one
   member only. Errors that are all equal prove nothing, however: two members with one and the same
   wrong bit leave that trace on a third;
3. sector by sector, each with its own liar: rot on two members seldom hits the same sector.

What no step explains in every sector stays unlocated: the caller may assume, and must say so.
Single parity and two copies never locate anything: all their cells are in the same chains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Place = tuple[int, int]
"""(column or role, row): where a cell is."""

SECTOR_BYTES = 512


def locate(
    chains: Sequence[Sequence[Place]], syndromes: Sequence[Bytes], *, by_sector: bool = True
) -> dict[Place, Bytes]:
    """Return what is wrong with each lying cell (XOR it to correct the cell); {} if nobody can say.

    *syndromes* are those of *chains*, equally long; some are not zero. Chains name only cells that
    were read: without those of lost members fewer liars can be told. Without *by_sector* there is
    no third step.
    """
    errors = _locate_all(chains, syndromes)
    size = syndromes[0].size
    if errors or size <= SECTOR_BYTES or not by_sector:
        return errors
    wrong = np.flatnonzero(np.bitwise_or.reduce(np.stack(syndromes)))
    for sector in np.unique(wrong // SECTOR_BYTES).tolist():
        part = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        found = _locate_all(chains, [syndrome[part] for syndrome in syndromes])
        if not found:
            return {}
        for place, error in found.items():
            errors.setdefault(place, np.zeros(size, dtype=np.uint8))[part] = error
    return errors


def _locate_all(
    chains: Sequence[Sequence[Place]], syndromes: Sequence[Bytes]
) -> dict[Place, Bytes]:
    """Explain all bytes of *syndromes* by one cell, else by one column, else by nothing."""
    violated = [bool(syndrome.any()) for syndrome in syndromes]
    places = {place for chain in chains for place in chain}
    suspects = [
        place
        for place in places
        if all((place in chain) == bad for chain, bad in zip(chains, violated, strict=True))
    ]
    first = syndromes[violated.index(True)]
    if len(suspects) == 1 and all(
        np.array_equal(first, syndrome)
        for syndrome, bad in zip(syndromes, violated, strict=True)
        if bad
    ):
        return {suspects[0]: first}
    explained = []
    for column in {place[0] for place in places}:
        errors = _errors_of(column, chains, syndromes, violated)
        if errors is not None:
            explained.append(errors)
    if len(explained) != 1:
        return {}
    (errors,) = explained
    one, *others = errors.values()
    return errors if any(not np.array_equal(one, other) for other in others) else {}


def _errors_of(
    column: int,
    chains: Sequence[Sequence[Place]],
    syndromes: Sequence[Bytes],
    violated: Sequence[bool],
) -> dict[Place, Bytes] | None:
    """Solve for the errors of the cells of *column* that explain everything; None if none do.

    Gauss elimination over GF(2), whose right-hand sides are whole syndromes.
    """
    cells = sorted({place for chain in chains for place in chain if place[0] == column})
    masks = [
        sum(1 << number for number, place in enumerate(cells) if place in chain) for chain in chains
    ]
    if any(bad and not mask for mask, bad in zip(masks, violated, strict=True)):
        return None
    pivots: dict[int, tuple[int, Bytes]] = {}  # bit -> (mask, side); each bit in no other mask
    for mask, side in zip(masks, syndromes, strict=True):
        for bit, (other, other_side) in pivots.items():
            if mask & bit:
                mask, side = mask ^ other, side ^ other_side
        if not mask:
            if side.any():
                return None
            continue
        low = mask & -mask
        for bit, (other, other_side) in pivots.items():
            if other & low:
                pivots[bit] = other ^ mask, other_side ^ side
        pivots[low] = mask, side
    if any(mask != bit for bit, (mask, _) in pivots.items()):
        return None  # more than one way to be wrong
    return {cells[bit.bit_length() - 1]: side for bit, (_, side) in pivots.items() if side.any()}
