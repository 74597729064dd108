"""The output of `raidx layout recover --step`: the decode of lost disks, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.gf2 import Step
from raidx_fuse.layouts.planning.decode_steps import DecodeStep, decode_steps


def decode_page(
    code: Code, steps: Sequence[Step], lost: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return *steps*, which compute the cells *lost*, as JSON values and as lines of text."""
    found = decode_steps(code, steps, lost)
    document = [
        {
            "step": number,
            "cell": code.cells[step.cell],
            "chains": step.chains,
            "reads": [code.cells[cell] for cell in step.reads],
            "kept": [code.cells[cell] for cell in step.kept],
            "computed": [code.cells[cell] for cell in step.computed],
        }
        for number, step in enumerate(found, 1)
    ]
    return document, [*_lines(code, found), *_grid(code, found, lost)]


def _lines(code: Code, steps: Sequence[DecodeStep]) -> Iterable[str]:
    order = {step.cell: number for number, step in enumerate(steps, 1)}
    for number, step in enumerate(steps, 1):
        names = " + ".join(f"P{chain}" for chain in step.chains)
        kind = "chain" if len(step.chains) == 1 else "sum of chains"
        terms = [
            code.name_of(cell) + (f" [step {order[cell]}]" if cell in step.computed else "")
            for cell in sorted((*step.reads, *step.kept, *step.computed))
        ]
        yield f"step {number}: {kind} {names} has one unknown cell left"
        yield f"    {code.name_of(step.cell)} = {' ^ '.join(terms) or '0'}"
        yield f"    reads {len(step.reads)} more, has {len(step.kept) + len(step.computed)} already"


def _grid(code: Code, steps: Sequence[DecodeStep], lost: int) -> Iterable[str]:
    """Yield the stripe: the step that computes a lost cell, "r" for read, "." for not needed."""
    order = {step.cell: str(number) for number, step in enumerate(steps, 1)}
    read = {cell for step in steps for cell in step.reads}
    width = max(3, len(f"{len(steps)}") + 1)
    yield "the stripe (numbers: steps; r: read; .: not read)"
    yield "    disk" + "".join(f"{column:{width}}" for column in range(code.columns))
    for row in range(code.rows):
        cells = [code.index.get((row, column)) for column in range(code.columns)]
        marks = [
            " " if cell is None else order.get(cell, "r" if cell in read else ".") for cell in cells
        ]
        yield f"  row {row:2}" + "".join(f"{mark:>{width}}" for mark in marks)
