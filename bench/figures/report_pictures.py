"""The pictures of the report: charts of its tables, the papers' values in grey, and the headlines.

They are drawn from report.json alone, into ``pictures/`` beside REPORT.md. The papers' values are
those that their texts tell (`PAPER`); curves that are in their pictures only were not read off. The
last line of each picture has a hash of what it shows, which a test compares with report.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from paper_common import Cell, Chart

from raidx_fuse.lab.experiments.results import drawn

FOLDER = Path(__file__).parent / "pictures"
HEADLINES = "headlines"
GREY = "0.75"


class Grey(NamedTuple):
    """What the text of a paper tells of a figure: a band from *low* to *high*, or a line if equal.

    *at*: only there. *of*: in terms of that one of our curves. *words*: the paper's own, in short.
    """

    words: str
    low: float
    high: float
    at: float | None = None
    of: str = ""


_FASTER = "6 to 10 % better (writes)"
PAPER: Mapping[tuple[str, str, int], Sequence[Grey]] = {  # by section, figure, number of its chart
    ("bpu", "Fig. 4", 0): (Grey(_FASTER, 0.90, 0.94),),
    ("bpu", "Fig. 6", 0): (Grey(_FASTER, 0.90, 0.94),),
    ("bpu", "Fig. 7", 0): (
        Grey("57.5 % heavy", 0.575, 0.575, at=500.0),
        Grey("1.8 % heavy", 0.018, 0.018, at=3000.0),
    ),
    ("bpu", "Fig. 8", 0): (Grey("up to 9.9 % better", 0.901, 1.0),),
    ("bpu", "Fig. 9", 0): (Grey("3.1 to 9.8 % better", 0.902, 0.969),),
    ("dswap", "Fig. 3(a)", 0): (
        Grey("random: 2 to 3 times Dswap", 2.0, 3.0, of="Dswap, as in the paper"),
    ),
    ("dswap_prototype", "Fig. 6(a)", 0): (Grey("threshold", 50.0, 50.0),),
    ("dswap_prototype", "Fig. 6(b)", 0): (Grey("threshold", 50.0, 50.0),),
    ("dswap_prototype", "Fig. 7", 0): (Grey("threshold", 50.0, 50.0),),
    ("mcpod", "Figs. 11 to 13, the ways of parity", 0): (
        Grey("mean of MD-Reshape", 9.76, 9.76),
        Grey("mean of McPod", 8.37, 8.37),
    ),
    ("upc", "Fig. 6", 0): (Grey("25.1 % less than P-code", 0.749, 0.749, at=140.0, of="P-code"),),
}


class Picture(NamedTuple):
    """A picture: *name* of its file, *alt* and *title*, and the chart with what the paper tells."""

    name: str
    alt: str
    title: str
    chart: Chart
    paper: Sequence[Grey]

    @property
    def caption(self) -> str:
        """What stands below it."""
        if self.paper:
            return "Grey: what the paper's text tells."
        return "The paper's values are in its picture only, and were not read off."

    def digest(self) -> str:
        shown = [self.title, self.chart.__dict__, self.paper]
        return sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


def pictures_of(section: str, mark: str, ident: str, charts: Sequence[Chart]) -> Iterator[Picture]:
    """Yield the pictures of one table; *mark* says of which runs they are."""
    for number, chart in enumerate(charts):
        word = re.sub(r"\W+", "-", f"{section}-{ident}-{number}".lower()).strip("-")
        alt = f"{ident}: {chart.y_label} over {chart.x_label}"
        paper = PAPER.get((section, ident, number), ())
        yield Picture(f"{word}.svg", alt, f"{ident} ({mark})", chart, paper)


def draw(picture: Picture, folder: Path) -> None:
    """Draw *picture* into *folder*. Raises UsageError as `drawn` does."""
    chart, path = picture.chart, folder / picture.name
    with drawn(str(path), 1, (6.4, 3.4)) as (axis,):
        for told in picture.paper:
            _draw_grey(axis, chart, told)
        for label, values in chart.series.items():
            axis.plot(list(chart.x), list(values), marker="o", markersize=3, label=label)
        if chart.log_x:
            axis.set_xscale("log")
        axis.set_xlabel(chart.x_label)
        axis.set_ylabel(chart.y_label)
        axis.set_title(picture.title, fontsize=8)
        axis.legend(fontsize=7)
    _sign(path, picture.digest())


def _draw_grey(axis: Any, chart: Chart, told: Grey) -> None:
    label, x = f"paper: {told.words}", list(chart.x)
    unit = list(chart.series[told.of]) if told.of else [1.0] * len(x)
    if told.at is not None:
        base = unit[x.index(told.at)] if told.of else 1.0
        axis.plot([told.at], [told.low * base], "s", color="0.5", markersize=7, label=label)
    elif told.low == told.high:
        axis.plot(x, [told.low * each for each in unit], color="0.5", linewidth=1.2, label=label)
    else:
        edges = ([side * each for each in unit] for side in (told.low, told.high))
        axis.fill_between(x, *edges, color=GREY, alpha=0.6, label=label)


class Span(NamedTuple):
    """A figure with what lies around it: its interval, its standard error, or its range."""

    low: float
    value: float
    high: float


def span_of(cell: Cell) -> Span | None:
    """Return the figure in a cell of a table; None if there is none.

    >>> span_of("+8.1 % (s.e. 1.5)"), span_of("+8.1 % (+2.0 to +14.0, n = 3)")
    (Span(low=6.6, value=8.1, high=9.6), Span(low=2.0, value=8.1, high=14.0))
    >>> span_of("6 to 10 % better"), span_of("over 2.5"), span_of(5.06), span_of("")
    (Span(low=6.0, value=8.0, high=10.0), Span(low=2.5, value=2.5, high=2.5), \
Span(low=5.06, value=5.06, high=5.06), None)
    """
    if not isinstance(cell, str):
        return Span(cell, cell, cell)
    text, _, beside = cell.partition("(")
    found = [float(number) for number in re.findall(r"[+-]?\d+(?:\.\d+)?", text)]
    around = [float(n) for n in re.findall(r"[+-]?\d+(?:\.\d+)?", beside.partition("n =")[0])]
    if not found:
        return None
    if "s.e." in beside and around:
        return Span(round(found[0] - around[0], 6), found[0], round(found[0] + around[0], 6))
    if len(around) == 2:
        return Span(around[0], found[0], around[1])
    return Span(min(found[:2]), sum(found[:2]) / len(found[:2]), max(found[:2]))


class Line(NamedTuple):
    """A headline: its *words*, with the mark of its run, and its cells."""

    words: str
    paper: Cell
    as_paper: Cell
    ours: Cell
    is_percent: bool


def headlines_digest(lines: Sequence[Line]) -> str:
    return sha256(json.dumps(lines).encode()).hexdigest()[:16]


def draw_headlines(lines: Sequence[Line], folder: Path) -> None:
    """Draw the papers' headlines: gains in percent above, multiples below. Raises UsageError."""
    path = folder / f"{HEADLINES}.svg"
    with drawn(str(path), 2, (9.0, 8.0)) as axes:
        for axis, is_percent in zip(axes, (True, False), strict=True):
            part = [line for line in lines if line.is_percent == is_percent]
            for kind, shift, style in (
                ("paper", 0.0, {"color": GREY, "fmt": "s", "markersize": 9, "elinewidth": 7}),
                ("as_paper", 0.12, {"color": "C0", "fmt": "o", "markersize": 5, "capsize": 3}),
                ("ours", -0.12, {"color": "C3", "fmt": "^", "markersize": 5, "capsize": 3}),
            ):
                placed = [
                    (number + shift, span)
                    for number, line in enumerate(reversed(part))
                    if (span := span_of(getattr(line, kind))) is not None
                ]
                if placed:
                    y, spans = zip(*placed, strict=True)
                    around = [
                        [max(0.0, span.value - span.low) for span in spans],
                        [max(0.0, span.high - span.value) for span in spans],
                    ]
                    label = {"as_paper": "ours, as in the paper"}.get(kind, kind)
                    values = [span.value for span in spans]
                    axis.errorbar(values, y, xerr=around, label=label, **style)
            axis.set_yticks(range(len(part)), [line.words for line in reversed(part)], fontsize=7)
            axis.set_ylim(-0.6, len(part) - 0.4)
            axis.axvline(0.0 if is_percent else 1.0, color="0.3", linewidth=0.8)
            if not is_percent:
                axis.set_xscale("log")
            axis.set_xlabel("better by, %" if is_percent else "times as fast, or times less")
            axis.legend(fontsize=7)
    _sign(path, headlines_digest(lines))


def _sign(path: Path, digest: str) -> None:
    with path.open("a") as file:
        file.write(f"<!-- {digest} -->\n")


def signed(path: Path) -> str:
    """Return the hash in the last line of a picture."""
    return path.read_text().splitlines()[-1].removeprefix("<!-- ").removesuffix(" -->")
