"""The pages: their links lead somewhere, their commands parse, their examples run."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raidx_fuse.cli.command_table import ALIASES
from raidx_fuse.cli.main import main
from raidx_fuse.cli.manual import manual
from raidx_fuse.layouts.registry import LAYOUTS, allowed_widths
from tests.docs.pages import NAMES, README, ROOT, TEXTS, blocks, commands, parse, quoted, rows
from tests.docs.pictures import odd_disks

README_LINES_MAX = 150
WIDTH = 100
COMMANDS = [(name, line) for name in NAMES for line in commands(name) if line.startswith("raidx ")]
PAPER = [line for _, line in COMMANDS if line.startswith("raidx layout")]


def anchors(text: str) -> set[str]:
    """Return the anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[name]):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{name} links to {target}"


@pytest.mark.parametrize("name", NAMES)
def test_the_paths_it_names_exist(name: str) -> None:
    folders = "raidx_fuse|layouts|cli|tests|bench|examples|\\.github|\\.ci"
    for path in re.findall(rf"`((?:{folders})/[\w./*-]*)`", TEXTS[name]):
        assert list(ROOT.glob(path.rstrip("/"))), f"{name} names {path}"


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_every_command_line_parses(name: str, line: str) -> None:
    parse(line)


def test_parsing_notices_what_is_wrong() -> None:
    for line in ("raidx creat x", "raidx mount --nonsense a b", "raidx layout shaw raid5"):
        with pytest.raises(click.UsageError):
            parse(line)
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("name", NAMES)
def test_commands_named_in_the_text_exist(name: str) -> None:
    named = set(re.findall(r"`raidx (\w[\w-]*)", TEXTS[name]))
    assert named <= {*main.commands, *ALIASES}
    for module in re.findall(r"`python -m (raidx_fuse[\w.]*)", TEXTS[name]):
        assert importlib.util.find_spec(module), f"{name} names {module}"
    for program in re.findall(r"`python (bench/[\w/]+\.py)", TEXTS[name]):
        assert (ROOT / program).is_file(), f"{name} names {program}"


@pytest.mark.parametrize("line", PAPER)
def test_layout_commands_work_as_printed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some draw a picture
    result = CliRunner().invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip()


def test_the_readme_begins_with_what_it_is_for_and_two_commands() -> None:
    first, second = (text.strip() for text in blocks("README.md", "sh")[:2])
    assert README.startswith("# raidx-fuse\n\n**raidx** turns ")
    for program in (first, second):
        path = ROOT / program
        assert path.is_file(), f"the README's {program} does not exist"
        assert os.access(path, os.X_OK), f"{program} cannot be executed"
    assert second in (ROOT / ".ci" / "run").read_text(), ".ci/run calls the second"
    lines = README.splitlines()
    assert len(lines) <= README_LINES_MAX
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []
    for picture in re.findall(r'<img src="([^"]+)"', README):
        assert (ROOT / picture).is_file()


def test_the_three_odd_disks_become_what_the_readme_says(tmp_path: Path) -> None:
    (shown,) = blocks("README.md", "text")
    assert odd_disks(tmp_path) == shown, "python -m tests.docs.pictures README.md"


def test_every_page_is_reached_from_the_readme() -> None:
    """The README names every page except those of the lab, which the teacher's page names."""
    linked = set(re.findall(r"\]\(([^)#]+)", README))
    labs = {name for name in NAMES if name.startswith("examples/lab/")}
    assert set(NAMES) - labs - {"README.md"} <= linked
    named = re.findall(r"\]\((lab/[^)#]+)", TEXTS["examples/teaching.md"])
    assert labs == {f"examples/{path}" for path in named}
    assert len(labs) == 14


def test_the_table_of_layouts_is_that_of_the_program() -> None:
    described = [(name, row) for row in rows("README.md", "## Layouts") for name in quoted(row[0])]
    assert {name for name, _ in described} == set(LAYOUTS)
    for name, (_, widths, losses, *_rest) in described:
        info = LAYOUTS[name]
        if not widths:
            continue  # on paper only
        least = allowed_widths(name)[0]
        assert str(least) in re.findall(r"\d+", widths), f"{name} begins at {least} members"
        if losses.isdigit():
            assert info.tolerance(least) == int(losses)


def test_the_manual_is_what_the_program_says() -> None:
    page = ROOT / "cli" / "MANUAL.md"
    assert page.read_text() == manual(), "run: python -m raidx_fuse.cli.manual > cli/MANUAL.md"


PRINTED = (  # by the Python examples of bench/README.md, in their order
    r"(\w+: [\d.]+ ms, \d+ pre-reads\n){2}",
    r"(journal \w+: [\d.]+ ms for a write that is flushed\n){2}",
)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_python_examples_run(number: int) -> None:
    programs = blocks("bench/README.md", "python")
    assert len(programs) == len(PRINTED)
    done = subprocess.run([sys.executable, "-c", programs[number]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[number], done.stdout)
