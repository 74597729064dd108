"""The lines of the screen by value, at every size, of every array; and what is believed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text

from raidx_fuse.answers import Watched
from raidx_fuse.cli.screen.frame import COLOURS, PARTS_MAX, Frame, Part
from raidx_fuse.daemon.control_client import ControlError, check_answer
from tests.support.documents import chunk_map, job, member, stats, status

REBUILDING = status(
    state="rebuilding",
    redundancy_left=0,
    members=[member(0), member(1), member(2, "rebuilding"), member(3), member(-1, "spare")],
    jobs=[job()],
    action="wait for the rebuild",
)


def look(document: dict[str, Any], parts: int = 75) -> Watched:
    roles = [each["role"] for each in document["members"] if each["role"] >= 0]
    return {
        "status": document,
        "stats": stats(*roles),
        "chunk_map": chunk_map(*roles, parts=parts),
    }


def plain() -> Frame:
    return Frame(ascii_only=True, colour=False)


def frame_of(document: dict[str, Any], parts: int = 75) -> Frame:
    frame = plain()
    frame.take(look(document, parts))
    return frame


def text_of(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


def test_the_screen_of_a_rebuild_line_by_line() -> None:
    lines = text_of(frame_of(REBUILDING).screen(80, 24))
    full, empty = "#" * 37, "." * 38
    assert lines == [
        "disk  rebuilding, no further loss tolerated  raid5 on 4 members, chunk 64 KiB",
        "action: wait for the rebuild",
        "reads 200/s 2 MiB/s  writes 4000/s 10 MiB/s  ms: mean 0.100 p99 4.40",
        "throughput # at most 12 MiB/s",
        "role state      busy queue  rd/s  wr/s rd ms   p99 wr ms   p99 member",
        ">  0 active      12% 0.500   100   12k 0.020 0.900  5.00  4000 /disks/d0.img",
        "   1 active      25%  1.00   200   25k 0.040  1.80  10.0  8000 /disks/d1.img",
        "   2 rebuilding  38%  1.50   300   37k 0.060  2.70  15.0   12k /disks/d2.img",
        "   3 active      50%  2.00   400   50k 0.080  3.60  20.0   16k /disks/d3.img",
        "   - spare         -     -     -     -     -     -     -     - /disks/d9.img",
        "  1 rebuild  ###.........  29.3 %  300 MiB of 1 GiB, 100 MiB/s, 00:00:08 to go",
        ". unwritten :+%# written x lost; accesses/s 1:0.1 2:1 3:10 4:100 5:1000",
        f"   0 3{full[1:]}{empty}",
        f"   1 #3{full[2:]}{empty}",
        f"   2 ##3{full[3:]}{empty}",
        f"   3 ###3{full[4:]}{empty}",
        *[""] * 7,
        "f fail  r replace  t tune  p pause/resume  up/down member  q quit",
    ]


def test_the_page_has_everything_and_cuts_nothing() -> None:
    long = {**member(1), "path": "/srv/" + "a" * 150}
    jobs = [job(id=number, error="/d1: no space") for number in range(5)]
    warnings = ["one", "two", "three"]
    document = status(members=[member(0), long], jobs=jobs, warnings=warnings)
    text = "\n".join(text_of(frame_of(document).page(80)))
    for words in (long["path"], "  4 rebuild", "/d1: no space", *warnings):
        assert words in text
    assert "q quit" not in text


@pytest.mark.parametrize("kind", [plain, Frame])
@pytest.mark.parametrize("width", [1, 5, 9, 20])
def test_every_size_is_filled_and_the_chosen_member_is_seen(
    width: int, kind: Callable[[], Frame]
) -> None:
    members = [{**member(role), "path": f"/disks/漢字/{role}"} for role in range(width)]
    document = status(members=members, jobs=[job(error="slow")] * 4, warnings=["old"] * 3)
    frame = kind()
    for columns, lines in ((80, 24), (81, 25), (120, 40), (237, 71)):
        frame.take(look(document, frame.parts_wanted(columns, lines)))
        for _ in range(min(width, 12) + 1):
            shown = frame.screen(columns, lines)
            assert len(shown) == lines
            assert max(cell_len(line.plain) for line in shown) <= columns
            assert sum(line.plain.startswith(">") for line in shown) == 1
            assert shown[-1].plain.endswith("q quit")
            if frame.ascii_only:
                rest = "".join(line.plain for line in shown).replace("漢", "").replace("字", "")
                assert rest.isascii()
            frame.choose(1)
        frame.choose(-width)


def test_more_lines_give_a_finer_map() -> None:
    frame = frame_of(REBUILDING)
    assert [frame.shared(lines)[2] for lines in (24, 30, 40)] == [2, 4, 6]
    assert frame.parts_wanted(80, 24) == 150
    assert frame.parts_wanted(120, 40) == 230, "whole lines, and no more than the daemon gives"
    assert frame.parts_wanted(400, 24) == 256
    assert plain().parts_wanted(80, 24) == 75
    lines = text_of(frame_of(REBUILDING, 150).screen(80, 24))
    assert [len(line) for line in lines[12:20]] == [80] * 8
    assert [line[:5].strip() for line in lines[12:20]] == ["0", "", "1", "", "2", "", "3", ""]


def test_a_screen_that_was_small_is_whole_when_it_is_larger() -> None:
    frame = frame_of(status(name="a" * 60))
    assert frame.screen(80, 24)[0].plain.endswith("clean, 1 more loss")
    assert frame.screen(140, 24)[0].plain.endswith("chunk 64 KiB")


@pytest.mark.parametrize(("columns", "lines"), [(79, 24), (80, 23), (20, 1), (1, 5)])
def test_a_terminal_that_is_too_small_gets_one_line(columns: int, lines: int) -> None:
    shown = text_of(frame_of(REBUILDING).screen(columns, lines))
    whole = f"raidx watch needs 80x24, here are {columns}x{lines}; q quits"
    assert shown == [whole[:columns], *[""] * (lines - 1)]


def test_heat_is_a_colour_and_without_colours_a_digit() -> None:
    parts: list[Part] = [(100, 0, uses) for uses in (0, 0.1, 1, 10, 100, 1e9)]
    parts.append((50, 1, 5))
    assert "".join(Frame().mark(part)[0] for part in parts) == "██████x"
    colours = [Frame().mark(part)[1] for part in parts]
    assert colours == ["bright_black", *COLOURS, "bold red"]
    digits = [Frame(colour=False).mark(part) for part in parts]
    assert digits == [(character, "") for character in "█12345x"]


def test_a_part_that_has_changed_is_bright_for_one_frame() -> None:
    frame = Frame(ascii_only=True)
    seen = []
    for written in (0, 40, 40):
        found = look(status(members=[member(0)]), parts=4)
        found["chunk_map"]["members"][0]["written_percent"] = [100, 0, written, 0]
        frame.take(found)
        line = frame.screen(80, 24)[7]
        assert line.plain == f"   0 #.{'+' if written else '.'}."
        seen.append([(s.start, s.end) for s in line.spans if s.style == "bold bright_white"])
    assert seen == [[], [(7, 8)], []]


def test_a_member_is_chosen_among_those_there_are() -> None:
    frame = plain()
    assert frame.member is None
    frame.choose(1)
    frame.take(look(REBUILDING))
    frame.choose(3)
    assert frame.member is not None
    assert frame.member.name == "3"
    frame.choose(9)
    assert frame.member.name == "/disks/d9.img", "a spare has no role"
    frame.take(look(status(members=[member(0), member(1)])))
    assert frame.member.name == "1", "the others have left"
    frame.choose(-9)
    assert frame.member.name == "0"


def test_notes_of_tuner_and_lab_are_those_of_status() -> None:
    tuner = {"state": "moving", "why": "3 chunks, 5 to 1 ms per request", "chunks_moved": 7}
    lab = [{"member": "/d0", "faults": []}, {"member": "/d1", "faults": ["slow"]}]
    frame = frame_of(status(tuner=tuner, lab=lab, warnings=["old"]))
    assert text_of(frame.screen(80, 24))[1:4] == [
        "tuner: moving: 3 chunks, 5 to 1 ms per request; 7 chunks moved",
        "lab: members can be broken; faults now: /d1: slow",
        "warning: old",
    ]


def test_an_interval_without_work_may_average_to_a_little_less_than_nothing() -> None:
    found = look(status(members=[member(0)]))
    found["stats"]["members"][0]["queue_mean"] = -1e-17
    frame = plain()
    frame.take(found)
    assert frame.screen(80, 24)[4].plain.split()[4] == "0"


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in *document*."""
    items = enumerate(document) if isinstance(document, list) else []
    items = document.items() if isinstance(document, dict) else items
    found = [path] if path else []
    for key, value in items:
        found += places(value, (*path, key))
    return found


