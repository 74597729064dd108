"""Grids of boxes as SVG: stripes, chains, rebuilds and growths, for slides and printed sheets.

The pictures need nothing but a browser. Every colour has a word or a border beside it, so that they
can be read without colours.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import click

from raidx_fuse.cli import made_files
from raidx_fuse.cli.parameters import PATH
from raidx_fuse.layouts.codes.code import LayoutError

WIDTH, HEIGHT, GAP = 74, 38, 4  # pixels of a box, and between boxes
LABEL, HEAD, SPACE, MARGIN = 76, 22, 34, 16  # left of rows, above columns, between panels, around
PAGE_WIDTH = 1180  # panels that do not fit beside each other go below
BOXES_MAX = 20_000
HUE = 0.61803398875  # of a turn between neighbouring colours: golden section
PLAIN, MOVED, NEW, READ = "#f4f4f4", "#ffc26b", "#b9e6b3", "#a9cdf5"
STYLE = (
    "text{font-family:sans-serif;font-size:13px;fill:#111}"
    ".small{font-size:10px}.title{font-size:16px;font-weight:bold}.head{font-size:12px;fill:#333}"
    ".box{stroke:#777;stroke-width:1}.strong{stroke:#111;stroke-width:3;fill:none}"
    ".lost{stroke:#b00020;stroke-width:3;fill:none;stroke-dasharray:5 3}"
)

svg_option = click.option("--svg", metavar="FILE", type=PATH, help="Also draw it to an SVG file.")


@dataclass(frozen=True, slots=True)
class Box:
    """A cell: *text* above *note*; *colours* fill it in bands; *border*: "", "strong" or "lost"."""

    text: str
    note: str = ""
    colours: tuple[str, ...] = (PLAIN,)
    border: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A grid: *heads* above its columns, *labels* left of its rows; None is an empty place.

    *breaks* are rows with a space above them.
    """

    title: str
    heads: Sequence[str]
    labels: Sequence[str]
    rows: Sequence[Sequence[Box | None]]
    breaks: frozenset[int] = field(default_factory=frozenset)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels; a title of many letters makes it wider."""
        width = LABEL + len(self.heads) * (WIDTH + GAP)
        height = 2 * HEAD + len(self.rows) * (HEIGHT + GAP) + 3 * GAP * len(self.breaks)
        return max(width, 8 * len(self.title)), height


def colour(number: int) -> str:
    """Return a light colour; neighbouring numbers differ clearly.

    >>> colour(0), colour(1)
    ('#f2a6a6', '#a6bcf2')
    """
    parts = colorsys.hls_to_rgb(number * HUE % 1, 0.8, 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def draw(path: str, title: str, panels: Sequence[Panel], notes: Sequence[str] = ()) -> None:
    """Draw *panels* below *title*, with *notes* at the end, to the SVG file *path*.

    Raises LayoutError if it would have more boxes than a browser shows with ease, or as
    `made_files.save`.
    """
    boxes = sum(len(row) for panel in panels for row in panel.rows)
    if boxes > BOXES_MAX:
        raise LayoutError(f"a picture of {boxes} boxes is too large: the limit is {BOXES_MAX}")
    parts: list[str] = []
    x, y, row_height, page_width = MARGIN, MARGIN + 2 * HEAD, 0, 9 * len(title)
    for panel in panels:
        width, height = panel.size
        if x > MARGIN and x + width > PAGE_WIDTH:
            x, y, row_height = MARGIN, y + row_height + SPACE, 0
        parts += _panel(panel, x, y)
        page_width = max(page_width, x + width)
        x, row_height = x + width + SPACE, max(row_height, height)
    y += row_height + SPACE
    for note in notes:
        parts.append(_text(MARGIN, y, note))
        page_width = max(page_width, MARGIN + 7 * len(note))
        y += HEAD
    size = f"{page_width + MARGIN}", f"{y}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{size[0]}" '
        f'height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _text(MARGIN, MARGIN + HEAD, title, "title"),
        *parts,
        "</svg>",
        "",
    ]
    made_files.save(path, "\n".join(lines), "SVG file")


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    parts = [_text(x, y + 14, panel.title)]
    for column, head in enumerate(panel.heads):
        middle = x + LABEL + column * (WIDTH + GAP) + WIDTH // 2
        parts.append(_text(middle, y + HEAD + 14, head, "head", middle=True))
    top = y + 2 * HEAD
    for number, (label, row) in enumerate(zip(panel.labels, panel.rows, strict=True)):
        top += 3 * GAP * (number in panel.breaks)
        parts.append(_text(x, top + HEIGHT // 2 + 4, label, "head"))
        for column, box in enumerate(row):
            if box is not None:
                parts += _box(box, x + LABEL + column * (WIDTH + GAP), top)
        top += HEIGHT + GAP
    return parts


def _box(box: Box, x: int, y: int) -> list[str]:
    bands = box.colours or (PLAIN,)
    parts = []
    for number, fill in enumerate(bands):
        left = x + WIDTH * number // len(bands)
        width = x + WIDTH * (number + 1) // len(bands) - left
        parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="{HEIGHT}" fill="{fill}"/>')
    edge = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
    parts.append(f'{edge}class="{box.border or "box"}" fill="none"/>')
    middle = x + WIDTH // 2
    if box.note:
        parts.append(_text(middle, y + 16, box.text, middle=True))
        parts.append(_text(middle, y + 31, box.note, "small", middle=True))
    else:
        parts.append(_text(middle, y + 24, box.text, middle=True))
    return parts


def _text(x: int, y: int, text: str, style: str = "", *, middle: bool = False) -> str:
    extra = f' class="{style}"' if style else ""
    extra += ' text-anchor="middle"' if middle else ""
    return f'<text x="{x}" y="{y}"{extra}>{escape(text)}</text>'
