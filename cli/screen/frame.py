"""The lines of the screen, from a view and a size. Pure: the same view gives the same lines.

At 80x24, with four members:

    state and layout; notes; throughput and latency, with the last looks as a curve
    the members: state, how busy, queue, rates, service times
    jobs with their progress
    the map of chunks by member, as many lines each as there is room for
    what was done last; the keys
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.text import Text

from raidx_fuse.cli.output import Output, plural
from raidx_fuse.cli.screen.model import View
from raidx_fuse.cli.screen.snapshot import PARTS_MAX, JobLook, MemberLook, Part, Snapshot
from raidx_fuse.cli.status_text import STATE_STYLES

COLUMNS_MIN, LINES_MIN = 80, 24
LABEL_COLUMNS = 5  # before the map of a member
JOBS_MAX = 3
BAR_COLUMNS = 12
FIXED_LINES = 7  # head, traffic, curve, head of the members, legend, message, keys
NOTES_MAX = 2
CURVES = (" ▁▂▃▄▅▆▇█", " .:-=+*%#")
BARS = ("━", "─"), ("#", ".")
KEYS = "f fail  r replace  t tune  p pause/resume  up/down member  q quit"
HEAD = "role state      busy queue  rd/s  wr/s rd ms   p99 wr ms   p99 member"


@dataclass(frozen=True, slots=True)
class Style:
    """How the terminal can be written to."""

    ascii_only: bool = False
    colour: bool = True


def too_small(columns: int, lines: int) -> str | None:
    """Return what to say on a terminal that has too little room, None if it has enough."""
    if columns >= COLUMNS_MIN and lines >= LINES_MIN:
        return None
    return f"raidx watch needs {COLUMNS_MIN}x{LINES_MIN}, here are {columns}x{lines}; q quits"


@dataclass(frozen=True, slots=True)
class Room:
    """How the lines of a screen are shared: members from *first* to *end*, *each* lines of map."""

    first: int
    end: int
    each: int
    jobs: int
    notes: int


def shared(view: View, lines: int) -> Room:
    """Return how *lines* are shared, so that the chosen member is seen."""
    look = view.look
    notes = min(len(look.notes), NOTES_MAX)
    jobs = min(max(1, sum(2 if job.error else 1 for job in look.jobs)), JOBS_MAX)
    left = lines - FIXED_LINES - notes - jobs
    mapped = sum(bool(member.parts) for member in look.members)
    others = len(look.members) - mapped
    if others + 2 * mapped <= left:
        each = (left - len(look.members)) // mapped if mapped else 1
        return Room(0, len(look.members), max(1, each), jobs, notes)
    count = max(1, left // 2)
    first = min(max(0, (view.chosen or 0) - count // 2), len(look.members) - count)
    return Room(first, first + count, 1, jobs, notes)


def parts_wanted(view: View | None, columns: int, lines: int) -> int:
    """Return into how many parts the map shall divide each member, to fill the screen."""
    each = 1 if view is None else shared(view, lines).each
    width = max(1, columns - LABEL_COLUMNS)
    return min(PARTS_MAX, width * max(1, min(each, PARTS_MAX // width)))  # whole lines


def screen(view: View, columns: int, lines: int, style: Style) -> list[Text]:
    """Return exactly *lines* lines of at most *columns* columns."""
    small = too_small(columns, lines)
    if small is not None:
        found = [Text(small)]
    else:
        room = shared(view, lines)
        found = _body(view, columns, style, room)
        found += [Text()] * (lines - 2 - len(found))
        found += [Text(view.message, "bold"), Text(KEYS, "dim")]
    for line in found:
        if cell_len(line.plain) > columns:
            line.truncate(columns, overflow="crop" if style.ascii_only else "ellipsis")
    return (found + [Text()] * lines)[:lines]


def page(view: View, columns: int, style: Style) -> list[Text]:
    """Return the plain frame: everything, whatever lines and columns it needs."""
    look = view.look
    room = Room(0, len(look.members), 1, 2 * len(look.jobs), len(look.notes))
    return _body(view, columns, style, room, is_page=True)


def _body(
    view: View, columns: int, style: Style, room: Room, *, is_page: bool = False
) -> list[Text]:
    look = view.look
    found = [_head(look)]
    found += [Text(note, "yellow") for note in look.notes[: room.notes]]
    found.append(_traffic(look))
    if not is_page:
        found.append(_curve(view.rates, columns, style))
    found.append(Text(HEAD, "bold"))
    members = look.members[room.first : room.end]
    for index, member in enumerate(members, room.first):
        is_chosen = index == view.chosen and not is_page
        found.append(_member(member, None if is_page else columns, is_chosen, style))
    found += _jobs(look.jobs, style)[: room.jobs] or [Text("no jobs", "dim")]
    found.append(_map_head(look, room, style))
    for member in members:
        lines = map_lines(
            member.parts,
            view.before.get(member.role, ()),
            max(1, columns - LABEL_COLUMNS),
            ascii_only=style.ascii_only,
            colour=style.colour,
        )
        for number, line in enumerate(lines if is_page else lines[: room.each]):
            label = f"{member.role:>4} " if not number else " " * LABEL_COLUMNS
            found.append(Text.assemble(label, line))
    return found


def _head(look: Snapshot) -> Text:
    out = Output()
    in_role = sum(member.role >= 0 for member in look.members)
    return Text.assemble(
        (look.name, "bold"),
        "  ",
        (look.state, STATE_STYLES.get(look.state, "yellow")),
        f", {look.redundancy}  {look.layout} on {plural(in_role, 'member')}, "
        f"chunk {out.size(look.chunk_bytes)}",
    )


def _traffic(look: Snapshot) -> Text:
    rate = Output().rate
    traffic = look.traffic
    return Text(
        f"reads {traffic.reads:.0f}/s {rate(traffic.read_bytes)}  "
        f"writes {traffic.writes:.0f}/s {rate(traffic.write_bytes)}  "
        f"ms: mean {_time(traffic.mean_ms)} p99 {_time(traffic.p99_ms)}"
    )


def _time(milliseconds: float) -> str:
    """Return a time in milliseconds in at most five columns; an s behind it means seconds.

    >>> _time(0), _time(0.0123), _time(3.14159), _time(31.4159), _time(1234.5), _time(12345.6)
    ('0', '0.012', '3.14', '31.4', '1234', '12s')
    """
    if not milliseconds or milliseconds >= 10_000:
        return f"{milliseconds / 1000:.0f}s" if milliseconds else "0"
    digits = 3 if milliseconds < 1 else 2 if milliseconds < 10 else 1 if milliseconds < 100 else 0
    return f"{milliseconds:.{digits}f}"


def _count(number: float) -> str:
    """Return a number in at most five columns.

    >>> _count(0), _count(0.25), _count(1234.5), _count(123456), _count(12.3e6)
    ('0', '0.2', '1234', '123k', '12M')
    """
    if number < 10_000:
        return f"{number:.1f}" if 0 < number < 10 else f"{number:.0f}"
    return f"{number / 1e3:.0f}k" if number < 1e6 else f"{number / 1e6:.0f}M"


def _curve(rates: Sequence[float], columns: int, style: Style) -> Text:
    """Return the last throughputs as a curve of one line, its highest value at the end."""
    steps = CURVES[style.ascii_only]
    top = max(rates, default=0.0)
    end = f" at most {Output().rate(top)}"
    shown = rates[-max(1, columns - len("throughput ") - len(end)) :]
    bars = "".join(steps[-(-int(rate * 8000 / top) // 1000) if top else 0] for rate in shown)
    return Text.assemble("throughput ", (bars, "cyan"), end)


def _member(member: MemberLook, columns: int | None, is_chosen: bool, style: Style) -> Text:
    work = member.work
    figures: tuple[str, ...] = ("-",) * 8
    if work is not None:
        figures = (
            f"{min(work.busy, 9.99):.0%}",
            *map(_count, (work.queue, work.reads, work.writes)),
            *map(_time, (work.read_ms, work.read_p99_ms, work.write_ms, work.write_p99_ms)),
        )
    role = str(member.role) if member.role >= 0 else "-"
    line = Text(f"{'>' if is_chosen else ' '}{role:>3} ", "bold" if is_chosen else "")
    line.append(f"{member.state:<10}", STATE_STYLES.get(member.state, "yellow"))
    line.append("".join(f" {figure:>{4 + (at > 0)}}" for at, figure in enumerate(figures)))
    path = member.path
    if columns is not None:
        room = columns - cell_len(line.plain) - 1
        if cell_len(path) > room:  # its end tells more than its beginning
            mark = "~" if style.ascii_only else "…"
            while path and cell_len(path) > room - 1:
                path = path[1:]
            path = mark + path
    return line.append(f" {path}")


def _jobs(jobs: Sequence[JobLook], style: Style) -> list[Text]:
    full, rest = BARS[style.ascii_only]
    found = []
    for job in jobs:
        done = int(job.share * BAR_COLUMNS / 100)
        line = Text(f"job {job.number} {job.kind} ")
        line.append(full * done, "green")
        line.append(rest * (BAR_COLUMNS - done), "dim")
        found.append(line.append(f" {job.share:.1f} %  {job.amount}"))
        if job.error:
            found.append(Text(f"    {job.error}", "red"))
    return found


def _map_head(look: Snapshot, room: Room, style: Style) -> Text:
    text = legend(ascii_only=style.ascii_only, colour=style.colour)
    if room.end - room.first < len(look.members):
        text = Text.assemble(
            (f"members {room.first + 1} to {room.end} of {len(look.members)}: ", "bold"), text
        )
    return text


# -- the map of chunks by member: a character for each part of a member's places
#
# The shade says how much of the part is written, the colour how often it is used. Without colours a
# used part is a digit instead. A part that has changed since the last frame is bright for that
# frame, so that a rebuild, a growth and a tuning are seen on their way.

LIMITS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Accesses per second of a part from which it has the next degree of heat."""
COLOURS = ("#5f00af", "#0087d7", "#00af5f", "#d7af00", "#ffff00")
"""Each brighter than the last, and apart for those who see red and green alike (as viridis is)."""
UNWRITTEN, LOST = ("·", "."), "x"
SHADES = ("░▒▓█", ":+%#")  # a quarter .. all of it, in Unicode and in ASCII
LOST_STYLE = "bold red"
COLD_STYLE = "bright_black"
NEW_STYLE = "bold bright_white"


