"""The dated report of the papers: `report.json`, the page REPORT.md, and the part of README.md.

`report.json` has for each program when and on which commit it ran, whether with `--quick`, and its
tables. REPORT.md and the table in bench/README.md are written from it only; a test compares them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from paper_common import Chart, PaperTable, cell_text

HERE = Path(__file__).parent
REPORT, PAGE, README = HERE / "report.json", HERE / "REPORT.md", HERE.parent / "README.md"
BEGIN, END = "<!-- python bench/figures/report.py --write -->", "<!-- end of the papers -->"
Report = dict[str, dict[str, Any]]


class Headline(NamedTuple):
    """A line of README.md: *words* for the row of a table that begins with *cells*.

    *ours* names the column with our figure.
    """

    section: str
    ident: str
    cells: tuple[str | int, ...]
    words: str
    ours: str = "ours"


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
    README.write_text(replaced(README.read_text(), headlines(report)))


def page(report: Report) -> str:
    """Return REPORT.md."""
    lines = [
        "# The papers, regenerated",
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
            lines.append(table_of(record).markdown())
            if why := ONE_SETTING.get((name, record["ident"])):
                lines += [why, ""]
    return "\n".join(lines).rstrip() + "\n"


def headlines(report: Report) -> str:
    """Return the table of README.md."""
    lines = ["| | paper | as in the paper | ours |", "|---|---|---|---|"]
    for headline in HEADLINES:
        part = report.get(headline.section)
        if part is None:
            continue
        (table,) = (t for t in part["tables"] if t["ident"] == headline.ident)
        count = len(headline.cells)
        (row,) = (r for r in table["rows"] if tuple(r[:count]) == headline.cells)
        at = [table["columns"].index(name) for name in ("paper", "as in the paper", headline.ours)]
        lines.append(f"| {headline.words} | {' | '.join(cell_text(row[n]) for n in at)} |")
    dates = sorted({f"{part['date']} on {part['commit']}" for part in report.values()})
    return "\n".join([*lines, "", f"Made {', '.join(dates)}; [the report](figures/REPORT.md)."])


def replaced(text: str, part: str) -> str:
    """Return the page *text* with *part* between the two comments."""
    pattern = f"{re.escape(BEGIN)}\n.*?{re.escape(END)}"
    return re.sub(pattern, lambda _: f"{BEGIN}\n{part}\n{END}", text, flags=re.DOTALL)
