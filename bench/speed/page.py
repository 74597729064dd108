"""The dated report of the table, and the parts of the pages that are made from it.

`report.json` has for each part of the table when, on which commit and under which load it was
measured, and its lines. The figures in bench/README.md and README.md stand between two comments and
are written from the report only; a test compares them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from textwrap import fill
from typing import Any

from lines import Line
from parts import LOAD_MAX, PARTS, ROOT

REPORT = ROOT / "bench" / "speed" / "report.json"
BEGIN, END = "<!-- python bench/speed/table.py --write -->", "<!-- end -->"
WIDTH = 100  # of a line of text
BASELINES = {"stock", "fast", "c"}  # what others are measured by
HEADLINES = (  # of the README: words, row
    ("random 4 KiB read", "4 KiB random read, 16 deep"),
    ("random 4 KiB write", "4 KiB random write, 16 deep"),
    ("1 MiB read", "1 MiB sequential read"),
    ("1 MiB write", "1 MiB sequential write"),
)
Report = dict[str, dict[str, Any]]


def write(
    found: Mapping[str, Sequence[Line]], measured: str, *, rounds: int, quick: bool, load: float
) -> None:
    """Put *found*, the lines of each part on the commit *measured*, into report and pages."""
    report: Report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    for name, lines in found.items():
        part = next(part for part in PARTS if part.name == name)
        report[name] = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": measured,
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "kernel": platform.release().split("-")[0],
            "load": round(load, 1),
            "is_judged": part.is_cpu_time or load <= LOAD_MAX,
            "rounds": min(rounds, part.rounds_max) * part.turns,
            "quick": quick,
            "lines": [record(line) for line in lines],
        }
    ordered = {part.name: report[part.name] for part in PARTS if part.name in report}
    REPORT.write_text(json.dumps(ordered, indent=1) + "\n")
    for name, text in blocks(ordered).items():
        page = ROOT / name
        page.write_text(replaced(page.read_text(), text))


def commit() -> str:
    """Return the commit that is measured; "+" at its end says that the tree has changes."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True)
    parts = ["raidx_fuse", "layouts", "bench", ":!*README.md"]
    return head.strip() + "+" * subprocess.call([*git, "diff", "--quiet", "HEAD", "--", *parts])


def record(line: Line) -> dict[str, Any]:
    """Return *line* as the report keeps it: rounded, without the times of its rounds."""
    kept = {key: value for key, value in asdict(line).items() if key != "detail"}
    for key in ("value", "low", "high", "cpu_us"):
        if kept[key] is not None:
            kept[key] = float(f"{kept[key]:.4g}")
    return {**kept, "passed": line.passed, "disturbed": line.detail.get("disturbed")}


def blocks(report: Report) -> dict[str, str]:
    """Return what stands between the comments of each page."""
    return {"bench/README.md": table(report), "README.md": sentence(report)}


def replaced(page: str, text: str) -> str:
    """Return *page* with *text* between the comments. Raises ValueError if they are missing."""
    pattern = re.compile(f"({re.escape(BEGIN)}\n).*?({re.escape(END)})", re.DOTALL)
    made, count = pattern.subn(lambda found: f"{found[1]}{text}{found[2]}", page)
    if count != 1:
        raise ValueError(f"the page needs {BEGIN} and {END}, once")
    return made


def table(report: Report) -> str:
    """Return the tables of bench/README.md: under which conditions, and what was measured."""
    rows = ["| part | measured | commit | processors | load | rounds | |", "|---" * 7 + "|"]
    for name, part in report.items():
        cells = [name, *(part[key] for key in ("date", "commit", "processors", "load", "rounds"))]
        rows.append(markdown(*cells, "`--quick`" if part["quick"] else ""))
    rows += ["", "| figure | array | median | spread | CPU, us | bar | |", "|---" * 7 + "|"]
    for part in report.values():
        title = ""
        for line in part["lines"]:
            if not line["row"].startswith(" "):
                title = line["row"]
            if line["subject"] not in BASELINES:
                rows.append(row(line, title, is_judged=part["is_judged"]))
    return "\n".join(rows) + "\n"


def row(line: dict[str, Any], title: str, *, is_judged: bool) -> str:
    """Return one row of the table of figures, below *title* if it belongs to another row.

    Figures that other programs disturbed are not judged; virtual time is never disturbed.
    """
    spread, bar, cpu = "", "", ""
    if line["low"] < line["high"]:
        spread = f"{number(line['low'])} to {number(line['high'])}"
    if line["bar"] is not None:
        bar = f"{'at most' if line['at_most'] else 'at least'} {number(line['bar'])}"
    if line["cpu_us"] is not None:
        cpu = number(line["cpu_us"])
    name = line["row"] if line["row"] == title else f"{title}, {line['row'].strip()}"
    value = number(line["value"]) + line["unit"]
    verdict = {None: "", True: "met", False: "missed"}[line["passed"]]
    if verdict and not is_judged and line["figure"] != "virtual time":
        verdict = "not judged"
    return markdown(name, line["subject"], value, spread, cpu, bar, verdict)


def markdown(*cells: object) -> str:
    """Return *cells* as a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def number(value: float) -> str:
    """Return *value* in three digits.

    >>> number(0.5), number(2.4567), number(45.678), number(203456.0)
    ('0.5', '2.46', '45.7', '203,000')
    """
    return f"{float(f'{value:.3g}'):,.10g}"


def sentence(report: Report) -> str:
    """Return the paragraph of the README: processor times, which load changes least."""
    part = report["mount"]
    cpu = {(line["row"], line["subject"]): line["cpu_us"] for line in part["lines"]}
    figures = [
        f"{words} {number(cpu[title, 'raid5+log'])} us ({number(cpu[title, 'stock'])} us)"
        for words, title in HEADLINES
    ]
    text = (
        "Processor time of the daemon for each request to a mounted raid5 of four members with its "
        "journal, and in brackets of a plain pyfuse3 pass-through of one file: "
        f"{', '.join(figures)}. Medians of {part['rounds']} rounds on {part['processors']} "
        f"processors, {part['date']}; [speeds and conditions](bench/README.md#speed)."
    )
    return fill(text, WIDTH, break_on_hyphens=False) + "\n"
