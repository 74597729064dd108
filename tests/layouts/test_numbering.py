"""The order of the chunks of a grown array, of whose last growth a part is in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.layouts.numbers import Stripe, cell_range
from raidx_fuse.layouts.placements.elastic import ElasticLayout
from raidx_fuse.layouts.placements.numbering import numbering_from
from raidx_fuse.layouts.placements.restriping import PartlyUsedError, numbering_for, restripe
from raidx_fuse.layouts.registry import make_layout

ROWS = 60
GROWN: list[tuple[str, dict[str, Any]]] = [
    ("raid5", {"history": [4, 6], "rules": [[2, 1]]}),
    ("raid4", {"history": [4, 5]}),
    ("raid5", {"history": [3, 4, 6], "rules": [[1, 1], [3, 2]]}),
    ("rdp", {"history": [4, 6], "rules": [[2, 1]], "prime": 5, "rotate": True}),
]


def grown(name: str, params: dict[str, Any]) -> ElasticLayout:
    """Return a grown layout."""
    layout = make_layout(name, params["history"][-1], ROWS, 4096, **params)
    assert isinstance(layout, ElasticLayout)
    return layout


@pytest.mark.parametrize(("name", "params"), GROWN)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.8, 1.0])
def test_chunks_in_use_have_the_first_indexes_in_the_order_of_the_stripes(
    name: str, params: dict[str, Any], share: float
) -> None:
    layout = grown(name, params)
    last = layout.generations[-1]
    used = last.start + max(1, round(share * (last.end - last.start)))
    order = numbering_for(layout, used)
    assert order is not None
    assert used <= order.total <= layout.chunks
    # Brute force: cell by cell through the stripes, what lies behind the total left out.
    cells = cell_range(0, layout.code.data_count)
    there = (layout.logical(Stripe(s), c) for s in range(layout.stripes) for c in cells)
    expected = [chunk for chunk in there if chunk < order.total]
    assert [order.chunk(index) for index in range(order.total)] == expected
    assert order.chunks(np.arange(layout.chunks)).tolist()[: order.total] == expected
    assert [order.index(chunk) for chunk in expected] == list(range(order.total))
    assert order.index(order.total) == order.chunk(order.total) == order.total
    again = numbering_from(order.as_dict())
    assert (again.kept, again.total, again.as_dict()) == (order.kept, order.total, order.as_dict())
    kept = [generation.most_chunks(used) for generation in layout.generations[-1:]]
    assert kept[0] <= used <= order.total


@pytest.mark.parametrize("kept", [0, 7, 61, -1, "2", True, None])
def test_a_share_that_no_first_chunks_fill_is_refused(kept: object) -> None:
    order = grown(*GROWN[0]).numbering(2, 12).as_dict()
    assert order["generations"][-1] == [2, 6, 2, 12]
    order["generations"][-1][-1] = kept
    with pytest.raises(LayoutError):
        numbering_from(order)
    with pytest.raises(LayoutError):
        numbering_from({**order, "generations": [[3, 1, 0, 12]]})


def test_a_move_that_would_go_both_ways_is_refused() -> None:
    layout = grown(*GROWN[0])
    order = layout.numbering(2, 12)
    fewer = make_layout("raid5", 5, ROWS, 4096, order=order.as_dict())
    with pytest.raises(PartlyUsedError, match="in use in part"):
        restripe(layout, fewer, order.total, [0, 1, 2, 3, 5])
