"""The programs in bench/ that belong to the laboratory: they run, and their page is whole."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "figures"
PAPERS = sorted(BENCH.glob("paper_*.py"))


def program(name: str, *words: str | Path) -> str:
    """Run a program of bench/ and return what it prints."""
    line = [sys.executable, str(BENCH / name), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(BENCH.parents[1])}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_paper_says_its_title_and_gives_tables() -> None:
    names = {path.stem for path in PAPERS} - {"paper_common"}
    assert "paper_upc" in names
    for path in PAPERS:
        if path.stem != "paper_common":
            text = path.read_text()
            assert '\nTITLE = "' in text, path.name
            assert "\ndef tables(quick: bool" in text, path.name


def test_the_page_holds_every_table_of_the_programs_asked_for(tmp_path: Path) -> None:
    page = program("report.py", "--quick", "--only", "generated_loads", "--output", tmp_path)
    text = Path(page.strip()).read_text()
    assert text.startswith("# The papers, regenerated\n")
    assert "## The loads: generated from published statistics" in text
    assert "| load | requests | reads % |" in text
    assert "| financial1 (wanted 23.2 %, 3466 B) | 20000 |" in text
    assert "Not regenerated" not in text
    assert "programs side by side: generated_loads " in text.splitlines()[-1]


def test_generated_loads_stand_beside_slices_where_there_are_some(tmp_path: Path) -> None:
    lines = [f"{n // 3},{n * 8},3072,{'r' if n % 4 == 0 else 'w'},{n / 100}" for n in range(200)]
    trace = tmp_path / "Financial1.first10000.spc.xz"
    trace.write_bytes(lzma.compress("\n".join(lines).encode()))
    tables = json.loads(program("generated_loads.py", "--quick", "--json", "--traces", tmp_path))
    assert [table["ident"] for table in tables] == [trace.name, "All"]
    real, generated = tables[0]["rows"]
    assert real[:3] == ["slice of financial1", 200, 25.0]
    assert generated[:2] == ["generated", 200]


def test_the_speed_of_simulation_is_measured(tmp_path: Path) -> None:
    words = ("--rounds", "1", "--requests", "300", "--json")
    line = [sys.executable, str(BENCH.with_name("speed") / "simulation_speed.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(BENCH.parents[1])}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=100)
    # Whether the bar is reached is for a quiet machine and a longer run to say.
    rows = json.loads(done.stdout)["lines"]
    assert {row["bar"] for row in rows} == {200_000, None}
    assert all(row["value"] > 0 for row in rows)
