"""The mutants fit the code as it is, and what plants them tells a bug that is found from none."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

import click
import pytest

from raidx_fuse.lab.crash.pairs import is_pair
from raidx_fuse.lab.crash.state import Cell
from raidx_fuse.lab.crash.workload import themes_of
from tests.crash import mutations
from tests.crash.mutants.mutant import Mutant
from tests.crash.mutations import MUTANTS, ROOT, Copy, Verdict, examine, page

MUTANTS_MIN = 60
KNOWN = next(m for m in MUTANTS if m.name == "placed-before-the-record-is-durable")


def test_every_bug_can_be_planted_and_is_looked_for() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    sources = {mutant.file: (ROOT / mutant.file).read_text() for mutant in MUTANTS}
    for mutant in MUTANTS:
        source = sources[mutant.file]
        planted = mutant.planted(source)
        assert planted != source, mutant.name
        compile(planted, mutant.file, "exec", ast.PyCF_ONLY_AST)
        assert mutant.cells, f"{mutant.name}: which cells of the campaign suit it?"
        for test in mutant.tests:
            assert (ROOT / test.split("::")[0]).is_file(), f"{mutant.name}: there is no {test}"
    for text in {cell for mutant in MUTANTS for cell in mutant.cells}:
        cell = Cell.parse(text)
        assert not cell.theme or cell.theme in themes_of(cell) or is_pair(cell), text


@pytest.mark.parametrize(("old", "count"), [("self.nowhere()", 0), ("return", 2)])
def test_a_bug_that_does_not_fit_is_named(old: str, count: int) -> None:
    mutant = replace(KNOWN, old=old)
    with pytest.raises(ValueError, match=f"{KNOWN.name}.* {count} times"):
        mutant.planted("def f():\n    return 1\n\ndef g():\n    return 2\n")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def test_a_bug_is_found_in_a_copy_of_the_tree_and_gone_afterwards(copy: Copy) -> None:
    source = (ROOT / KNOWN.file).read_text()
    found = examine(copy, replace(KNOWN, cells=("raid5:full",), tests=()), 250)
    assert found.found_by.startswith("campaign raid5:full"), found.words
    assert "--replay" in found.words
    assert found.is_right
    assert not replace(found, mutant=replace(KNOWN, equivalent="so they say")).is_right
    assert (ROOT / KNOWN.file).read_text() == (copy.folder / KNOWN.file).read_text() == source


def test_no_bug_is_found_by_nobody_and_one_by_a_test(copy: Copy) -> None:
    new = "# nothing but this"
    harmless = Mutant("comment", KNOWN.file, "log = ", f"{new}\nlog = ", "", ("raid0:none",), ())
    survivor = examine(copy, harmless, 20)
    assert not survivor.found_by, survivor.words
    assert not survivor.is_right
    test = "tests/crash/test_nothing.py"
    (copy.folder / test).write_text(
        "from pathlib import Path\n\n"
        f"def test_it() -> None:\n    assert {new!r} not in Path({KNOWN.file!r}).read_text()\n"
    )
    found = examine(copy, replace(harmless, cells=(), tests=(test,)))
    assert found.found_by == "crash/test_nothing.py::test_it", found.words


def test_what_finds_something_without_a_bug_as_well_finds_none(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = "tests/test_x.py::test_y"

    def run(_copy: Copy, command: Sequence[str], _limit_s: float) -> tuple[int, str]:
        fails = f"--deselect={test}" not in command
        return int(fails), f"FAILED {test}" if fails else ""

    monkeypatch.setattr(Copy, "_run", run)
    assert not examine(copy, replace(KNOWN, cells=())).found_by
    assert copy.broken == [test]
    monkeypatch.setattr(copy, "broken", [])
    monkeypatch.setattr(Copy, "_run", lambda *_: (3, "0 campaign raid5:full, write\n"))
    with pytest.raises(click.ClickException, match="without any bug campaign raid5:full"):
        examine(copy, KNOWN)


def test_who_does_not_end_is_found(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "CAMPAIGN_LIMIT_S", 0.1)
    finding = copy.look(replace(KNOWN, tests=()), 250, 1)
    assert finding is not None
    assert finding.by == "campaign, which does not end"


def test_the_page_says_what_became_of_each() -> None:
    same = replace(KNOWN, name="same", equivalent="it is the same")
    verdicts = [
        Verdict(KNOWN, "campaign raid5:full, flush", "", 2.0),
        Verdict(replace(KNOWN, name="other"), "engine/test_x.py::test_y", "", 3.0),
        Verdict(same, "", "", 4.0),
        Verdict(same, "campaign raid5:full, flush", "", 5.0),
        Verdict(replace(KNOWN, name="missed"), "", "", 6.0),
    ]
    text = page(verdicts, "python -m x", "2026-01-02", 120.0, [replace(KNOWN, name="later")])
    assert "5 bugs were planted, one at a time: 1 were found by the crash" in text
    assert "campaign, 1 by tests, 1 are equivalent, 2 unexplained;\n1 were not run." in text
    assert "| later |" in text
    assert "| not run | - |" in text
    assert "equivalent: it is the same" in text
    assert "| called equivalent, but found by campaign raid5:full, flush |" in text
    assert "| SURVIVES |" in text
    assert text.count(KNOWN.why) == len(verdicts) + 1
