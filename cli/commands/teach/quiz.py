"""`raidx quiz`: questions about layouts from a seed, with their answers or a check of answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from rich.text import Text

from raidx_fuse.cli import made_files
from raidx_fuse.cli.app import verb
from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.parameters import LAYOUT_NAME, PATH
from raidx_fuse.errors import RaidxError, UsageError

if TYPE_CHECKING:
    from raidx_fuse.answers import Mark, Question, Quiz

ANSWERS_BYTES_MAX = 1 << 20
LEVELS = click.Choice(["easy", "medium", "hard"])
KINDS = click.Choice(
    [
        "place",
        "parity",
        "write",
        "pre-reads",
        "lost",
        "rebuild",
        "degraded",
        "suspects",
        "repair",
        "rot",
        "dswap",
    ]
)


@verb()
@click.option("--layout", metavar="LAYOUT", type=LAYOUT_NAME, help="Ask about this layout only.")
@click.option("--disks", "-d", type=int, help="On this many disks.")
@click.option("--level", type=LEVELS, default="medium", help="How hard (medium).")
@click.option("--kind", type=KINDS, help="Ask only this kind of question.")
@click.option("--count", "-n", type=int, default=5, help="How many questions (5).")
@click.option("--seed", type=int, default=0, help="Other numbers give other questions (0).")
@click.option("--answers", is_flag=True, help="Print the answers, too.")
@click.option(
    "--check",
    metavar="FILE",
    type=PATH,
    help='Check answers: a file of lines such as "3: 0 2 4", in the order asked for.',
)
@click.option(
    "--sheet", metavar="FILE", type=PATH, help="Write a page to print (HTML); answers come last."
)
def quiz(
    out: Output,
    layout: str | None,
    disks: int | None,
    level: str,
    kind: str | None,
    count: int,
    seed: int,
    answers: bool,
    check: str | None,
    sheet: str | None,
) -> int:
    """Print questions: where chunks lie, what parity holds, what writes and rebuilds cost, which
    volumes Dswap moves.

    The same seed gives the same questions. The answers are computed by the functions that plan
    the I/O of a running array. All chunks count as written. The exit status of --check is 1 if an
    answer is wrong or missing.
    """
    from raidx_fuse.lab.quiz import Request, check_answers, parse_answers
    from raidx_fuse.lab.quiz import quiz as make

    questions = make(Request(count, seed, level, layout, disks, kind))
    document: Quiz = {
        "seed": seed,
        "level": level,
        "questions": [cast("Question", each.as_dict(answers=answers)) for each in questions],
    }
    if check is not None:
        if sheet is not None:
            raise UsageError("--check marks answers, --sheet asks: give one of them")
        marks = check_answers(questions, parse_answers(_read(check)))
        right = sum(mark["right"] for mark in marks)
        lines = [f"{mark['number']}: {_mark(mark)}" for mark in marks]
        lines.append(f"{right} of {len(marks)} right")
        out.emit({**document, "marks": marks, "right": right}, "\n".join(lines))
        return int(right < len(marks))
    texts = [_text(question) for question in document["questions"]]
    if sheet is not None:
        made_files.save(sheet, "\n".join(_sheet(document, texts)), "HTML page")
        out.emit(document, f"{plural(len(questions), 'question')}, to print: {sheet}")
        return 0
    lines = []
    for question, text in zip(document["questions"], texts, strict=True):
        lines.append(f"{question['number']}. {text} ({question['give']})")
        if answers:
            lines.append(f"   {' '.join(question['answer'])}   because {question['why']}")
    out.emit(document, Text("\n".join(lines)))
    return 0


def _text(question: Question) -> str:
    if question["layout"] is None:
        return question["text"]
    return f"{question['layout']} on {plural(question['disks'], 'disk')}. {question['text']}"


def _mark(mark: Mark) -> str:
    if mark["right"]:
        return "right"
    return f"wrong: {' '.join(mark['given'])}" if mark["given"] else "not answered"


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(ANSWERS_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise RaidxError(f"{path} cannot be read: {error.strerror}") from None


STYLE = """\
@page { size: A4; margin: 18mm }
body { font: 11pt/1.45 sans-serif; color: #000; max-width: 174mm; margin: 0 auto }
h1 { font-size: 15pt } .name { margin: 6mm 0 8mm }
li { margin: 0 0 7mm; break-inside: avoid } .line { border-bottom: 1px solid #000; height: 9mm }
.give, .why { color: #333; font-size: 9.5pt } .answers { break-before: page }
"""


def _sheet(document: Quiz, questions: Sequence[str]) -> Iterator[str]:
    """Yield the lines of *document* as an HTML page; *questions*: their texts.

    Answers are on a page of their own, the last, if *document* has them.
    """
    yield "<!doctype html>"
    title = f"raidx quiz: {document['level']}, seed {document['seed']}"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f"<style>{STYLE}</style></head><body>"
    yield f"<h1>{escape(title)}</h1>"
    yield '<p class="name">Name: ______________________________ Date: ______________</p>'
    yield "<ol>"
    for question, text in zip(document["questions"], questions, strict=True):
        yield f'<li>{escape(text)} <span class="give">({escape(question["give"])})</span>'
        yield '<div class="line"></div></li>'
    yield "</ol>"
    if any("answer" in question for question in document["questions"]):
        yield f'<section class="answers"><h1>Answers: {escape(title)}</h1><ol>'
        for question in document["questions"]:
            words = escape(" ".join(question["answer"]))
            yield f'<li><b>{words}</b> <span class="why">{escape(question["why"])}</span></li>'
        yield "</ol></section>"
    yield "</body></html>\n"
