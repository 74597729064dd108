"""The picture of some stripes: from the answers of the daemon to values, and from values to SVG.

A member is a column, a stripe a band of rows. A stripe that has several cells on a member takes as
many rows, in the order of their places. Everything here is pure: the same values give the same
picture. Texts come from daemons and are escaped; the SVG has neither styles nor scripts, because
the page's content security policy allows none inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from raidx_fuse.layouts.registry import WIDTH_MAX

if TYPE_CHECKING:
    from raidx_fuse.answers import CellState, StripeState
    from raidx_fuse.documents import ArrayReport

CELL_WIDTH, CELL_HEIGHT = 76, 30
GAP = 4
LABEL_WIDTH = 84
HEAD_HEIGHT = 42
CELLS_MAX = 2048
NAME_CHARS_MAX = 11
STATE_CHARS_MAX = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: *name* as in all commands, its *row* within the stripe's band, where it lies.

    *kind* is data, parity, unwritten or lost. *image_offset* is None for parity.
    """

    stripe: int
    name: str
    role: int
    row: int
    kind: str
    path: str | None
    member_offset: int
    image_offset: int | None

    @property
    def key(self) -> str:
        """The name of the cell in a picture: 3:D1."""
        return f"{self.stripe}:{self.name}"


@dataclass(frozen=True, slots=True)
class Column:
    """A member: *role*, *name* (the last part of its path) and *state*."""

    role: int
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Some stripes of an array, and its members; *chunk_bytes* is the size of a cell."""

    layout: str
    chunk_bytes: int
    columns: tuple[Column, ...]
    stripes: tuple[int, ...]
    cells: tuple[Cell, ...]

    def as_dict(self) -> dict[str, object]:
        """Return JSON values; a cell has its *key*, too."""
        return {**asdict(self), "cells": [asdict(cell) | {"key": cell.key} for cell in self.cells]}


def picture_of(status: ArrayReport, stripes: Sequence[StripeState]) -> Picture:
    """Return the picture of *stripes*, answers to `explain --stripe`, of the array of *status*.

    Whole stripes are left out behind `CELLS_MAX` cells.
    """
    columns = tuple(
        Column(member["role"], short_name(member["path"]), member["state"][:STATE_CHARS_MAX])
        for member in sorted(status["members"], key=lambda member: member["role"])
        if member["role"] >= 0
    )[:WIDTH_MAX]
    cells: list[Cell] = []
    shown: list[int] = []
    for document in stripes:
        places = sorted(document["cells"], key=lambda cell: (cell["role"], cell["member_offset"]))
        places = places[:CELLS_MAX]
        if shown and len(cells) + len(places) > CELLS_MAX:
            break
        shown.append(document["stripe"])
        rows: dict[int, int] = {}
        for place in places:
            row = rows.get(place["role"], 0)
            rows[place["role"]] = row + 1
            cells.append(_cell(document["stripe"], row, place))
    return Picture(status["layout"], status["chunk_size"], columns, tuple(shown), tuple(cells))


def _cell(stripe: int, row: int, place: CellState) -> Cell:
    kind = "data" if place["cell"].startswith("D") else "parity"
    if not place["written"]:
        kind = "unwritten"
    elif place["lost"]:
        kind = "lost"
    return Cell(
        stripe,
        place["cell"][:NAME_CHARS_MAX],
        place["role"],
        row,
        kind,
        place["path"],
        place["member_offset"],
        place.get("image_offset"),
    )


def moved(before: Picture, after: Picture) -> frozenset[str]:
    """Return the keys of the cells of *after* whose content lay elsewhere, or nowhere, before.

    Data is recognized by its place in the image, parity by its stripe and name.
    """

    def content(cell: Cell) -> object:
        return cell.key if cell.image_offset is None else cell.image_offset

    places = {content(cell): (cell.role, cell.member_offset) for cell in before.cells}
    return frozenset(
        cell.key
        for cell in after.cells
        if places.get(content(cell)) != (cell.role, cell.member_offset)
    )


def short_name(path: str | None) -> str:
    """Return what stands over the column of the member at *path*."""
    if not path:
        return "missing"
    name = path.rstrip("/").rpartition("/")[2] or path
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


def svg(picture: Picture, *, marked: frozenset[str] = frozenset(), title: str = "") -> str:
    """Return *picture* as an SVG document; cells with keys in *marked* have a thick border.

    Each cell is a group with the class of its kind, `data-key` and a label for screen readers. The
    first one can be reached with the keyboard; the page moves on from there with the arrow keys.
    """
    column_of = {column.role: number for number, column in enumerate(picture.columns)}
    heights = dict.fromkeys(picture.stripes, 1)
    for cell in picture.cells:
        heights[cell.stripe] = max(heights[cell.stripe], cell.row + 1)
    tops, top = {}, HEAD_HEIGHT
    for stripe in picture.stripes:
        tops[stripe] = top
        top += heights[stripe] * CELL_HEIGHT + GAP
    width = LABEL_WIDTH + len(picture.columns) * CELL_WIDTH
    words = title or f"{picture.layout}, {len(picture.columns)} members"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" '
        f'height="{top}" role="group" aria-label={quoteattr(_clean(words))}>'
    ]
    for column in picture.columns:
        x = LABEL_WIDTH + column_of[column.role] * CELL_WIDTH + CELL_WIDTH // 2
        parts.append(
            f'<g class="member" data-role="{column.role}">'
            f'<text class="name" x="{x}" y="16" text-anchor="middle">{_text(column.name)}</text>'
            f'<text class="state" x="{x}" y="34" text-anchor="middle">{_text(column.state)}</text>'
            "</g>"
        )
    for stripe in picture.stripes:
        y = tops[stripe] + 20
        parts.append(f'<text class="stripe" x="2" y="{y}">stripe {stripe}</text>')
    for number, cell in enumerate(picture.cells):
        at = column_of.get(cell.role)
        if at is not None:
            x = LABEL_WIDTH + at * CELL_WIDTH
            y = tops[cell.stripe] + cell.row * CELL_HEIGHT
            parts.append(_group(cell, x, y, 0 if number == 0 else -1, cell.key in marked))
    parts.append("</svg>")
    return "".join(parts)


def _group(cell: Cell, x: int, y: int, tab_index: int, is_marked: bool) -> str:
    words = f"stripe {cell.stripe} cell {cell.name}, {cell.kind}, on member {cell.role}"
    shown = f"{cell.name} lost" if cell.kind == "lost" else cell.name
    width, height = CELL_WIDTH - GAP, CELL_HEIGHT - GAP
    return (
        f'<g class="cell {cell.kind}{" moved" if is_marked else ""}" role="button" '
        f'tabindex="{tab_index}" data-key={quoteattr(_clean(cell.key))} '
        f"aria-label={quoteattr(_clean(words))}>"
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3"/>'
        f'<text x="{x + width // 2}" y="{y + 18}" text-anchor="middle">{_text(shown)}</text></g>'
    )


def _clean(text: str) -> str:
    return "".join(
        each if each in "\t\n\r" or 0x20 <= ord(each) <= 0xD7FF or 0xE000 <= ord(each) <= 0xFFFD
        or ord(each) >= 0x10000 else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )  # fmt: skip


def _text(text: str) -> str:
    return escape(_clean(text))
