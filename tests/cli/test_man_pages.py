"""Pages for man and completions: made from the commands, shown by man and read by shells."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from raidx_fuse.cli.main import main
from raidx_fuse.cli.package.raidx_build import SHELLS, completion_script, man_pages, roff
from raidx_fuse.settings import OF_ARRAY, OF_MACHINE, OF_POOL
from tests.support.command import FAILED, USAGE, checked, raidx

PAGES = man_pages()


def test_every_command_has_a_page_with_all_its_options() -> None:
    verbs: dict[str, click.Command] = {}
    for name, command in main.commands.items():
        if isinstance(command, click.Group):
            verbs |= {f"{name}-{word}": each for word, each in command.commands.items()}
        else:
            verbs[name] = command
    others = {"raidx.8", "raidx-format.5", "mount.raidx.8"}
    assert set(PAGES) == {f"raidx-{name}.8" for name in verbs} | others
    for name in (*OF_ARRAY, *OF_POOL, *OF_MACHINE):
        assert f"\\fB{name}\\fR" in PAGES["raidx-set.8"]
    for name, command in verbs.items():
        page = PAGES[f"raidx-{name}.8"]
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("as_json", "exact"):
                assert option.opts[0].replace("-", "\\-") in page, f"{name} {option.opts[0]}"
        assert f"raidx\\-{name.replace('-', chr(92) + '-')}(8)" in PAGES["raidx.8"]


def test_markdown_becomes_roff() -> None:
    text = "## One\n\n.a `b-c`\n\n| x | y | z |\n|---|---|---|\n| `1` | 2\\|3 | |\n\n    a \\ b\n"
    assert list(roff(text)) == [
        *(".SH ONE", ".PP", "\\&.a \\fBb\\-c\\fR", ".TP", "\\fB1\\fR", "y: 2|3", ".PP"),
        *(".PP", ".RS 4", ".nf", "    a \\e b", ".fi", ".RE"),
    ]
    assert list(roff("- a\n  b\n1. c")) == [".IP \\(bu 4", "a b", ".IP 1. 4", "c"]
    assert list(roff("```\n.x\n```\nend"))[3:] == ["\\&.x", ".fi", ".RE", ".PP", "end"]


def test_man_shows_them_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("man or groff is not installed")
    every = tmp_path / "every.8"
    every.write_text("".join(PAGES.values()))
    words = ("groff", "-man", "-Tutf8", "-ww", "-rLL=78n", "-k", every)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    # A long word has no place to break; anything else is a mistake of ours.
    said = done.stderr.splitlines()
    assert [line for line in said if not line.endswith(("break line", "adjust line"))] == []
    assert "NAME" in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_are_read_by_their_shell(shell: str, tmp_path: Path) -> None:
    checked(tmp_path, "completions --install --prefix share")
    script = tmp_path / "share" / SHELLS[shell]
    assert script.read_text() == completion_script(shell)
    if shutil.which(shell) is not None:
        done = subprocess.run([shell, "-n", script], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_installing_says_where_and_what_is_wrong(tmp_path: Path) -> None:
    installed = json.loads(checked(tmp_path, "completions --install --prefix p --json"))[
        "installed"
    ]
    assert len(installed) == len(PAGES) + len(SHELLS)
    assert all(Path(path).is_file() for path in installed)
    (tmp_path / "file").write_text("")
    refused = raidx(tmp_path, "completions --install --prefix file")
    assert refused.status == FAILED
    assert "cannot be written" in refused.stderr
    assert "choose another folder: --prefix DIR" in refused.stderr
    for wrong in ("completions", "completions bash --install", "completions bash --prefix x"):
        assert raidx(tmp_path, wrong).status == USAGE
