"""The lab sheets: their commands run in order in one empty folder, and the answers are true."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, TEXTS, blocks, shell_environment
from tests.docs.test_tours import folder, typed

__all__ = ["folder"]
SHEETS = {  # name -> questions, sums by hand in the answers
    "striping": (12, 3),
    "write-hole": (14, 4),
    "raid6": (12, 1),
    "bit-rot": (12, 2),
    "growing": (10, 0),
    "unlike-disks": (10, 0),
    "hotspots": (12, 0),
}


def sheet(name: str) -> str:
    return f"examples/lab/{name}.md"


def answers(name: str) -> str:
    return f"examples/lab/{name}-answers.md"


def test_every_sheet_is_here() -> None:
    found = {path.stem for path in (ROOT / "examples" / "lab").glob("*.md")}
    assert found == {*SHEETS, *(f"{name}-answers" for name in SHEETS)}


@pytest.mark.parametrize("name", SHEETS)
def test_every_question_has_its_answer(name: str) -> None:
    asked = re.findall(r"\*\*Question (\d+)\.\*\*", TEXTS[sheet(name)])
    answered = re.findall(r"^(\d+)\. ", TEXTS[answers(name)], re.MULTILINE)
    assert asked == answered == [str(number) for number in range(1, len(asked) + 1)]
    assert len(asked) == SHEETS[name][0]
    minutes = int(re.findall(r"^About (\d+) minutes", TEXTS[sheet(name)], re.MULTILINE)[0])
    assert 45 <= minutes <= 90


@pytest.mark.parametrize("name", SHEETS)
def test_the_sums_are_right(name: str) -> None:
    sums = re.findall(r"`(?:P\d = )?(\w\w) \^ (\w\w) = (\w\w)`", TEXTS[answers(name)])
    assert len(sums) == SHEETS[name][1]
    for left, right, total in sums:
        assert int(left, 16) ^ int(right, 16) == int(total, 16)


def settled(row: str) -> str:
    """Return a line of `peek` without whether the checkpoint has placed the bytes by now."""
    return re.sub(r" (log|home) +", " home ", row.rstrip())


def play(name: str, folder: Path) -> dict[str, str]:
    """Type everything that the sheet *name* says; return what each line printed.

    `typed` fails on any command that does not end with 0: `cmp`, `scrub` and `peek` do judge. The
    answers' lines must have been printed, in their order.
    """
    for text in blocks(sheet(name), "toml"):
        (folder / text.split()[1]).write_text(text)
    lines = [line for text in blocks(sheet(name), "sh") for line in text.splitlines() if line]
    printed = [typed(line, folder) for line in lines]
    everything = [settled(row) for output in printed for row in output.splitlines()]
    at = 0
    for text in blocks(answers(name), "text"):
        for row in text.splitlines():
            assert settled(row) in everything[at:], row
            at = everything.index(settled(row), at)
    return dict(zip(lines, printed, strict=True))


@pytest.mark.mount
@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_runs_as_its_answers_say(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", shell_environment()["COLUMNS"])
    last = play(name, folder)
    assert len(last) >= 15
    if name != "hotspots":
        assert "0 mismatches" in last["raidx scrub mnt --check --wait"]
    if name == "unlike-disks":  # what its answers say in words
        rows = last["raidx simulate tuning.toml"].splitlines()
        first, final = (list(map(float, rows[number].split()[:4])) for number in (-4, -1))
        assert 1.2 < final[2] < 1.5
        assert first[2] / 9 < final[2] < first[2] / 7
        assert final[3] > first[3] / 2
    assert os.listdir(folder) == (["mnt"] if name == "write-hole" else []), "the sheet cleans up"
