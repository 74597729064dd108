"""Locate silent corruption: find the wrong cells of a stripe from its violated chains.

The XOR of the cells of a chain is its *syndrome*. A nonzero syndrome means that a cell of the chain
is wrong. A code that tolerates two losses can attribute an error to one member: no two members
explain the same syndromes, otherwise the loss of both could not be decoded. Three attempts, the
most likely case first:

1. One cell is wrong. All violated chains have the same syndrome, and exactly one cell belongs to
   these chains and to no other.
2. Several cells of one member are wrong (a lost write of a strip, an overwritten area). The
   equations "the XOR of the errors of the member's cells in this chain is its syndrome" can be
   solved for one member only. A solution whose errors are all equal is rejected: the same wrong
   bit on two members looks like such errors on a third one.
3. Each sector is examined alone, because bit rot on two members seldom hits the same sector.

If a sector remains that no attempt explains, nothing is located. The caller may then assume which
cell is wrong, and must report that as an assumption. Single parity and two copies never locate an
error: all of their cells belong to the same chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from raidx_fuse.layouts.numbers import Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes: TypeAlias = "NDArray[np.uint8]"
Place = tuple[Role, int]
"""(column or role, row): where a cell is."""

SECTOR_BYTES = 512


def locate(
    chains: Sequence[Sequence[Place]], syndromes: Sequence[Bytes], *, by_sector: bool = True
) -> dict[Place, Bytes]:
    """Return the error of each wrong cell, {} if the errors cannot be located.

    The XOR of a cell and its error is the correct content. *syndromes* belong to *chains*, have
    equal lengths, and are not all zero. *chains* contain only cells that were read; chains that
    are left out because a member is lost make fewer errors locatable. The third attempt is made
    only with *by_sector*.
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
    """Return the errors of one cell, else of one column, that explain *syndromes*, else {}."""
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
    """Return the errors of the cells of *column* that explain all syndromes; None if none do.

    Gaussian elimination over GF(2) whose right-hand sides are whole syndromes. None also if there
    is more than one solution.
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
        return None  # the errors are ambiguous
    return {cells[bit.bit_length() - 1]: side for bit, (_, side) in pivots.items() if side.any()}
