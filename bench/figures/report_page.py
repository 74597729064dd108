"""The dated report of the papers: `report.json`, the page REPORT.md, and the part of README.md.

`report.json` has for each program when and on which commit it ran, whether with `--quick`, and its
tables. REPORT.md, its pictures and the table in bench/README.md are made from it only; a test
compares them. Each figure says of which run it is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from paper_common import Cell, Chart, PaperTable, cell_text
from report_pictures import (
    FOLDER,
    Line,
    Picture,
    draw,
    draw_headlines,
    pictures_of,
)
from report_pictures import HEADLINES as PICTURE

from raidx_fuse.errors import UsageError

HERE = Path(__file__).parent
REPORT, PAGE, README = HERE / "report.json", HERE / "REPORT.md", HERE.parent / "README.md"
BEGIN, END = "<!-- python bench/figures/report.py --write -->", "<!-- end of the papers -->"
Report = dict[str, dict[str, Any]]


class Headline(NamedTuple):
    """A line of README.md: *words* for the row of a table that begins with *cells*.

    *like* and *ours* name the columns with our figures.
    """

    section: str
    ident: str
    cells: tuple[str | int, ...]
    words: str
    ours: str = "ours"
    like: str = "as in the paper"


HEADLINES = (
    *(
        Headline("upc", "Fig. 5", (p,), f"UPC: response better than P-code's, p = {p}", ours)
        for ours in ("UPC better by",)
        for p in (7, 11, 13)
    ),
    *(
        Headline("bpu", "Fig. 4", (trace,), f"BPU: response better than traditional, {trace}")
        for trace in ("hm_0", "proj_0", "src2_2")
    ),
    *(
        Headline("mcpod", "Figs. 11 to 13", (trace, measure), f"McPod, {trace}: {words}")
        for trace in ("financial1", "tpcc")
        for measure, words in (
            ("redistribution, s", "redistribution shorter than md's"),
            ("mean response while it grows, ms", "response better than beside md's meanwhile"),
        )
    ),
    Headline(
        *("raidx", "Fig. 8", ("the author's tool: run 3",)),
        "RAIDX: speed of an SSD and a disk, third run, by raid0's",
    ),
    Headline("raidx", "Fig. 9", ("run 3",), "RAIDX: seven disks and RAM, third run by the first"),
    Headline(
        *("dswap", "Fig. 3(a)", ("4",), "Dswap: data moved by random reassignment, by Dswap's"),
        *("random / Dswap, ours", "random / Dswap, as in the paper"),
    ),
)


ONE = "As in the paper and ours are one here: "
ONE_SETTING = {  # tables with the paper's figures and no column as in the paper: why not
    ("bpu", "Section VI"): "The rows name the setting; the first ones are as in the paper.",
    ("mcpod", "Why, 2"): "The rows name the cache; the first one has none.",
    ("raidx_disks", "Section V.E.3, disks only"): "The rows name the setting; the first one is as "
    "in the paper.",
    ("dswap", "Fig. 3(b)"): f"{ONE}planners from scratch are the paper's own.",
    ("dswap", "Fig. 5(b)"): "The rows name the planner; the two differ for Dswap alone.",
    **{
        ("dswap_prototype", ident): f"{ONE}the paper's volumes and clients, at 1/64 of the size."
        for ident in ("Fig. 6(a)", "Fig. 6(b)", "Fig. 7")
    },
    ("dswap_prototype", "Fig. 8"): f"{ONE}the paper's clients.",
}


def table_of(record: dict[str, Any]) -> PaperTable:
    """Return a table from its JSON."""
    charts = [Chart(**chart) for chart in record["charts"]]
    return PaperTable(**{**record, "charts": charts})


def commit() -> str:
    """Return the commit that is measured; "+" at its end says that the tree has changes."""
    git = ["git", "-C", str(HERE)]
    head = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True)
    same = [*git, "diff", "--quiet", "HEAD", "--", "../../raidx_fuse", "*.py"]
    return head.strip() + "+" * subprocess.call(same)


def mark_of(part: Mapping[str, Any]) -> str:
    """Return of which run the figures of a section are, and whether it was a quick one."""
    return f"{'`--quick`, ' if part['quick'] else ''}{part['commit']}, {part['date']}"


def pictures(report: Report) -> list[Picture]:
    """Return the pictures of all tables."""
    return [
        picture
        for name, part in report.items()
        for record in part["tables"]
        for picture in pictures_of(
            name, mark_of(part).replace("`", ""), record["ident"], table_of(record).charts
        )
    ]


def draw_all(report: Report, folder: Path = FOLDER) -> None:
    """Draw all pictures into *folder*, and nothing else stays there. Raises UsageError."""
    folder.mkdir(exist_ok=True)
    made = pictures(report)
    for picture in made:
        draw(picture, folder)
    draw_headlines(headline_lines(report), folder)
    names = {picture.name for picture in made} | {f"{PICTURE}.svg"}
    for path in folder.glob("*.svg"):
        if path.name not in names:
            path.unlink()


def write(found: Mapping[str, tuple[str, list[PaperTable]]], measured: str, quick: bool) -> None:
    """Put *found*, (title, tables) by program, into the report, and the report into the pages."""
    report: Report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    for name, (title, tables) in found.items():
        report[name] = {
            "title": title,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": measured,
            "quick": quick,
            "tables": [asdict(table) for table in tables],
        }
    report = dict(sorted(report.items()))
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(page(report))
    try:
        draw_all(report)
    except UsageError as error:
        print(f"no pictures: {error}", file=sys.stderr)
    README.write_text(replaced(README.read_text(), headlines(report)))


def page(report: Report) -> str:
    """Return REPORT.md."""
    lines = [
        "# The papers, regenerated",
        "",
        f"![The headlines of the five papers]({FOLDER.name}/{PICTURE}.svg)",
        "",
        "Grey: the paper's figure or range. Bars: the 95 % interval, in older runs the standard "
        "error, or the range over a sweep; a point without one is a single run or a mean of which "
        "none is known.",
        "",
        "Three columns where the paper has a figure: the paper's; *as in the paper*, the same "
        "engine under the paper's load, devices and baseline as far as they are known; *ours*, "
        "what raidx does under loads, devices and baselines that we find right. Every difference "
        "is explained below its table, by an experiment where one can tell. The real engine runs "
        "on modelled disks in virtual time, so the figures are the same on every machine. "
        "`python bench/figures/report.py --write` makes this page anew; bench/README.md takes "
        "its figures from here.",
        "",
        "| section | date | commit | |",
        "|---|---|---|---|",
    ]
    for part in report.values():
        how = "`--quick`: fewer requests, wider spread" if part["quick"] else ""
        lines.append(f"| {part['title']} | {part['date']} | {part['commit']} | {how} |")
    for name, part in report.items():
        lines += ["", f"## {part['title']}", ""]
        for record in part["tables"]:
            table = table_of(record)
            heading, _, rest = table.markdown().partition("\n")
            lines += [heading, "", f"Run: {mark_of(part)}.", rest]
            shown = pictures_of(name, mark_of(part).replace("`", ""), table.ident, table.charts)
            for picture in shown:
                lines += [
                    f"![{picture.alt}]({FOLDER.name}/{picture.name})",
                    "",
                    picture.caption,
                    "",
                ]
            if why := ONE_SETTING.get((name, record["ident"])):
                lines += [why, ""]
    return "\n".join(lines).rstrip() + "\n"


def headlines(report: Report) -> str:
    """Return the table of README.md."""
    lines = ["| | paper | as in the paper | ours | run |", "|---|---|---|---|---|"]
    for headline, part, cells in headline_cells(report):
        shown = " | ".join(map(cell_text, cells))
        lines.append(f"| {headline.words} | {shown} | {mark_of(part)} |")
    return "\n".join([*lines, "", "Each with its experiments: [the report](figures/REPORT.md)."])


def headline_lines(report: Report) -> list[Line]:
    """Return the headlines as their picture shows them."""
    return [
        Line(f"{headline.words}\n({mark_of(part).replace('`', '')})", *cells, "%" in str(cells[2]))
        for headline, part, cells in headline_cells(report)
    ]


def headline_cells(
    report: Report,
) -> Iterator[tuple[Headline, dict[str, Any], tuple[Cell, Cell, Cell]]]:
    """Yield the headlines with their section, and their cells: paper, as in the paper, ours."""
    for headline in HEADLINES:
        part = report.get(headline.section)
        if part is None:
            continue
        (table,) = (t for t in part["tables"] if t["ident"] == headline.ident)
        count = len(headline.cells)
        (row,) = (r for r in table["rows"] if tuple(r[:count]) == headline.cells)
        at = [table["columns"].index(name) for name in ("paper", headline.like, headline.ours)]
        paper, as_paper, ours = (row[n] for n in at)
        yield headline, part, (paper, as_paper, ours)


def replaced(text: str, part: str) -> str:
    """Return the page *text* with *part* between the two comments."""
    pattern = f"{re.escape(BEGIN)}\n.*?{re.escape(END)}"
    return re.sub(pattern, lambda _: f"{BEGIN}\n{part}\n{END}", text, flags=re.DOTALL)
