"""Placements by patterns for tests: stripes narrower than the array, balanced by translation."""

from __future__ import annotations

from collections.abc import Sequence

from raidx_fuse.layouts.codes.code import Code
from raidx_fuse.layouts.codes.horizontal import rdp, replicas, single_parity
from raidx_fuse.layouts.placements.pattern import Pattern, PatternLayout


def translated(bases: Sequence[Sequence[int]], width: int) -> Pattern:
    """Return *bases*, each a stripe, moved on to every role in turn: so all roles have as much."""
    return [[(role + by) % width for role in base] for base in bases for by in range(width)]


def made_by(code: Code, bases: Sequence[Sequence[int]], width: int, chunks: int) -> PatternLayout:
    return PatternLayout("pattern", code, 4096, chunks, width, translated(bases, width))


def patterned(name: str, width: int, chunks: int) -> PatternLayout:
    """Return one of three placements: of single parity, row-diagonal parity, or copies."""
    code = {"of-parity": single_parity(3), "of-rdp": rdp(4), "of-copies": replicas(2)}[name]
    return made_by(code, [range(code.columns), [0, 2, 1, 3][: code.columns]], width, chunks)
