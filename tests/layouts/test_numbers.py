"""Kinds of numbers: mypy tells them apart, and at run time they cost nothing.

The lines behind `TYPE_CHECKING` are mistakes. mypy must find each of them: it reports an ignored
error that is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raidx_fuse.layouts import numbers
from raidx_fuse.layouts.numbers import Role, Stripe
from raidx_fuse.layouts.registry import make_layout

if TYPE_CHECKING:
    from raidx_fuse.engine.context import ArrayContext
    from raidx_fuse.layouts.placements.layout import Layout
    from raidx_fuse.store.io_tuples import MemberIO
    from raidx_fuse.store.member_set import MemberSet

    def mistakes(layout: Layout, context: ArrayContext, member_set: MemberSet) -> None:
        stripe, cell = layout.locate(7)
        role, member_chunk = layout.place(stripe, cell)
        layout.place(cell, stripe)  # type: ignore[arg-type]
        layout.roles(role)  # type: ignore[arg-type]
        layout.inverse(stripe, member_chunk)  # type: ignore[arg-type]
        layout.lost_cells(stripe, frozenset({stripe}))  # type: ignore[arg-type]
        layout.place(stripe + 1, cell)  # type: ignore[arg-type]  # nobody has said what it is
        member_set.fail(stripe, "")  # type: ignore[arg-type]
        member_set.lost_at(role)  # type: ignore[arg-type]
        context.journal.holds(role)  # type: ignore[arg-type]
        context.locks.release(member_chunk)  # type: ignore[arg-type]
        context.journal.overlay.put(stripe, 0, b"")  # type: ignore[arg-type]
        _write: MemberIO = (stripe, 0, [b""], 1)  # type: ignore[assignment]
        _swapped: MemberIO = (4096, role, [b""], 1)  # type: ignore[assignment]


def test_they_are_plain_integers() -> None:
    layout = make_layout("raid5", 4, 10, 4096)
    stripe, cell = layout.locate(7)
    role, member_chunk = layout.place(stripe, cell)
    assert {type(number) for number in (stripe, cell, role, member_chunk)} == {int}
    assert layout.inverse(Role(role), member_chunk) == (Stripe(2), 1)


def test_what_names_them_on_the_hot_path_is_no_call_of_its_own() -> None:
    named = vars(numbers)
    assert {named[name] for name in named if name.endswith("_range")} == {range}
    assert {named[name] for name in named if name.startswith("stripe_and_")} == {divmod}
    assert named["by_role"] is enumerate