def degree(uses: float) -> int:
    """Return the degree of heat of a part, 0 (cold) to 5, by its accesses per second.

    >>> degree(0), degree(0.1), degree(55), degree(1e6)
    (0, 1, 3, 5)
    """
    return bisect_right(LIMITS, uses)


def glyph(part: Part, *, ascii_only: bool, colour: bool) -> str:
    """Return the character of a part.

    >>> [glyph(Part(w, 0, 0), ascii_only=True, colour=True) for w in (0, 1, 40, 60, 99, 100)]
    ['.', ':', '+', '+', '%', '#']
    """
    if part.lost:
        return LOST
    if not part.written:
        return UNWRITTEN[ascii_only]
    if not colour and (hot := degree(part.uses)):
        return str(hot)
    return SHADES[ascii_only][3 if part.written == 100 else min(2, part.written // 34)]


def part_style(part: Part, *, is_new: bool) -> str:
    """Return the colour of a part; *is_new*: it has changed since the last frame."""
    if part.lost:
        return LOST_STYLE
    if is_new:
        return NEW_STYLE
    hot = degree(part.uses) if part.written else 0
    return COLOURS[hot - 1] if hot else COLD_STYLE if part.written else ""


def map_lines(
    parts: Sequence[Part],
    before: Sequence[Part],
    columns: int,
    *,
    ascii_only: bool,
    colour: bool,
) -> list[Text]:
    """Return the parts of one member, *columns* to a line; *before* are those of the last frame."""
    lines = []
    known = before if len(before) == len(parts) else parts
    for start in range(0, len(parts), columns):
        marks = []
        for part, old in zip(parts[start : start + columns], known[start:], strict=False):
            is_new = (part.written, part.lost) != (old.written, old.lost)
            character = glyph(part, ascii_only=ascii_only, colour=colour)
            marks.append((part_style(part, is_new=is_new) if colour else "", character))
        line = Text()
        for name, run in groupby(marks, itemgetter(0)):
            line.append("".join(character for _, character in run), name)
        lines.append(line)
    return lines


def legend(*, ascii_only: bool, colour: bool) -> Text:
    """Return what the characters and colours mean, as one line."""
    shades = SHADES[ascii_only]
    text = Text(f"{UNWRITTEN[ascii_only]} unwritten {shades} written {LOST} lost; accesses/s")
    for number, limit in enumerate(LIMITS):
        text.append(" ")
        text.append(shades[3] if colour else str(number + 1), COLOURS[number] if colour else "")
        text.append(f" {limit:g}" if colour else f":{limit:g}")
    return text
