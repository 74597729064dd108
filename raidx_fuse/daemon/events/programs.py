"""The programs that an event is delivered to, the mailer among them, and systemd's journal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from raidx_fuse.daemon.events.event import Event
from raidx_fuse.errors import UsageError

if TYPE_CHECKING:
    from raidx_fuse.documents import HookResult

JOURNAL = "/run/systemd/journal/socket"
PRIORITIES = {"info": 6, "warning": 4, "error": 3}  # as syslog's
SENDMAIL_PATH = "/usr/sbin:/usr/lib:/sbin"


def check_program(path: str) -> None:
    """Raise UsageError unless *path* is an executable file, named from the root."""
    if not os.path.isabs(path):
        raise UsageError(f"{path[:80]!r} is not an absolute path", action="or off, for none")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise UsageError(f"{path} is not a program", action="make it executable: chmod +x")


async def run_program(program: str, event: Event, limit_s: float) -> HookResult:
    """Run *program* for *event*, at most *limit_s*; return *ok*, and the *problem* if not.

    Its arguments are those of `mdadm --monitor --program`; its input is the event as JSON.
    """
    where = event.mountpoint or event.array
    words = [program, event.event, where, *([event.subject] if event.subject else [])]
    return await _run(words, json.dumps(event.as_dict()) + "\n", limit_s)


async def send_mail(address: str, event: Event, limit_s: float) -> HookResult:
    mailer = found("sendmail", f"{SENDMAIL_PATH}:{os.environ.get('PATH', '')}")
    if mailer is None:
        return {"ok": False, "problem": "there is no sendmail"}
    return await _run([mailer, "-i", address], mail_text(event, address), limit_s)


def found(program: str, folders: str) -> str | None:
    """Return the path of *program* in *folders*, separated by colons, None if it is in none."""
    return shutil.which(program, path=folders)


async def output_of(words: Sequence[str], limit_s: float) -> bytes | None:
    """Return what a program prints within *limit_s*, whatever its status; None if it does not."""
    with trio.move_on_after(limit_s), suppress(OSError):
        return (await _ended(words, "", capture_stdout=True)).stdout
    return None


async def _run(words: Sequence[str], text: str, limit_s: float) -> HookResult:
    status: int | None = None
    with trio.move_on_after(limit_s):
        try:
            status = (await _ended(words, text)).returncode
        except OSError as error:
            return {"ok": False, "problem": f"{words[0]}: {os.strerror(error.errno or 0)}"}
        except ValueError as error:  # a zero byte in the file of the settings
            return {"ok": False, "problem": f"{words[0]!r}: {error}"}
    if status is None:
        return {"ok": False, "problem": f"{words[0]}: no end within {limit_s:g} s: killed"}
    problem = None if status == 0 else f"{words[0]}: exit status {status}"
    return {"ok": status == 0, "problem": problem}


async def _ended(
    words: Sequence[str], text: str, *, capture_stdout: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with *text* as its input to its end, or kill it when that is cancelled."""
    return await trio.run_process(
        list(words),
        stdin=text.encode(errors="replace"),
        check=False,
        capture_stdout=capture_stdout,
        start_new_session=True,
        deliver_cancel=_kill,
    )


async def _kill(process: trio.Process) -> None:
    """Kill a program that takes too long, and what it started: it leads its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def mail_text(event: Event, address: str) -> str:
    host = socket.gethostname()
    subject = f"{event.event} on {event.array} ({host})"
    lines = [event.message, f"array {event.array}, {event.uuid}, mounted on {event.mountpoint}"]
    if event.action:
        lines.append(f"Next: {event.action}")
    head = [f"To: {address}", f"Subject: {' '.join(subject.split())}"]
    return "\n".join([*head, "Auto-Submitted: auto-generated", "", *lines, ""])


def notify_systemd(state: str) -> None:
    """Send *state* to the service manager that started this process, if one did (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)


def send_to_journal(event: Event, path: str = JOURNAL) -> None:
    """Send *event* with its fields to systemd's journal, if there is one. Never blocks."""
    fields = {
        "MESSAGE": event.message,
        "PRIORITY": str(PRIORITIES[event.severity]),
        "SYSLOG_IDENTIFIER": "raidx",
        "RAIDX_EVENT": event.event,
        "RAIDX_ARRAY": event.array,
        "RAIDX_UUID": event.uuid,
        "RAIDX_SUBJECT": event.subject,
        "RAIDX_ACTION": event.action or "",
    }
    text = "".join(f"{name}={' '.join(value.split())}\n" for name, value in fields.items() if value)
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(text.encode(errors="replace"), path)
