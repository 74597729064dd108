"""Real traces, streamed from disk: SPC (UMass) and MSR Cambridge, plain or compressed.

    trace = Trace("Financial1.spc.xz")
    for block in trace: ...                  # a load; it can be iterated several times

* SPC, ``ASU,LBA,size,opcode,timestamp``: LBA in sectors of 512 bytes within its ASU, size in bytes,
  opcode r or w in either case, timestamp in seconds; further fields are ignored.
* MSR Cambridge, ``Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime``: timestamp in units
  of 100 ns, Type Read or Write, Offset and Size in bytes.

The first request decides which format it is. Empty lines, comments (``#``), a byte order mark and
one line of column names before it are skipped. What is no regular file, such as a pipe, is copied
to a temporary file first. Every ASU (disk) is an address space of its own. With
*asus* "joined" they are concatenated in the order of their numbers, each as long as the trace's
largest address on it, so the whole file is read once before the first block. "overlaid" puts all of
them at address 0, as replays that ignore the ASU do; a number takes only the requests to that ASU.
Times begin at 0 and never decrease: a request
that was logged late gets the time of the one before.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import isfinite
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.lab.loads.request import BLOCK_REQUESTS, SECTOR_BYTES, Block, Bools, Floats, Ints

try:
    import zstandard
except ImportError:  # an extra
    zstandard = None  # type: ignore[assignment]

JOINED, OVERLAID = "joined", "overlaid"
DEVICE_ALIGNMENT_BYTES = 1 << 20
OFFSET_BYTES_MAX = 1 << 60
_ENCODING = "latin-1"  # decodes any byte: a wrong line gets a message with its number
_MARK = b"\xef\xbb\xbf".decode(_ENCODING)  # of byte order, before the first line
_copies: dict[str, IO[bytes]] = {}  # path -> what came out of a pipe, removed at the end
_BROKEN: tuple[type[Exception], ...] = (OSError, EOFError, lzma.LZMAError)
if zstandard is not None:
    _BROKEN += (zstandard.ZstdError,)

Row = tuple[float, int, bool, int, int]  # time in the file's unit, device, is_write, offset, length
_Columns = tuple[Floats | Ints, Ints, Bools, Ints, Ints]


def _spc_row(fields: Sequence[str]) -> Row:
    device, lba, size, opcode, time = fields[:5]  # too few: a ValueError
    if opcode.strip() not in ("r", "R", "w", "W"):
        raise ValueError(f"opcode {opcode.strip()!r} is neither r nor w")
    return float(time), int(device), opcode.strip() in "wW", int(lba) * SECTOR_BYTES, int(size)


def _msr_row(fields: Sequence[str]) -> Row:
    time, _host, device, kind, offset, size = fields[:6]
    word = kind.strip().lower()
    if word not in ("read", "write"):
        raise ValueError(f"type {kind.strip()!r} is neither Read nor Write")
    return _whole(time), int(device), word == "write", int(offset), int(size)


def _whole(text: str) -> int:
    """Return a time stamp; spreadsheets write such numbers as 1.28166E+17 or with ".0"."""
    try:
        return int(text)
    except ValueError:
        time = float(text)
    if not isfinite(time):
        raise ValueError(f"{text!r} is no time")
    return round(time)


OPENERS: dict[str, Callable[..., IO[str]]] = {
    **{".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
}
FORMATS: dict[str, tuple[Callable[[Sequence[str]], Row], int, float]] = {
    "spc": (_spc_row, 5, 1.0),  # parser of a line, fields it needs, seconds in its unit of time
    "msr": (_msr_row, 6, 1e-7),
}


@dataclass(slots=True)
class _Survey:
    """What one pass over the whole file has counted."""

    requests: int = 0
    device_bytes: dict[int, int] = field(default_factory=dict)


class Trace:
    """A trace file as a load.

    *format* is "spc" or "msr"; None recognises it by the first line. *asus*: "joined", "overlaid"
    or the number of one. Opening and reading raise UsageError with the path and, for a wrong line,
    its number.
    """

    def __init__(self, path: str | Path, format: str | None = None, asus: str = JOINED) -> None:
        self.path = Path(path)
        self.asus = check_asus(asus)
        if format is not None and format not in FORMATS:
            raise UsageError(f"no trace format {format!r}", action=f"choose {', '.join(FORMATS)}")
        self.format = format or self._recognise()
        self._survey: _Survey | None = None

    def __iter__(self) -> Iterator[Block]:
        """Yield the requests; each device's addresses follow those of lower device numbers."""
        sizes = sorted(self._look_through().device_bytes.items())
        ends = accumulate((size * (self.asus == JOINED) for _, size in sizes), initial=0)
        starts = {number: at for (number, _), at in zip(sizes, ends, strict=False)}
        first: Any = None
        last_s = 0.0
        unit_s = FORMATS[self.format][2]
        for time, device, is_write, offset, length in self._columns():
            first = time[0] if first is None else first
            # Subtract in the file's own unit: floating-point seconds would lose the last digits.
            at_s = np.maximum.accumulate(np.maximum((time - first) * unit_s, last_s))
            last_s = float(at_s[-1])
            base = np.array([starts[number] for number in device.tolist()], dtype=np.int64)
            yield Block(at_s, is_write, offset + base, length)

    @property
    def span_bytes(self) -> int:
        """The size of all devices together, or of the largest. Reads the whole file."""
        sizes = self._look_through().device_bytes.values()
        return sum(sizes) if self.asus == JOINED else max(sizes)

    @property
    def devices(self) -> list[int]:
        """The numbers of the devices (ASUs) in the trace. Reads the whole file."""
        return sorted(self._look_through().device_bytes)

    def _look_through(self) -> _Survey:
        if self._survey is None:
            survey = _Survey()
            for time, device, _, offset, length in self._columns():
                survey.requests += len(time)
                for number in np.unique(device).tolist():
                    end = int((offset + length)[device == number].max())
                    end = -(-end // DEVICE_ALIGNMENT_BYTES) * DEVICE_ALIGNMENT_BYTES
                    survey.device_bytes[number] = max(survey.device_bytes.get(number, 0), end)
            if not survey.requests and self.asus.isdigit():
                raise UsageError(f"{self.path}: no request to ASU {self.asus}")
            self._survey = survey
        return self._survey

    # -- reading -------------------------------------------------------------------------------

    def _recognise(self) -> str:
        for line in self._lines():
            fields = line.split(",")
            if len(fields) >= 6 and fields[3].strip().lower() in ("read", "write"):
                return "msr"
            if len(fields) >= 5 and fields[3].strip().lower() in ("r", "w"):
                return "spc"
            if _is_row(line):
                raise UsageError(
                    f"{self.path}: neither an SPC nor an MSR Cambridge trace",
                    action="expected lines like 0,303567,3584,w,0.000000"
                    " (ASU,LBA,size,opcode,time)",
                )
        raise UsageError(f"{self.path}: an empty trace")

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the file, decompressed by its suffix. Raises UsageError.

        A byte order mark is left out, and of a line with column names only its end is yielded.
        """
        try:
            with self._open() as file:
                first = next(file, "").removeprefix(_MARK)
                while first and not _is_row(first):
                    yield first
                    first = next(file, "")
                yield from ("\n" if _is_names(first.split(",")) else first,) if first else ()
                yield from file
        except _BROKEN as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(f"{self.path}: cannot be read: {reason}") from None

    def _open(self) -> IO[str]:
        suffix = self.path.suffix.lower()
        path = regular_file(self.path)
        opener: Callable[..., IO[str]] = OPENERS.get(suffix, open)
        if suffix == ".zst":
            if zstandard is None:
                raise UsageError(
                    f"{self.path}: reading .zst needs the package zstandard",
                    action="pip install 'raidx-fuse[traces]', or unpack the file",
                    reason=Reason.NOT_INSTALLED,
                )
            opener = zstandard.open
        return opener(path, "rt", encoding=_ENCODING)

    def _columns(self) -> Iterator[_Columns]:
        """Yield the columns of the file in blocks, without empty requests."""
        lines = self._lines()
        number = 1
        while chunk := list(islice(lines, BLOCK_REQUESTS)):
            time, device, is_write, offset, length = self._parse(chunk, number)
            number += len(chunk)
            mine = length > 0
            if self.asus.isdigit():
                mine &= device == int(self.asus)
            if mine.any():
                yield time[mine], device[mine], is_write[mine], offset[mine], length[mine]

    def _parse(self, lines: list[str], number: int) -> _Columns:
        read_row, needed, unit_s = FORMATS[self.format]
        try:
            rows = [_checked(read_row(line.split(","))) for line in lines if _is_row(line)]
        except ValueError:
            self._complain(lines, number, read_row, needed)
            raise
        time, device, is_write, offset, length = zip(*rows, strict=True) if rows else ((),) * 5
        return (
            np.array(time, np.float64) if unit_s == 1.0 else np.array(time, np.int64),
            np.array(device, dtype=np.int64),
            np.array(is_write, dtype=np.bool_),
            np.array(offset, dtype=np.int64),
            np.array(length, dtype=np.int64),
        )

    def _complain(
        self, lines: list[str], number: int, read_row: Callable[[Sequence[str]], Row], needed: int
    ) -> None:
        """Raise UsageError for the first wrong line; *number* is that of the first of *lines*."""
        for at, line in enumerate(lines, number):
            fields = line.split(",")
            try:
                if _is_row(line):
                    _checked(read_row(fields))
            except ValueError as error:
                few = f"{len(fields)} fields instead of {needed}"
                problem = few if len(fields) < needed else error
                raise UsageError(f"{self.path}, line {at}: {problem}") from None


def regular_file(path: Path) -> Path:
    """Return *path*, or of a pipe the path of a copy: a trace is read several times.

    The copy is kept until the program ends. A path that leads nowhere is returned as it is. Raises
    OSError.
    """
    if str(path) not in _copies:
        if path.is_file() or not path.exists():
            return path
        with path.open("rb") as pipe:
            copy = NamedTemporaryFile(prefix="raidx-trace-")  # noqa: SIM115  # kept to the end
            shutil.copyfileobj(pipe, copy, 1 << 20)
        copy.flush()
        _copies[str(path)] = copy
    return Path(_copies[str(path)].name)


def _is_row(line: str) -> bool:
    """Return whether *line* stands for a request: it is neither empty nor a comment."""
    return bool(line.strip()) and not line.startswith("#")


def _is_names(fields: Sequence[str]) -> bool:
    """Return whether a first line of *fields* names the columns: none of them is a number."""
    return len(fields) > 1 and not any(set(field) & set("0123456789") for field in fields)


def check_asus(text: str) -> str:
    """Return *text*, which says what becomes of a trace's ASUs. Raises UsageError."""
    if text not in (JOINED, OVERLAID) and not (text.isdecimal() and text.isascii()):
        raise UsageError(f"asus is {JOINED!r}, {OVERLAID!r} or the number of one, not {text!r}")
    return text


def _checked(row: Row) -> Row:
    time, device, _, offset, length = row
    if not (0 <= offset <= OFFSET_BYTES_MAX and 0 <= length <= OFFSET_BYTES_MAX):
        raise ValueError("an address or a size is out of range")
    if not (abs(time) < float(1 << 62) and 0 <= device < 1 << 31):
        raise ValueError("the time or the device is out of range")
    return row
