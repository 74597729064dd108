"""`raidx quiz`: its text, its JSON, and the check of answers from a file."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from raidx_fuse.cli.commands.teach import quiz as command
from raidx_fuse.cli.main import main
from raidx_fuse.lab.quiz import EVERY_KIND, LEVELS
from tests.support.command import fail, run, run_json


def test_answers_are_printed_only_when_asked_for() -> None:
    plain = run("quiz", "--seed", "3")
    solved = run("quiz", "--seed", "3", "--answers")
    assert len(plain.splitlines()) == 5
    assert len(solved.splitlines()) == 10
    assert solved.splitlines()[::2] == plain.splitlines()
    assert all("because" in line for line in solved.splitlines()[1::2])
    about = r"\d\. (\w+ on \d+ disks?\.|Each array can serve) .*\)$"
    assert all(re.match(about, line) for line in plain.splitlines())


def test_the_json_has_the_facts_and_with_answers_the_answers() -> None:
    document = run_json("quiz", "--layout", "raid5", "--disks", "4", "-n", "2")
    assert (document["seed"], document["level"], len(document["questions"])) == (0, "medium", 2)
    for question in document["questions"]:
        assert (question["layout"], question["disks"]) == ("raid5", 4)
        assert "answer" not in question
    assert "answer" in run_json("quiz", "--answers")["questions"][0]


def test_a_file_of_answers_is_marked(tmp_path: Path) -> None:
    questions = run_json("quiz", "--answers", "-n", "2")["questions"]
    file = tmp_path / "answers"
    file.write_text("".join(f"{q['number']}: {' '.join(q['answer'])}\n" for q in questions))
    assert run("quiz", "-n", "2", "--check", str(file)) == "1: right\n2: right\n2 of 2 right\n"
    file.write_text("1: 99 \x1b[2J\n")
    printed = run("quiz", "-n", "2", "--check", str(file), status=1)
    assert printed.splitlines()[1:] == ["2: not answered", "0 of 2 right"]
    assert "\x1b" not in printed
    missing = CliRunner().invoke(main, ["quiz", "--check", str(tmp_path / "none")])
    assert missing.exit_code == 1
    assert "cannot be read" in missing.stderr


def test_a_sheet_to_print_has_answers_on_a_page_of_their_own(tmp_path: Path) -> None:
    page = tmp_path / "seed7.html"
    words = ("quiz", "--seed", "7", "--level", "hard", "--sheet", str(page))
    assert run(*words) == f"5 questions, to print: {page}\n"
    plain = page.read_text()
    assert (plain.count('class="line"'), plain.count("<li>")) == (5, 5)
    assert "Answers" not in plain
    assert not re.search(r"<script|src=|href=|https?:", plain)
    asked = run("quiz", "--seed", "7", "--level", "hard").splitlines()
    for line in asked:
        text = line.partition(". ")[2].rpartition(" (")[0]
        assert text.replace("&", "&amp;") in plain
    run(*words, "--answers")  # made anew
    solved = page.read_text()
    assert solved.index("Answers: raidx quiz: hard, seed 7") > solved.rindex('class="line"')
    for question in run_json("quiz", "--seed", "7", "--level", "hard", "--answers")["questions"]:
        assert f"<b>{' '.join(question['answer'])}</b>" in solved
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    assert "exists and is no HTML page" in fail("quiz", "--sheet", str(other))
    assert "give one of them" in fail("quiz", "--sheet", str(page), "--check", str(other))
    assert other.read_text() == "mine"


def test_mistakes_get_one_line_and_status_2() -> None:  # the others: tests/lab/test_quiz.py
    assert "nearest: 5 or 7" in fail("quiz", "--layout", "xcode", "--disks", "6")
    assert "out of range" in fail("quiz", "--count", "9" * 30)
    assert "easy" in fail("quiz", "--level", "impossible")


def test_the_options_know_every_kind_and_level() -> None:
    assert list(command.KINDS.choices) == list(EVERY_KIND)
    assert list(command.LEVELS.choices) == list(LEVELS)
