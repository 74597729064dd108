"""The laboratory's report: the tables and figures of the papers, regenerated on one page.

    python bench/figures/report.py --write      all papers; under 20 minutes on 2 idle cores
    python bench/figures/report.py --quick      some minutes, wider spread
    python bench/figures/report.py --only upc --output /tmp/report
    python bench/figures/report.py --scheduler tcp://192.0.2.7:8786     over Dask's workers

Runs each ``bench/figures/paper_*.py`` in a process of its own, as many at a time as there are
processors. Writes ``report/README.md``: the paper's number, as in the paper, ours, and the reason
where they differ; with matplotlib (the extra `plots`) also charts. `--write` puts what ran into
``bench/figures/report.json``, and from there into REPORT.md beside it and into bench/README.md
(report_page.py). Everything runs in virtual time: the machine and other programs change no figure,
only the time that the report takes. Slices of the real traces are used where the folder
RAIDX_TRACES has them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import report_page
from paper_common import PaperTable
from report_page import table_of
from report_pictures import draw, pictures_of

from raidx_fuse.errors import UsageError

HERE = Path(__file__).parent
LIMIT_S = 120 * 60.0  # of one program, on a busy machine
ON_ALL_PROCESSORS = ("bpu", "upc")  # last: the others leave no processor idle then
OTHERS = ("generated_loads",)


@dataclass
class Section:
    """What one program gave: its *tables*, or why there are none."""

    name: str
    title: str
    tables: list[PaperTable] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0


def programs() -> dict[str, Path]:
    """Return the programs of the report by short name: papers, then what stands beside them."""
    found = {path.stem.removeprefix("paper_"): path for path in sorted(HERE.glob("paper_*.py"))}
    del found["common"]
    return found | {name: HERE / f"{name}.py" for name in OTHERS}


def title_of(path: Path) -> str:
    """Return the TITLE that a program states, without running it."""
    match = re.search(r'^TITLE = "(.*)"$', path.read_text(), re.MULTILINE)
    return match[1] if match else path.stem


def run_program(name: str, path: Path, quick: bool, scheduler: str | None = None) -> Section:
    """Run one program and return its tables."""
    section = Section(name, title_of(path))
    began_s = monotonic()
    words = [sys.executable, str(path), "--json", *(["--quick"] if quick else [])]
    if scheduler and name not in OTHERS:
        words += ["--scheduler", scheduler]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path[1:]]),
    }
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=True
        )
        section.tables = [table_of(record) for record in json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        section.failure = f"not ended within {LIMIT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        section.failure = error.stderr.strip().splitlines()[-1] if error.stderr else "failed"
    section.seconds = monotonic() - began_s
    print(f"{name}: {section.failure or 'done'} ({section.seconds:.0f} s)", file=sys.stderr)
    return section


def pictures(section: Section, table: PaperTable, folder: Path, mark: str) -> list[str]:
    """Draw the charts of *table*; return the Markdown that shows them."""
    shown = []
    for picture in pictures_of(section.name, mark, table.ident, table.charts):
        draw(picture, folder)
        shown.append(f"![{picture.alt}]({picture.name})")
    return shown


def page(sections: list[Section], folder: Path, quick: bool, seconds: float) -> str:
    """Return the report, made in *seconds*; its pictures lie in *folder* afterwards."""
    lines = [
        "# The papers, regenerated",
        "",
        "Every table and figure of the papers as far as built: the paper's number, ours, a line "
        "where they differ. The real engine runs on modelled disks in virtual time; "
        "`python bench/figures/report.py` makes this page anew"
        + (", this one with `--quick` (fewer requests, wider spread)." if quick else "."),
        "",
    ]
    drawing = True
    for section in sections:
        lines += [f"## {section.title}", ""]
        if section.failure:
            lines += [f"**Not regenerated:** {section.failure}", ""]
        for table in section.tables:
            lines.append(table.markdown())
            try:
                mark = "--quick" if quick else "all requests"
                lines += [*pictures(section, table, folder, mark), ""] if drawing else []
            except UsageError as error:
                drawing = False
                print(f"no pictures: {error}", file=sys.stderr)
    took = ", ".join(f"{section.name} {section.seconds:.0f} s" for section in sections)
    lines += [
        "## How long it took",
        "",
        f"{seconds:.0f} s on {os.cpu_count()} processors, programs side by side: {took}.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Make the report; return 1 if a part of it failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests, wider spread")
    parser.add_argument("--only", help="names of papers, separated by commas")
    parser.add_argument(
        "--output", type=Path, default=Path("report"), help="folder for the page and its charts"
    )
    parser.add_argument("--write", action="store_true", help="write REPORT.md and bench/README.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="spread runs over the workers of a Dask scheduler"
    )
    options = parser.parse_args()
    chosen = programs()
    if options.only:
        names = options.only.split(",")
        if unknown := set(names) - set(chosen):
            parser.error(
                f"no program for {', '.join(sorted(unknown))}; there are {', '.join(chosen)}"
            )
        chosen = {name: chosen[name] for name in names}
    options.output.mkdir(parents=True, exist_ok=True)
    measured = report_page.commit() if options.write else ""
    began_s = monotonic()
    order = sorted(chosen, key=lambda name: (name in ON_ALL_PROCESSORS, name))
    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        running = {
            name: pool.submit(run_program, name, chosen[name], options.quick, options.scheduler)
            for name in order
        }
        sections = [running[name].result() for name in chosen]
    target = options.output / "README.md"
    seconds = monotonic() - began_s
    target.write_text(page(sections, options.output, options.quick, seconds))
    print(target)
    if options.write:
        made = {s.name: (s.title, s.tables) for s in sections if not s.failure}
        report_page.write(made, measured, options.quick)
    return int(any(section.failure for section in sections))


if __name__ == "__main__":
    sys.exit(main())
