"""Arrays on the shelf: what an earlier commit has made mounts, ends its jobs, and has every byte.

shelf/COMMIT.shelf has arrays of every layout in every state that the commit could stop in, packed
and played by shelf/shelf.py. No shelf is ever removed, nor made anew; CONTRIBUTING.md says when one
is added.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.layouts.registry import find_layout
from raidx_fuse.members.simulated.virtual_time import run
from tests.format.shelf import shelf

SHELVES = sorted(Path(shelf.__file__).parent.glob("*.shelf"))
DEGRADED = ("rebuild", "absent")  # without a member already
FAILS_FIRST = "raidx-"  # 79fb2b4 fails the member of these layouts that it is to replace
PACKED_MAX = 10 << 20


@cache
def entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the arrays of a shelf by name."""
    return {entry["name"]: entry for entry in shelf.read_shelf(path)[0]}


PLACES = [(path, name) for path in SHELVES for name in entries(path)]


@pytest.mark.parametrize("path", SHELVES, ids=lambda path: path.stem)
def test_a_shelf_has_every_pair_that_its_commit_can_make(path: Path) -> None:
    made = entries(path)
    impossible = [name.rsplit("-", 2) for name in shelf.read_shelf(path)[1]]
    seen = {(e["layout"], e["state"]) for e in made.values() if not e["cut"]}
    refused = {(layout, state) for layout, _, state in impossible}
    layouts = {layout for layout, _ in seen | refused}
    states = {state for _, state in seen | refused}
    assert layouts >= set(shelf.LAYOUTS)
    assert states >= set(shelf.STATES)
    assert seen | refused == set(product(layouts, states))
    assert not seen & refused
    assert {(e["layout"], e["state"]) for e in made.values() if e["cut"]} == seen
    for kind in ("layout", "state"):
        pairs = {(e[kind], e["mode"]) for e in made.values()}
        assert pairs == set(product(layouts if kind == "layout" else states, shelf.MODES))
    assert sum(shelf.stat().st_size for shelf in SHELVES) < PACKED_MAX


@pytest.mark.parametrize(
    ("path", "name"), PLACES, ids=[f"{path.stem}-{name}" for path, name in PLACES]
)
def test_an_array_of_an_earlier_commit_is_whole(path: Path, name: str) -> None:
    entry = entries(path)[name]
    run(shelf.play, entry)
    info = find_layout(entry["layout"])
    width = shelf.LAYOUTS[entry["layout"]][0]
    degraded = entry["state"] in DEGRADED
    degraded |= entry["state"] == "replacement" and name.startswith(FAILS_FIRST)
    if not degraded and not entry["cut"] and info.tolerance(width):
        run(shelf.play_without, entry, len(name) % width)
