"""Daemonize: fork, report readiness or the one-line error to the parent, keep a log.

    parent                         daemon
    fork ------------------------> new session, output to the log
    waits on a pipe                opens the array, mounts
    returns what was reported <--- ready({...})
    or raises                 <--- the RaidxError, as a line of JSON
    or raises "died"          <--- end of the pipe

The fork comes before trio starts and before any member is opened, because neither threads nor locks
of members survive a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from raidx_fuse.daemon.control_client import ControlError
from raidx_fuse.daemon.events.programs import notify_systemd
from raidx_fuse.errors import RaidxError, Reason, reason_named, shortage

if TYPE_CHECKING:
    from raidx_fuse.documents import ArrayReport

Ready = Callable[[Mapping[str, object]], None]
Body = Callable[[Ready], None]

log = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LOG_BYTES_MAX = 4 << 20


def start(body: Body, log_path: Path) -> ArrayReport:
    """Run *body* in a daemon; return what it passes to its argument *ready*.

    The daemon runs until *body* returns. Raises ControlError with the daemon's own message and exit
    status if *body* raises RaidxError before it is ready, and if the daemon dies.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become_daemon(body, writing, log_path)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            line = pipe.readline()
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise
    if not line.endswith(b"\n"):
        _, status = os.waitpid(pid, 0)
        raise ControlError(
            f"the daemon died before it was ready ({_describe(status)})",
            action=f"see {log_path}",
            reason=Reason.DAEMON_ENDED,
        )
    report = json.loads(line)
    if "error" in report:
        os.waitpid(pid, 0)
        error = report["error"]
        raise ControlError(**error | {"reason": reason_named(error["reason"])})
    ready: ArrayReport = report["ready"]
    return ready


def run_in_foreground(body: Body, ready: Ready) -> None:
    """Run *body* in this process, logging to standard error; it reports to *ready*.

    A service manager is told, too (systemd, ``Type=notify``).
    """
    _log_to(logging.StreamHandler())
    enable_stack_dumps()

    def tell(status: Mapping[str, object]) -> None:
        ready(status)
        notify_systemd("READY=1")

    body(tell)


def enable_stack_dumps() -> None:
    """Write all threads' stacks to standard error on SIGUSR1 and on a crash in C code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _describe(wait_status: int) -> str:
    code = os.waitstatus_to_exitcode(wait_status)
    return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _become_daemon(body: Body, writing: int, log_path: Path) -> NoReturn:
    """Run as the child; never return into the parent's code, whatever happens."""
    status = 1
    try:
        os.setsid()
        _close_inherited(writing)
        _detach_output(log_path)
        # The daemon must not keep the caller's directory busy. The caller made its paths absolute.
        os.chdir("/")
        enable_stack_dumps()
        status = _run(body, writing)
    except BaseException:
        log.critical("the daemon failed", exc_info=True)
    finally:
        logging.shutdown()
        os._exit(status)


def _close_inherited(writing: int) -> None:
    """Close all descriptors except the standard streams and *writing*.

    The caller's locks and pipes would be held as long as the daemon runs: `flock` of a script, the
    end of a pipe that its reader waits for.
    """
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != writing:
            with contextlib.suppress(OSError):  # that of the listing is closed by now
                os.close(number)


def _run(body: Body, writing: int) -> int:
    reported = False

    def report(message: Mapping[str, object]) -> None:
        nonlocal reported
        if reported:
            return
        reported = True
        try:
            os.write(writing, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            log.warning("the process that started this daemon did not wait for it")
        os.close(writing)

    def ready(message: Mapping[str, object]) -> None:
        report({"ready": message})

    try:
        body(ready)
    except Exception as caught:
        error = caught if isinstance(caught, RaidxError) else shortage(caught)
        if error is None or (reported and error is not caught):
            raise
        log.error("%s", error)
        report({"error": error.as_dict()})
        return error.exit_status
    return 0


class _DaemonLog(RotatingFileHandler):
    """A log of bounded size that standard output and standard error also go to.

    Therefore the output of C code (libfuse, faulthandler) is in the same file.
    """

    def follow(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        assert self.stream is not None  # opened by the constructor and by doRollover
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)

    def doRollover(self) -> None:
        super().doRollover()
        self.follow()


def _detach_output(log_path: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    handler = _DaemonLog(log_path, maxBytes=_LOG_BYTES_MAX, backupCount=1)
    handler.follow()
    _log_to(handler)


def _log_to(handler: logging.Handler) -> None:
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