def check(look: Watched) -> None:
    """Raise ControlError unless the answers of *look* are such, as of a daemon of another user."""
    check_answer("status", {}, look["status"])
    check_answer("stats", {}, look["stats"])
    check_answer("chunk-map", {}, look["chunk_map"])


BAD: list[Any] = [None, -1, 1e300, float("nan"), "\x1b[2J", [], {}, [[]], True, 10**400]


def test_answers_that_are_not_valid_are_refused_and_nothing_else_happens() -> None:
    good: Watched = {
        "status": status(members=[member(0)], jobs=[job()], warnings=["old"]),
        "stats": stats(0),
        "chunk_map": chunk_map(0, parts=2),
    }
    check(good)
    refused = 0
    for path in places(good):
        if len(path) == 1:
            continue  # an answer is a document: the connection sees to that
        for bad in BAD:
            documents = copy.deepcopy(good)
            inner: Any = documents
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = bad
            frame = plain()
            try:
                check(documents)
                frame.take(documents)
            except ControlError:
                refused += 1
                continue
            for line in frame.screen(80, 24) + frame.page(80):
                assert "\x1b" not in line.plain
    assert refused > 100


def test_of_a_map_with_more_parts_than_asked_for_the_rest_is_left_out() -> None:
    frame = frame_of(status(members=[member(0)]), parts=1000)
    assert frame.member is not None
    assert len(frame.member.parts) == PARTS_MAX
