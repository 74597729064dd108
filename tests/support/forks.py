"""`raidx` in a process of its own that need not load its modules: forked off one that has them.

To start Python and to load a command take most of the processor time of a command, and tests of
mounts start hundreds. A fork differs in nothing else: it has its own standard streams, folder,
environment and end. That the installed command starts is tested by the README's transcript and the
examples (tests/docs), and by tests/cli/test_start_up.py.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import raidx_fuse.daemon
import raidx_fuse.fuse
import raidx_fuse.nbd
from raidx_fuse.cli.main import main

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 200_000
NUMBER_BYTES = 8
START_S = 60.0  # until the modules are loaded
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


class Done(NamedTuple):
    """How a command ended."""

    status: int
    stdout: str
    stderr: str


def forked(words: Sequence[str], folder: Path, limit_s: float, program: str = "") -> Done:
    """Run `raidx`, or the Python file *program*, with *words* in *folder*.

    Raises TimeoutExpired if it has not ended after *limit_s*; it is killed then.
    """
    environment = {**os.environ, "PATH": PATH}
    request = {"words": words, "folder": str(folder), "environment": environment}
    request["program"] = program
    end_s = time.monotonic() + limit_s
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        answer, answering = os.pipe()
        try:
            files = [out.fileno(), err.fileno(), answering]
            socket.send_fds(_loaded()[0], [json.dumps(request).encode()], files)
            os.close(answering)
            pid = _number(answer, end_s + START_S)
            try:
                status = _number(answer, end_s)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, limit_s) from None
        finally:
            os.close(answer)
        printed = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in (out, err)]
    return Done(status, *printed)


def _number(pipe: int, end_s: float) -> int:
    """Return the next number from *pipe*. Raises TimeoutError if it does not come until *end_s*."""
    if not select.select([pipe], [], [], max(0.0, end_s - time.monotonic()))[0]:
        raise TimeoutError
    number = os.read(pipe, NUMBER_BYTES)
    assert number, "the process that was forked for it has ended"
    return int.from_bytes(number, "little", signed=True)


@functools.cache
def _loaded() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that has the modules, which ends with this one; return the way to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        words = [sys.executable, "-m", "tests.support.forks", str(theirs.fileno()), "raidx"]
        return ours, subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()])


# -- the process that has the modules ------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Run each request in a process; return when nobody is left to ask."""
    for package in (raidx_fuse.daemon, raidx_fuse.fuse, raidx_fuse.nbd):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in main.commands:
        _ = main.commands[name]
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        content, files, *_ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not content:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(requests, json.loads(content), *files)
        for file in files:
            os.close(file)


def _run(requests: socket.socket, request: dict[str, Any], out: int, err: int, told: int) -> None:
    """Run *request* in one more process, and tell its number and its exit status."""
    pid = os.fork()
    if pid == 0:
        with open(os.devnull) as nothing:
            for number, stream in enumerate((nothing.fileno(), out, err)):
                os.dup2(stream, number)
        for number in (requests.fileno(), out, err, told):
            os.close(number)
        _become(request)
    _tell(told, pid)
    _tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _tell(pipe: int, number: int) -> None:
    os.write(pipe, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def _become(request: dict[str, Any]) -> NoReturn:
    """Do what the installed command does, or Python with a file."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program = request["program"] and os.path.abspath(request["program"])  # as Python makes it
    sys.argv[:] = [program or "raidx", *request["words"]]
    status = 1
    try:
        if program:
            sys.path[0] = os.path.dirname(program)
            runpy.run_path(program, run_name="__main__")
        else:
            main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
