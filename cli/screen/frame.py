"""What the screen shows: the answers of the daemon, checked, and lines of text made from them.

At 80x24, with four members:

    state and layout; notes; throughput and latency, with the last looks as a curve
    the members: state, how busy, queue, rates, service times
    jobs with their progress
    the map of chunks by member, as many lines each as there is room for
    what was done last; the keys

The array, its members and jobs are described in the words of `raidx status`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from raidx_fuse.cli.output import Output
from raidx_fuse.cli.status_text import BARS, head_rows, job_line, member_cells
from raidx_fuse.daemon.control_client import (
    Connection,
    ControlError,
    DaemonEndedError,
    wait_for_exit,
)

if TYPE_CHECKING:
    from raidx_fuse.answers import ChunkMap, Watched
    from raidx_fuse.documents import ArrayReport, Stats

EXIT_S = 10.0  # for a daemon that has closed its connections to end
ANSWER_BYTES_MAX = 4 << 20  # 255 members with the longest paths, and the map of their chunks
COLUMNS_MIN, LINES_MIN = 80, 24
LABEL_COLUMNS = 5  # before the map of a member
PARTS_MAX = 256  # of a member's chunks
NOTES_MAX = JOBS_MAX = 3  # lines
BAR_COLUMNS = 12
FIXED_LINES = 7  # head, traffic, curve, head of the members, legend, message, keys
LOOKS_MAX = 256
NOTES = ("host", "action", "tuner", "lab", "warning")  # what the owner of an array should read
CURVES = (" ▁▂▃▄▅▆▇█", " .:-=+*%#")
KEYS = "f fail  r replace  t tune  p pause/resume  up/down member  q quit"
HEAD = "role state      busy queue  rd/s  wr/s rd ms   p99 wr ms   p99 member"


# -- the map of chunks by member: a character for each part of a member's places
#
# The shade says how much of the part is written, the colour how often it is used. Without colours a
# used part is a digit instead. A part that has changed since the last frame is bright for that
# frame, so that a rebuild, a growth and a tuning are seen on their way.

LIMITS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # accesses/s from which a part has the next degree
COLOURS = ("#5f00af", "#0087d7", "#00af5f", "#d7af00", "#ffff00")
"""Each brighter than the last, and distinct without red-green vision (as viridis is)."""
UNWRITTEN, LOST = ("·", "."), "x"
SHADES = ("░▒▓█", ":+%#")  # a quarter .. all of it, in Unicode and in ASCII

Part = tuple[float, ...]  # of a member's places: percent written, percent lost, accesses/s


class Feed:
    """Looks at *array*, one after the other, on one connection to its daemon.

    The daemon itself waits for *interval_s*, so the rates are those of exactly that time.
    """

    def __init__(self, array: str, interval_s: float) -> None:
        self.array = array
        self.interval_s = interval_s
        self._connection: Connection | None = None
        self._stopped = False

    def open(self) -> Connection:
        """Connect, unless that was done before; from then on the daemon counts accesses.

        Raises ControlError.
        """
        if self._connection is None:
            self._connection = Connection(self.array, answer_bytes_max=ANSWER_BYTES_MAX)
            self._connection.call("chunk-map")
        return self._connection

    def look(self, parts: int) -> Watched:
        """Return the next look, its map with *parts* parts of each member, as it came.

        Raises ControlError: if the connection has ended, with the reason.
        """
        for wait_s in (0.0, EXIT_S):
            try:
                return self._look(parts)
            except DaemonEndedError:
                pid = self.open().daemon_pid
                self.close()
                if self._stopped:
                    raise
                # A daemon closes its idlest connection for a new client: then another one serves.
                wait_for_exit(pid, wait_s)
        return self._look(parts)  # fails with what has become of the mount

    def _look(self, parts: int) -> Watched:
        connection = self.open()
        return {
            "stats": connection.call("stats", interval_s=self.interval_s),
            "status": connection.call("status"),
            "chunk_map": connection.call("chunk-map", parts=parts),
        }

    def stop(self) -> None:
        """End a look that is under way in another thread."""
        self._stopped = True
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class MemberLook(NamedTuple):
    """A member; *name* is what the commands call it."""

    name: str
    role: str
    figures: Text
    path: str
    parts: Sequence[Part]


class Frame:
    """Takes looks and keys, gives the lines of the screen.

    *warning*, or without one *message*, is the last line but one, and alone before the first look.
    *chosen* is an index of *members*; *jobs* has kinds, and whether paused, by numbers.
    """

    def __init__(self, *, ascii_only: bool = False, colour: bool = True) -> None:
        self.ascii_only, self.colour = ascii_only, colour
        self.warning = self.message = ""
        self.chosen = 0
        self.members: Sequence[MemberLook] = ()
        self.jobs: dict[str, tuple[str, bool]] = {}
        self._head: Sequence[Text] = ()
        self._notes: Sequence[Text] = ()
        self._job_lines: list[Text] = []
        self._rates: deque[float] = deque(maxlen=LOOKS_MAX)
        self._before: Mapping[str, Sequence[Part]] = {}

    @property
    def member(self) -> MemberLook | None:
        return self.members[self.chosen] if self.members else None

    def choose(self, step: int) -> None:
        """Choose the member *step* places further down, at most the last one."""
        self.chosen = max(0, min(self.chosen + step, len(self.members) - 1))

    def take(self, found: Watched) -> None:
        """Take a look. Raises ControlError for one that lacks something: of another version."""
        fit = Output().fit(found)
        try:
            self._take(fit["status"], fit["stats"], fit["chunk_map"])
        except LookupError:
            raise ControlError("the daemon sent an answer that is not valid") from None

    def _take(self, status: ArrayReport, stats: Stats, chunk_map: ChunkMap) -> None:
        out, totals, latency = Output(), stats["array"], stats["array"]["latency_ms"]
        seconds = max(_number(stats["interval_seconds"]), 1e-9)
        figures, parts = {}, {}
        for work in stats["members"]:
            rates = (work["queue_mean"], work["reads"] / seconds, work["writes"] / seconds)
            reads_ms = (work["read_ms_mean"], work["read_ms_p99"])
            writes_ms = (work["write_ms_mean"], work["write_ms_p99"])
            busy = f"{min(_number(work['utilisation']), 9.99):z.0%}"
            figures[int(work["role"])] = [busy, *map(_short, rates + reads_ms + writes_ms)]
        for one in chunk_map["members"]:
            shares = (one["written_percent"], one["lost_percent"], one["accesses_per_s"])
            numbers = (map(_number, share[:PARTS_MAX]) for share in shares)
            parts[int(one["role"])] = list(zip(*numbers, strict=False))
        self._before = {member.name: member.parts for member in self.members}
        self.members = []
        for each in sorted(status["members"], key=lambda each: (each["role"] < 0, each["role"])):
            role, state, path = member_cells(each)
            busy, *others = figures.get(each["role"], ["-"] * 8)
            line = Text.assemble((f"{state.plain:<10}", state.style), f" {busy:>4}")
            line.append("".join(f" {figure:>5}" for figure in others))
            name = path if role == "-" else role
            self.members.append(MemberLook(name, role, line, path, parts.get(each["role"], ())))
        self.choose(0)  # others may have left
        self.jobs, self._job_lines = {}, []
        for job in status["jobs"]:
            self.jobs[str(int(job["id"]))] = job["kind"], bool(job.get("paused"))
            line = job_line(job, out, columns=BAR_COLUMNS, marks=BARS[self.ascii_only])
            self._job_lines += line.split("\n")
        self._job_lines = self._job_lines or [Text("no jobs", "dim")]
        rows = head_rows(status, out)
        said = dict(rows)
        self._notes = [Text.assemble(f"{word}: ", line) for word, line in rows if word in NOTES]
        reads, writes = totals["reads"] / seconds, totals["writes"] / seconds
        read, written = totals["read_bytes"] / seconds, totals["write_bytes"] / seconds
        self._rates.append(_number(read + written))
        self._head = (
            Text.assemble((status["name"], "bold"), "  ", said["state"], "  ", said["layout"]),
            Text(
                f"reads {reads:z.0f}/s {out.rate(read)}  "
                f"writes {writes:z.0f}/s {out.rate(written)}  "
                f"ms: mean {_short(latency['mean'])} p99 {_short(latency['p99'])}"
            ),
        )

    def shared(self, lines: int) -> tuple[int, int, int]:
        """Return which members are shown, from one to another, and lines of map for each."""
        notes, jobs = min(len(self._notes), NOTES_MAX), min(len(self._job_lines), JOBS_MAX)
        left = lines - FIXED_LINES - notes - jobs
        count, mapped = len(self.members), sum(bool(member.parts) for member in self.members)
        if count + mapped <= left:
            return 0, count, (left - count) // mapped if mapped else 1
        shown = max(1, left // 2)
        first = min(max(0, self.chosen - shown // 2), count - shown)
        return first, first + shown, 1

    def parts_wanted(self, columns: int, lines: int) -> int:
        """Return into how many parts the map shall divide each member, to fill the screen."""
        width = max(1, columns - LABEL_COLUMNS)
        return min(PARTS_MAX, width * max(1, min(self.shared(lines)[2], PARTS_MAX // width)))

    def screen(self, columns: int, lines: int) -> list[Text]:
        """Return exactly *lines* lines of at most *columns* columns."""
        if columns < COLUMNS_MIN or lines < LINES_MIN:
            least = f"{COLUMNS_MIN}x{LINES_MIN}"
            found = [Text(f"raidx watch needs {least}, here are {columns}x{lines}; q quits")]
        elif not self._head:
            found = [Text(self.warning or self.message)]
        else:
            found = self.page(columns, lines)
            found += [Text()] * (lines - 2 - len(found))
            found += [Text(self.warning or self.message, "bold"), Text(KEYS, "dim")]
        for at, line in enumerate(found):
            if cell_len(line.plain) > columns:
                line = found[at] = line.copy()  # on a larger terminal it is whole again
                line.truncate(columns, overflow="crop" if self.ascii_only else "ellipsis")
        return (found + [Text()] * lines)[:lines]

    def page(self, columns: int, lines: int = 0) -> list[Text]:
        """Return the frame for *lines* lines; by default the plain one, with all of everything."""
        first, end, each = self.shared(lines) if lines else (0, len(self.members), None)
        members = self.members[first:end]
        head, traffic = self._head
        found = [head, *self._notes[: NOTES_MAX if lines else None], traffic]
        if lines:
            found.append(self._curve(columns))
        found.append(Text(HEAD, "bold"))
        for member in members:
            is_chosen, path = bool(lines) and member is self.member, member.path
            left = columns - LABEL_COLUMNS - cell_len(member.figures.plain) - 1
            while lines and len(path) > 1 and cell_len(path) > left:
                path = ("~" if self.ascii_only else "…") + path[2:]  # paths differ at the end
            role = (f"{'>' if is_chosen else ' '}{member.role:>3} ", "bold" * is_chosen)
            found.append(Text.assemble(role, member.figures, f" {path}"))
        found += self._job_lines[: JOBS_MAX if lines else None]
        shown = f"members {first + 1} to {end} of {len(self.members)}: "
        shown *= len(members) < len(self.members)
        found.append(Text.assemble((shown, "bold"), self._legend()))
        for member in members:
            marks, width = self.map_of(member), max(1, columns - LABEL_COLUMNS)
            for at in range(0, len(marks), width)[:each]:
                label = f"{'' if at else member.role:>4} "
                found.append(Text.assemble(label, *marks[at : at + width]))
        return found

    def map_of(self, member: MemberLook) -> list[tuple[str, str]]:
        before = self._before.get(member.name, ())
        known = before if len(before) == len(member.parts) else member.parts
        return [
            self.mark(part, is_new=part[:2] != old[:2])
            for part, old in zip(member.parts, known, strict=True)
        ]

    def _curve(self, columns: int) -> Text:
        """Return the last throughputs as a curve of one line, its highest value at the end."""
        steps = CURVES[self.ascii_only]
        top = max(self._rates)
        end = f" at most {Output().rate(top)}"
        shown = list(self._rates)[-max(1, columns - len("throughput ") - len(end)) :]
        bars = "".join(steps[-(-int(rate * 8000 / top) // 1000) if top else 0] for rate in shown)
        return Text.assemble("throughput ", (bars, "cyan"), end)

    def mark(self, part: Part, *, is_new: bool = False) -> tuple[str, str]:
        """Return character and colour of a part; *is_new*: it has changed since the last frame.

        >>> [Frame(ascii_only=True).mark((w, 0, 0))[0] for w in (0, 1, 40, 60, 99, 100)]
        ['.', ':', '+', '+', '%', '#']
        >>> [Frame(colour=False).mark((100, 0, uses))[0] for uses in (0, 0.1, 55, 1e6)]
        ['█', '1', '3', '5']
        """
        written, lost, uses = part
        hot = bisect_right(LIMITS, uses) if written else 0
        shade = SHADES[self.ascii_only][3 if written == 100 else min(2, int(written // 34))]
        colour = COLOURS[hot - 1] if hot else "bright_black"
        if lost:
            shade, colour = LOST, "bold red"
        elif not written:
            shade, colour = UNWRITTEN[self.ascii_only], ""
        elif hot and not self.colour:
            shade = str(hot)
        if is_new and not lost:
            colour = "bold bright_white"
        return shade, colour if self.colour else ""

    def _legend(self) -> Text:
        """Return what the characters and colours mean, as one line."""
        blank, shades = UNWRITTEN[self.ascii_only], SHADES[self.ascii_only]
        text = Text(f"{blank} unwritten {shades} written {LOST} lost; accesses/s")
        for number, (limit, colour) in enumerate(zip(LIMITS, COLOURS, strict=True), 1):
            text.append(" ").append(shades[3] if self.colour else str(number), colour * self.colour)
            text.append(f" {limit:g}" if self.colour else f":{limit:g}")
        return text


def _number(value: float) -> float:
    """Return *value*, not negative: an average without work may come out as -1e-17."""
    return max(0.0, float(value))


def _short(value: float) -> str:
    """Return a number in at most five columns.

    >>> [_short(n) for n in (0, 0.0123, 3.14159, 31.4159, 1234.5, 123456, 12.3e6)]
    ['0', '0.012', '3.14', '31.4', '1234', '123k', '12M']
    """
    number = _number(value)
    if number >= 10_000:
        return f"{number / 1e3:z.0f}k" if number < 1e6 else f"{number / 1e6:z.0f}M"
    digits = 0 if not number or number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 3
    return f"{number:.{digits}f}"
