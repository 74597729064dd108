"""XOR programs: what they compute, how few XORs they take, in blocks of any shape."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

from raidx_fuse.layouts.codes.code import Code, bits
from raidx_fuse.layouts.registry import make_code
from raidx_fuse.store import xor
from raidx_fuse.store.buffers import BLOCK_BYTES, Bytes
from raidx_fuse.store.xor import combine, compile_steps, encoder

CODES = [("rdp", 8), ("rdp", 6), ("evenodd", 9), ("xcode", 5), ("pcode", 6), ("upc", 10)]


def stripe_of(code: Code, shape: tuple[int, ...], seed: int) -> list[Bytes]:
    """Return all cells of a random stripe, the parities by their support, the plain way."""
    rng = np.random.default_rng(seed)
    cells = [rng.integers(0, 256, shape, dtype=np.uint8) for _ in range(code.data_count)]
    for support in code.support:
        parity = np.zeros(shape, dtype=np.uint8)
        for cell in bits(support):
            parity ^= cells[cell]
        cells.append(parity)
    return cells


def xors_of(program: xor.Program) -> int:
    """Return the number of XORs of two cells in *program*."""
    return sum(len(sources) - 1 for _, sources in program.steps if sources)


@pytest.mark.parametrize(("name", "width"), CODES)
@pytest.mark.parametrize("shape", [(24,), (70_001,), (3, 4096), (5, 40_000), (70, 64)])
def test_encoding_and_decoding_give_the_true_cells(
    name: str, width: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xor, "BLOCK_BYTES_MIN", 1 << 13)
    monkeypatch.setattr(xor, "BLOCK_BYTES_MAX", 1 << 13)
    code = make_code(name, width)
    truth = stripe_of(code, shape, width)
    got = truth[: code.data_count] + [np.full(shape, 7, np.uint8) for _ in code.chains]
    encoder(code).run(got)
    assert all(np.array_equal(a, b) for a, b in zip(got, truth, strict=True))
    columns = random.Random(width).sample(range(width), 2)
    lost = code.columns_mask(frozenset(columns))
    program = compile_steps(code.schedule(lost, lost), len(code.cells))
    for cell in bits(lost):
        got[cell] = np.full(shape, 9, np.uint8)
    program.run(got)
    assert all(np.array_equal(a, b) for a, b in zip(got, truth, strict=True))


def test_rows_with_a_stride_between_the_stripes() -> None:
    """The rows of a strip lie between the other rows of the same member."""
    code = make_code("upc", 6)
    member_rows = np.zeros((len(code.cells), 5, 3, 512), dtype=np.uint8)
    cells = [member_rows[i, :, i % 3, :] for i in range(len(code.cells))]
    truth = stripe_of(code, (5, 512), 1)
    for cell, content in zip(cells, truth[: code.data_count], strict=False):
        cell[:] = content
    encoder(code).run(cells)
    assert all(np.array_equal(a, b) for a, b in zip(cells, truth, strict=True))


@pytest.mark.parametrize("p", [5, 7, 11, 13])
def test_encoding_takes_the_published_numbers_of_xors(p: int) -> None:
    """RDP, X-code and P-code are optimal; EVENODD shares its adjuster (Blaum et al., 1995)."""
    assert xors_of(encoder(make_code("rdp", p + 1))) == 2 * (p - 1) * (p - 2)
    assert xors_of(encoder(make_code("xcode", p))) == 2 * p * (p - 3)
    for name in ("pcode", "upc"):
        assert xors_of(encoder(make_code(name, p - 1))) == (p - 1) * (p - 4)
    adjuster, rows, diagonals = p - 2, (p - 1) * (p - 1), (p - 1) * (p - 1)
    assert xors_of(encoder(make_code("evenodd", p + 2))) == adjuster + rows + diagonals


@pytest.mark.parametrize(("name", "width"), [("rdp", 8), ("xcode", 7), ("upc", 6), ("upc", 10)])
def test_decoding_any_two_columns_takes_no_more_than_encoding(name: str, width: int) -> None:
    code = make_code(name, width)
    for columns in combinations(range(width), 2):
        lost = code.columns_mask(frozenset(columns))
        program = compile_steps(code.schedule(lost, lost), len(code.cells))
        assert xors_of(program) <= xors_of(encoder(code))


def test_what_steps_share_is_computed_once_and_before_its_first_use() -> None:
    program = compile_steps([(5, 0b00111), (6, 0b01111), (7, 0b1010111)], 8)
    assert program.temporaries == 1
    assert program.steps[0] == (8, (0, 1, 2))
    assert xors_of(program) == 2 + 0 + 1 + 2
    assert program.steps[-1] == (7, (4, 6, 8))


def test_a_program_without_steps_does_nothing() -> None:
    compile_steps([], 0).run([])


@pytest.mark.parametrize("size", [512, BLOCK_BYTES + 512])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_the_target_may_be_any_of_the_terms(count: int, size: int) -> None:
    rng = np.random.default_rng(count)
    contents = [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(count)]
    truth = np.zeros(size, np.uint8)
    for content in contents:
        truth ^= content
    for place in range(-1, count):  # -1: none
        terms = [content.copy() for content in contents]
        out = terms[place] if place >= 0 else np.full(size, 7, np.uint8)
        combine(out, terms)
        assert np.array_equal(out, truth)
        for number, (term, content) in enumerate(zip(terms, contents, strict=True)):
            assert number == place or np.array_equal(term, content)
