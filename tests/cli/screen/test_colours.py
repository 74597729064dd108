"""Colours that say something can be told apart by those who do not see red, or green, as others do.

A colour as they see it: Machado, Oliveira, Fernandes, "A physiologically-based model for simulation
of color vision deficiency", 2009, severity 1.0. Distances are those of CIE Lab (1976).
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

import raidx_fuse.view
from raidx_fuse.cli.screen.frame import COLOURS

SEEN = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
GREY = "#767676"  # bright black, as terminals have it: written, and not used
APART_MIN = 20.0
CSS = (Path(raidx_fuse.view.__file__).parent / "static" / "view.css").read_text()
Lab = tuple[float, float, float]


def seen(colour: str, who: str) -> Lab:
    """Return *colour* (#rrggbb) in Lab (D65), as *who* sees it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True))))
        for row in SEEN[who]
    )
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, other: str, who: str) -> float:
    """Return the distance of two colours."""
    pairs = zip(seen(one, who), seen(other, who), strict=True)
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs))


def test_distances_are_those_of_lab() -> None:
    assert seen("#ffffff", "all") == pytest.approx((100, 0, 0), abs=0.1)
    assert seen("#ff0000", "all") == pytest.approx((53.2, 80.1, 67.2), abs=0.2)
    assert apart("#cd0000", "#00cd00", "all") > 100
    assert apart("#00cd00", "#ff0000", "no green") < APART_MIN, "what the map had"


@pytest.mark.parametrize("who", SEEN)
def test_degrees_of_heat_are_apart_and_each_is_brighter(who: str) -> None:
    for one, other in itertools.combinations((GREY, *COLOURS), 2):
        assert apart(one, other, who) >= APART_MIN, (one, other)
    lights = [seen(colour, who)[0] for colour in COLOURS]
    assert lights == sorted(lights)


@pytest.mark.parametrize("who", SEEN)
def test_read_and_written_cells_of_the_page_are_apart(who: str) -> None:
    for part in ("stroke", "fill"):
        found = [
            re.search(rf"\.cell\.{kind} rect[^{{]*{{[^}}]*{part}: (#\w{{6}})", CSS)
            for kind in ("read", "write")
        ]
        read, write = (each[1] for each in found if each is not None)
        assert apart(read, write, who) >= APART_MIN, part
