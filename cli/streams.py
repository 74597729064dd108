"""The standard streams of a command: closed ones are opened, and a failed write is no traceback.

A closed stream would be given to the next file that is opened, a member for example. So the streams
that the caller closed stand for /dev/null before anything else is opened.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from raidx_fuse.errors import RaidxError, Reason


class OutputError(RaidxError):
    """Standard output cannot be written: a full file system, a device with an error."""

    reason = Reason.FILE


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from None


class _Output(io.TextIOWrapper):
    """Standard output; raises OutputError, and BrokenPipeError if its reader is gone."""

    def write(self, text: str) -> int:
        with _written():
            return super().write(text)

    def flush(self) -> None:
        with _written():
            super().flush()


class _Errors(io.TextIOWrapper):
    """Standard error: what cannot be written is lost, for there is no place to say so."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def guard() -> None:
    """Open the standard streams that are closed, and guard output and errors.

    Streams that a program or test has replaced stay as they are.
    """
    _open_closed()
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.stdout = _guarded(_Output, sys.stdout, sys.__stdout__, 1)
    sys.stderr = _guarded(_Errors, sys.stderr, sys.__stderr__, 2)


def _guarded(kind: type[io.TextIOWrapper], stream: Any, own: object, number: int) -> Any:
    if stream is not None and (stream is not own or type(stream) is not io.TextIOWrapper):
        return stream
    return kind(
        open(number, "wb", closefd=False),  # for as long as the program runs
        encoding=stream.encoding if stream else "utf-8",
        errors=stream.errors if stream else "backslashreplace",
        line_buffering=stream is not None and stream.line_buffering,
    )


def _open_closed() -> None:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(null, True)
