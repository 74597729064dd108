"""The kinds of numbers that name a place, so that mypy finds a stripe that is passed as a role.

    logical chunk --locate--> (stripe, cell) --place--> (role, member chunk) --> byte offset

At run time they are plain integers. Arithmetic on them gives an `int`, and the caller that passes
it to a function names its kind again:

* on the path of every request by the annotation of the function or table that it comes from, or
  by one of the functions below, which are `range`, `enumerate` and `divmod`;
* elsewhere by a call (`Stripe(number)`), which costs as much as any call of Python.

Byte offsets, and the chunk that `Layout.locate` is asked for, are computed wherever they are used:
functions return an `Offset` or a `Chunk`, but take any `int`. A cell of a raidx layout's table
(bundle * length + column) is no `CellIndex`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NewType, TypeVar

T = TypeVar("T")

Role = NewType("Role", int)  # the index of a member in the array
Stripe = NewType("Stripe", int)
CellIndex = NewType("CellIndex", int)  # of a stripe: data cells first, then parity cells
Chunk = NewType("Chunk", int)  # a logical data chunk of the image
MemberChunk = NewType("MemberChunk", int)  # a chunk of a member's data region
Offset = NewType("Offset", int)  # in bytes, on a member

if TYPE_CHECKING:

    def stripe_range(first: int, end: int) -> Sequence[Stripe]: ...
    def cell_range(first: int, end: int) -> Sequence[CellIndex]: ...
    def role_range(first: int, end: int) -> Sequence[Role]: ...
    def chunk_range(first: int, end: int) -> Sequence[Chunk]: ...

    # of members in the order of their roles
    def by_role(members: Iterable[T]) -> Iterator[tuple[Role, T]]: ...

    # of chunks that follow one another in the stripes, and of bytes of the image
    def stripe_and_cell(chunk: int, data_cells: int) -> tuple[Stripe, CellIndex]: ...
    def stripe_and_inner(offset: int, stripe_bytes: int) -> tuple[Stripe, int]: ...

else:
    stripe_range = cell_range = role_range = chunk_range = range
    by_role = enumerate
    stripe_and_cell = stripe_and_inner = divmod
