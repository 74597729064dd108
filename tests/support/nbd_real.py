"""Real NBD servers for tests: nbdkit, qemu-nbd, nbd-server; skipped where they are missing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVERS = ("nbdkit", "nbdkit-memory", "qemu-nbd", "qemu-nbd-qcow2", "nbd-server")
START_S = 10.0


def server_command(kind: str, folder: Path, size_bytes: int) -> tuple[list[str], str]:
    """Return the command line of a server in the foreground, and the URI of its export.

    Skips the test if the server is not installed.
    """
    program = kind.removesuffix("-memory").removesuffix("-qcow2")
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    place, disk = folder / f"{kind}.sock", folder / f"{kind}.img"
    uri = f"nbd+unix:///disk?socket={place}"
    # With several threads, nbdkit 1.32 aborts now and then when a client goes while one of them
    # replies ("raw_send_socket: Assertion `sock >= 0' failed").
    nbdkit = [program, "-f", "--threads=1", "-U", str(place)]
    if kind == "nbdkit-memory":
        return [*nbdkit, "memory", str(size_bytes)], uri
    if kind == "qemu-nbd-qcow2":
        if not disk.exists():
            make = ["qemu-img", "create", "-q", "-f", "qcow2", str(disk), str(size_bytes)]
            subprocess.run(make, check=True)
    elif not disk.exists():
        disk.touch()
        with disk.open("r+b") as file:
            file.truncate(size_bytes)
    if kind == "nbdkit":
        return [*nbdkit, "file", str(disk)], uri
    if kind == "nbd-server":  # it goes into the background: `running` ends it by its number
        config = folder / "nbd-server.conf"
        disk.chmod(0o666)
        config.write_text(
            f"[generic]\nunixsock = {place}\n"
            f"[disk]\nexportname = {disk}\nflush = true\nfua = true\n"
        )
        return [program, "-C", str(config), "-p", str(place.with_suffix(".pid"))], uri
    form = "qcow2" if kind.endswith("qcow2") else "raw"
    fixed = ["-t", "-e", "8", "-x", "disk", "-f", form, "--discard=unmap"]
    return [program, *fixed, "-k", str(place), str(disk)], uri


def _listens(path: Path) -> bool:
    """Return whether a server accepts connections; its socket exists a moment before that."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


@contextmanager
def running(command: Sequence[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block; returns when it accepts connections at *place*."""
    place.unlink(missing_ok=True)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    number = place.with_suffix(".pid")
    try:
        deadline = time.monotonic() + START_S
        while not _listens(place):
            if process.poll() or time.monotonic() > deadline:
                assert process.stderr is not None
                process.kill()
                pytest.skip(f"{command[0]} does not start: {process.stderr.read()[-300:]!r}")
            time.sleep(0.005)
        yield process
    finally:
        process.kill()
        process.wait()
        if number.exists():
            os.kill(int(number.read_text()), signal.SIGKILL)
        assert process.stderr is not None
        process.stderr.close()
        place.unlink(missing_ok=True)


@contextmanager
def real_server(kind: str, folder: Path, size_bytes: int) -> Iterator[str]:
    """Run a server of *kind* on a file in *folder*; gives the URI of its export."""
    command, uri = server_command(kind, folder, size_bytes)
    with running(command, folder / f"{kind}.sock"):
        yield uri
