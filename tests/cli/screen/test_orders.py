"""What the keys type: command lines of `raidx`, and what comes back from one."""

from __future__ import annotations

import pytest

from raidx_fuse.cli.screen import orders
from raidx_fuse.cli.screen.orders import LINES_MAX, Order, Said, carry_out, line_of
from raidx_fuse.errors import UsageError


def test_dangerous_orders_have_their_dry_run() -> None:
    order = orders.fail("/mnt", "2")
    assert order.words == ("fail-disk", "/mnt", "2")
    assert order.dry == ("fail-disk", "/mnt", "2", "--dry-run")
    order = orders.replace("/mnt", "2", "'new disk' --create")
    assert order.words == ("replace-disk", "/mnt", "2", "new disk", "--create")
    assert order.dry == (*order.words, "--dry-run")
    assert orders.tune("/mnt") == Order(("tune", "/mnt", "--now"), ("tune", "/mnt", "--dry-run"))


@pytest.mark.parametrize(
    ("typed", "complaint"), [("", "name the new member"), ("'a", "no closing")]
)
def test_what_cannot_be_a_command_line_is_not_run(typed: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        orders.replace("/mnt", "2", typed)


def test_a_job_is_paused_or_goes_on() -> None:
    assert orders.pause("/mnt", {4: False}) == Order(("job", "/mnt", "pause", "4"))
    assert orders.pause("/mnt", {4: True}) == Order(("job", "/mnt", "resume", "4"))
    both = {4: True, 7: False}
    assert orders.pause("/mnt", both) is None, "one must be named"
    assert orders.pause("/mnt", both, " 7") == Order(("job", "/mnt", "pause", "7"))
    for typed in ("5", "", "-7", "x", "²"):
        with pytest.raises(UsageError, match="there is no job"):
            orders.pause("/mnt", both, typed)
    with pytest.raises(UsageError, match="no job is running"):
        orders.pause("/mnt", {})


def test_a_command_line_is_shown_as_a_shell_takes_it() -> None:
    assert line_of(("fail-disk", "/a b", "x\x1b[2J")) == r"raidx fail-disk '/a b' 'x\x1b[2J'"


def test_a_command_is_run_and_what_it_says_is_bounded() -> None:
    said = carry_out(("layout", "show", "no\x1blayout", "--disks", "4"))
    assert said.status == 2
    assert len(said.lines) == 1
    assert said.lines[0].startswith("raidx: ")
    assert "\x1b" not in said.lines[0]
    said = carry_out(("fail-disk", "/mnt", "a\0b"))
    assert said == Said(1, ("the command cannot be run: embedded null byte",))
    said = carry_out(("layout", "map", "raid0", "--disks", "3", "--chunks", "90"))
    assert said.status == 0
    assert len(said.lines) == LINES_MAX + 1
    assert said.lines[-1].endswith("more lines")
