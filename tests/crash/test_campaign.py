"""The crash campaign: thousands of states keep their promises, and a broken engine does not.

What arrays do beside reading and writing has a campaign of its own each: test_themes.py.

``RAIDX_CRASH_STATES`` says how many states (5,000), ``RAIDX_CRASH_SEED`` which (1). A violation
prints the line that replays it: ``python -m raidx_fuse.lab.crash --replay ...``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from raidx_fuse.errors import UsageError
from raidx_fuse.lab.crash import __main__, campaign
from raidx_fuse.lab.crash.campaign import Tally, crash_workloads, replay
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, REGION_STRIPES
from raidx_fuse.lab.crash.history import History
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.state import Cell, Cut, State, ViolationError
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.layouts.registry import LAYOUTS
from raidx_fuse.members.base import SECTOR_BYTES
from raidx_fuse.members.simulated.powercut import CutRecord
from raidx_fuse.settings import MODES
from raidx_fuse.store.dirty_bitmap import REGIONS_MIN
from tests.support.cuts import judge

STATES = int(os.environ.get("RAIDX_CRASH_STATES", "3000"))
SEED = int(os.environ.get("RAIDX_CRASH_SEED", "1"))
SECONDS_A_STATE = 0.3  # far more than it takes: for the time limit of longer campaigns
BROKEN_STATES = 1000


@pytest.mark.timeout(600 + STATES * SECONDS_A_STATE)
def test_every_state_keeps_the_promise_of_its_journal_mode() -> None:
    cells = __main__._cells((), (), False, ())
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for part in pool.imap_unordered(campaign.run_task, campaign.tasks_of(cells, STATES, SEED)):
            tally.add(part)
    assert not tally.violations, tally.report()
    assert tally.total >= STATES
    assert {cell for cell, _, _ in tally.states} == {str(cell) for cell in cells}
    if STATES >= 3000:  # fewer do not meet everything
        verbs = {verb for _, verb, _ in tally.states}
        assert verbs >= {"write part", "write stripes", "flush", "mount", "rebuild", "scrub"}
        assert len({fault for _, _, fault in tally.states}) == 4


@pytest.mark.parametrize("mode", ["partial", "full"])
@pytest.mark.parametrize("layout", ["raid4", "raid5"])
def test_a_log_that_breaks_its_order_is_found_out(layout: str, mode: str) -> None:
    tally = crash_workloads(
        Cell(layout, mode, broken=True), range(100), BROKEN_STATES, stop_after=5
    )
    # The former life of a workload may end so that its recovery shows it already.
    found = [violation for violation in tally.violations if violation.verb != "running"]
    assert found, "a campaign that cannot fail proves nothing"
    assert tally.total <= BROKEN_STATES
    violation = found[0]
    again = replay(State.parse(violation.state))
    assert again == (violation.verb, violation.what), "the printed line replays the state"


def test_a_workload_is_the_same_every_time() -> None:
    def run(seed: int) -> list[tuple[int, str, int, int]]:
        events = record_workload(Cell("raid5", "partial"), seed).record.events
        return [(e.member, e.operation, e.offset_bytes, len(e.data)) for e in events]

    for seed in range(4):
        assert run(seed) == run(seed)
    assert run(0) != run(1)


def test_half_of_the_workloads_use_stripes_of_large_dirty_regions() -> None:
    cell = Cell("raid5", "partial", theme="writes")
    large = [seed for seed in range(40) if Player(cell, seed, "writes").shape.regions]
    assert 12 <= len(large) <= 28
    shape = Player(cell, large[0], "writes").shape
    recording = record_workload(cell, large[0])
    used = [first for first, _ in recording.parts.spans()]
    unit = recording.roles.layout.code.data_count * CHUNK_BYTES // SECTOR_BYTES
    stripes = [recording.parts.in_image(sector) // unit for sector in used[:3]]
    assert recording.roles.layout.stripes >= REGIONS_MIN * REGION_STRIPES
    assert stripes[0] == 0
    assert 0 < stripes[1] < REGION_STRIPES * 2 <= stripes[2], "in and across regions"
    assert recording.parts.sectors == shape.stripes * unit


def test_a_task_leaves_no_garbage() -> None:
    """Garbage that counts as old is hardly ever looked for: a million states took all memory."""
    gc.collect()
    crash_workloads(Cell("raid5", "partial"), range(1, 9), 40, each=5)
    assert gc.collect() < 1000  # an array in cycles has more


def test_the_tasks_do_not_depend_on_the_number_of_processes() -> None:
    tasks = campaign.tasks_of([Cell("raid5", "full"), Cell("raid0", "none")], 1001, 3)
    assert sum(task.states for task in tasks) == 1001
    assert len({task.first_seed for task in tasks}) == len(tasks)
    assert tasks == campaign.tasks_of([Cell("raid5", "full"), Cell("raid0", "none")], 1001, 3)


@pytest.mark.parametrize(
    "state",
    [
        State(Cell("raid5", "partial"), 17, Cut(203, "s5", (2,))),
        State(Cell("raid0", "none"), 1, Cut(0, "k")),
        State(Cell("raid4", "full", True), 17, Cut(203, "e3", (2, 4)), (Cut(9, "d", (1,)),)),
        State(
            *(Cell("rdp", "full"), 17, Cut(203, "c3", (2,), (), (4, 5))),
            (Cut(9, "d", (1,), (2,)), Cut(3, "k", (), (7, 8))),
        ),
    ],
)
def test_a_state_is_what_its_name_says(state: State) -> None:
    assert State.parse(str(state)) == state


@pytest.mark.parametrize("text", ["", "raid5/w1/m1/k/-", "raid5:none/w1/m1/x/-", "raid5:none/w1/k"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        State.parse(text)


# -- the oracle ----------------------------------------------------------------------------------


def test_a_flushed_write_is_the_only_content_allowed() -> None:
    history = History(0, 4)
    first = history.begin_write("write", 0, frozenset({0}), frozenset())
    old = history.add_sector(first, 1, 0, 512)
    history.end(first, 2)
    assert set(history.at(0).allowed[1]) == {bytes(512)}
    assert set(history.at(2).allowed[1]) == {bytes(512), old}
    flush = history.begin_flush("flush", 2)
    history.end(flush, 4)
    assert set(history.at(3).allowed[1]) == {bytes(512), old}
    assert set(history.at(4).allowed[1]) == {old}
    second = history.begin_write("write", 4, frozenset({0}), frozenset({0}))
    new = history.add_sector(second, 1, 0, 512)
    history.end(second, 6)
    assert set(history.at(5).allowed[1]) == {old, new}
    assert history.at(5).full_in_flight == {0}
    assert set(history.at(6).allowed[0]) == {bytes(512)}


def test_a_flush_covers_only_what_was_acknowledged_when_it_began() -> None:
    history = History(0, 1)
    write = history.begin_write("write", 0, frozenset({0}), frozenset())
    content = history.add_sector(write, 0, 0, 512)
    flush = history.begin_flush("flush", 0)
    history.end(write, 1)
    history.end(flush, 2)
    assert set(history.at(2).allowed[0]) == {bytes(512), content}
    assert history.at(2).in_flight == {0}


def test_of_two_writes_at_once_the_one_read_back_came_last() -> None:
    history = History(0, 1)
    spans = [history.begin_write("write", 0, frozenset({0}), frozenset()) for _ in range(2)]
    contents = [history.add_sector(span, 0, 0, 512) for span in spans]
    for span in spans:
        history.end(span, 1)
    history.end(history.begin_flush("flush", 1), 2)
    assert set(history.at(2).allowed[0]) == set(contents)
    history.observe(0, contents[0])
    assert history.at(2).allowed[0] == (contents[0],)
    assert history.newest(0) == contents[0]
    with pytest.raises(ViolationError, match="nobody wrote"):
        history.observe(0, b"x" * 512)


def test_a_slow_write_read_back_came_after_quick_ones_that_followed_each_other() -> None:
    history = History(0, 1)
    slow = history.begin_write("write", 0, frozenset({0}), frozenset())
    content = history.add_sector(slow, 0, 0, 512)
    for event in (0, 1):
        quick = history.begin_write("write", event, frozenset({0}), frozenset())
        history.add_sector(quick, 0, 0, 512)
        history.end(quick, event + 1)
    history.end(slow, 3)
    history.observe(0, content)
    assert history.newest(0) == content


def test_of_two_discards_read_back_the_one_that_ends_later_is_the_last() -> None:
    """They are alike: what the write between them left is allowed until both are covered."""
    history = History(0, 1)
    discards = [history.begin_write("discard", 0, frozenset({0}), frozenset()) for _ in range(2)]
    write = history.begin_write("write", 0, frozenset({0}), frozenset())
    for span in discards:
        history.add_sector(span, 0, 0, 512, zeros=True)
    content = history.add_sector(write, 0, 0, 512)
    history.end(discards[0], 1)
    history.end(write, 1)
    history.end(history.begin_flush("flush", 1), 2)
    history.end(discards[1], 3)
    history.observe(0, bytes(512))
    assert content in history.at(2).allowed[0]
    history.end(history.begin_flush("flush", 3), 4)
    assert history.at(4).allowed[0] == (bytes(512),)


def test_a_write_of_half_a_sector_keeps_the_other_half() -> None:
    history = History(0, 1)
    first = history.begin_write("write", 0, frozenset({0}), frozenset())
    old = history.add_sector(first, 0, 0, 512)
    history.end(first, 1)
    second = history.begin_write("write", 1, frozenset({0}), frozenset())
    data = history.add_sector(second, 0, 100, 200)
    assert history.newest(0) == old[:100] + data + old[200:]


def test_a_change_of_a_volumes_size_is_covered_by_its_own_end() -> None:
    volume = History(0, 0, number=1, name="v1")
    created = volume.begin_size("create", 0, 1024)
    assert set(volume.at(1).sizes) == {0, 1024}
    volume.end(created, 2)
    assert volume.at(2).sizes == (1024,)
    write = volume.begin_write("write", 2, frozenset(), frozenset())
    content = volume.add_sector(write, 1, 0, 512)
    volume.end(write, 3)
    refused = volume.begin_size("resize", 3, 512)
    volume.forget(refused, 4)
    assert volume.at(4).sizes == (1024,)
    assert set(volume.at(4).allowed[1]) == {bytes(512), content}
    shrunk = volume.begin_size("resize", 4, 512)
    assert set(volume.at(5).sizes) == {512, 1024}
    volume.end(shrunk, 6)
    volume.end(volume.begin_size("resize", 6, 1024), 7)
    assert volume.at(7).sizes == (1024,)
    assert volume.at(7).allowed[1] == (bytes(512),), "what it lost does not come back"
    volume.end(volume.begin_size("delete", 7, 0), 8)
    assert volume.at(8).sizes == (0,)


@pytest.mark.parametrize("mode", MODES)
def test_one_wrong_bit_in_flushed_data_is_noticed(mode: str) -> None:
    recording = record_workload(Cell("raid0", mode, theme="writes"), 3)
    end = len(recording.record.events)
    for index, disks, _event in recording.record.moments():
        if index == end:
            held = {number: bytearray(bytes(disk.image)) for number, disk in enumerate(disks)}
    images = {number: image for number, image in held.items() if is_member(image)}
    expected = recording.history.at(end)
    sector = next(s for s, contents in enumerate(expected.allowed) if any(contents[0]))
    needle = expected.allowed[sector][0]
    data = recording.roles.regions.data  # the log holds copies, too
    places = ((image, image.find(needle, data.offset, data.end)) for image in images.values())
    image, at = next((image, at) for image, at in places if at >= 0)
    whole = {number: bytearray(image) for number, image in images.items()}
    state = State(recording.cell, 3, Cut(end, "k"))
    judge(Left(recording, end, whole), state.generator("look"))
    image[at + 100] ^= 1
    with pytest.raises(ViolationError, match=f"sector {sector} holds content that nobody wrote"):
        judge(Left(recording, end, images), state.generator("look"))


def test_a_missing_member_that_nobody_took_is_noticed() -> None:
    recording = record_workload(Cell("raid5", "partial", theme="writes"), 5)
    assert isinstance(recording.record, CutRecord)
    starts = enumerate(recording.record.starts)
    images = {number: start.copy() for number, start in starts if is_member(start)}
    del images[0]
    left = Left(recording, 0, images)
    with pytest.raises(ViolationError, match=r"roles \[0\] were left out"):
        judge(left, State(recording.cell, 5, Cut(0, "k")).generator("look1"))


# -- the program ---------------------------------------------------------------------------------


def test_the_program_prints_and_writes_the_matrix(tmp_path: Path) -> None:
    page = tmp_path / "campaign.md"
    options = ["--states", "60", "--layout", "raid0", "--journal", "none", "--processes", "1"]
    result = CliRunner().invoke(__main__.main, [*options, "--page", str(page)])
    assert result.exit_code == 0, result.output
    assert "0 violations" in result.output
    text = page.read_text()
    assert "| raid0:none | all | **" in text
    assert str(tmp_path) not in text


def test_the_program_fails_and_prints_the_line_that_replays() -> None:
    options = ["--states", "1000", "--layout", "raid5", "--journal", "full", "--broken"]
    result = CliRunner().invoke(__main__.main, [*options, "--processes", "1", "--stop-after", "1"])
    assert result.exit_code == 1
    line = next(line for line in result.output.splitlines() if "--replay" in line)
    state = line.split("'")[1]
    assert CliRunner().invoke(__main__.main, ["--replay", state]).exit_code == 1


def test_the_program_runs_every_theme_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    themes: list[Cell] = []

    def tasks_of(cells: Sequence[Cell], *_: int, **_by_name: bool) -> list[campaign.Task]:
        themes.extend(cells)
        return []

    monkeypatch.setattr(campaign, "tasks_of", tasks_of)
    options = ["--layout", "raid5", "--journal", "full", "--sums", "off"]
    options += ["--theme", "streams", "--theme", "door"]
    assert CliRunner().invoke(__main__.main, options).exit_code == 0
    assert [cell.theme for cell in themes] == ["streams", "door"]


def test_without_a_choice_every_layout_for_arrays_is_tried() -> None:
    tried = {cell.layout for cell in __main__._cells((), (), False, ())}
    assert tried == set(LAYOUTS) - {"mcpod"}


@pytest.mark.parametrize(
    "state",
    [
        # A cut while member 0 is rebuilt; then another one leaves, and the stripe was torn before.
        "xcode:none/w43023000/m117/s3774792/-",
        # A record of before a move is redone, and a page of the table has the move already.
        "raidx-zero+sums:full/w7301028000/m71/e0/-",
    ],
)
def test_states_that_were_once_violations(state: str) -> None:
    result = CliRunner().invoke(__main__.main, ["--replay", state])
    assert result.exit_code == 0, result.output
    assert "keeps its promises" in result.output


@pytest.mark.parametrize(
    "options",
    [
        *(["--layout", "raid55"], ["--journal", "some"], ["--replay", "raid5"]),
        ["--theme", "streams", "--theme", "creams"],
    ],
)
def test_the_program_refuses_what_it_does_not_know(options: list[str]) -> None:
    result = CliRunner().invoke(__main__.main, options)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
