"""The lab sheets: their commands run in order in one empty folder, and the answers are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import TEXTS, blocks
from tests.docs.test_tours import folder, run

__all__ = ["folder"]
SHEET, ANSWERS = "examples/lab-write-hole.md", "examples/lab-write-hole-answers.md"


def test_every_question_has_its_answer() -> None:
    asked = re.findall(r"\*\*Question (\d+)\.\*\*", TEXTS[SHEET])
    answered = re.findall(r"^(\d+)\. ", TEXTS[ANSWERS], re.MULTILINE)
    assert asked == answered == [str(number) for number in range(1, len(asked) + 1)]
    assert len(asked) == 14


def test_the_sums_are_right() -> None:
    sums = re.findall(r"`(\w\w) \^ (\w\w) = (\w\w)`", TEXTS[ANSWERS])
    assert len(sums) == 4
    for left, right, total in sums:
        assert int(left, 16) ^ int(right, 16) == int(total, 16)


def settled(row: str) -> str:
    """Return a line of `peek` without whether the checkpoint has placed the bytes by now."""
    return re.sub(r" (log|home) +", " home ", row.rstrip())


@pytest.mark.mount
def test_the_sheet_about_the_write_hole_runs_as_its_answers_say(folder: Path) -> None:
    """`run` fails on any command that does not end with 0: `cmp`, `scrub` and `peek` do judge."""
    lines = [line for text in blocks(SHEET, "sh") for line in text.splitlines() if line]
    printed = [run(line, folder) for line in lines]
    everything = [settled(row) for output in printed for row in output.splitlines()]
    at = 0
    for text in blocks(ANSWERS, "text"):
        for row in text.splitlines():
            assert settled(row) in everything[at:], row
            at = everything.index(settled(row), at)
    last = dict(zip(lines, printed, strict=True))
    assert "0 mismatches" in last["raidx scrub mnt --check --wait"]
    assert len(lines) >= 30
    assert not list(folder.glob("*.img"))
