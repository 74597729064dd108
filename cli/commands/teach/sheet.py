"""`raidx quiz --sheet`: the questions as a page to print, the answers on a page of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

STYLE = """\
@page { size: A4; margin: 18mm }
body { font: 11pt/1.45 sans-serif; color: #000; max-width: 174mm; margin: 0 auto }
h1 { font-size: 15pt } .name { margin: 6mm 0 8mm }
li { margin: 0 0 7mm; break-inside: avoid } .line { border-bottom: 1px solid #000; height: 9mm }
.give, .why { color: #333; font-size: 9.5pt } .answers { break-before: page }
"""


def sheet(document: dict[str, Any], questions: Sequence[str]) -> str:
    """Return *document*, the quiz as JSON values, as an HTML page; *questions*: their texts.

    Answers are on the last page if *document* has them.
    """
    return "\n".join(["<!doctype html>", *_page(document, questions), ""])


def _page(document: dict[str, Any], questions: Sequence[str]) -> Iterator[str]:
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
    yield "</body></html>"
