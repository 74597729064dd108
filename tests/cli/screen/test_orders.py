"""The command lines of the keys: how they are shown, and what comes back from one."""

from __future__ import annotations

import pytest

from raidx_fuse.cli.screen.app import LINES_MAX, carry_out, line_of


def test_a_command_line_is_shown_as_a_shell_takes_it() -> None:
    assert line_of(("fail-disk", "/a b", "x\x1b[2J")) == r"raidx fail-disk '/a b' 'x\x1b[2J'"


def test_a_command_is_run_and_what_it_says_is_bounded() -> None:
    status, lines = carry_out(("layout", "show", "no\x1blayout", "--disks", "4"))
    assert status == 2
    assert len(lines) == 1
    assert lines[0].startswith("raidx: ")
    assert "\x1b" not in lines[0]
    done = carry_out(("fail-disk", "/mnt", "a\0b"))
    assert done == (1, ["the command cannot be run: embedded null byte"])
    status, lines = carry_out(("layout", "map", "raid0", "--disks", "3", "--chunks", "90"))
    assert status == 0
    assert len(lines) == LINES_MAX + 1
    assert lines[-1].endswith("more lines")


def test_a_command_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    status, lines = carry_out(("layout", "show", "raid5", "--disks", "4"))
    assert status == 0
    assert r"\x1b" not in "".join(lines)
