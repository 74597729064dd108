"""Every command where its output cannot be written or its folder is gone: a line, no traceback.

All commands run in children of one process for each surrounding: forks of an imported program take
milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from raidx_fuse.cli.command_table import TABLE
from tests.support.command import RAIDX, checked

LINES = (  # of each command at least one; those of arrays that are not there print an error
    *("--help", "--version", "layout --help", "bogus", "status --bogus", ""),
    *("create --layout raid5 --size 4MiB x y z", "create --layout raid5 --json a b c -n"),
    *("rename new {a} {b} {c}", "rename b a", "wipe {a} -n", "wipe a", "destroy a b c"),
    *("destroy m", "status m", "status a b c --check", "wait m --state clean", "stats m"),
    *("mount {a} {b} {c} gone", "mount --name none m", "mount a b m", "serve a --nbd unix:s"),
    *("umount m", "umount --if-exists m --json", "status", "status --json", "status {a} {b} {c}"),
    *(
        "stats --prometheus m",
        "events",
        "events --json",
        "events m",
        "scan {here}",
        "scan . --json",
        "examine {a}",
    ),
    *("examine a --json", "check {a} {b} {c}", "check a b c --json", "explain m 0", "peek m 0"),
    *("damage m", "check a b c --deep"),
    *("save-metadata {a} {b} {c} f", "save-metadata m f", "restore-metadata f {a} {b} {c}"),
    *("watch m", "view m", "replay financial1 m", "add-disk m d", "reshape m raid5", "get m"),
    *("remove-disk m a", "fail-disk m a", "replace-disk m a d", "scrub m", "tune m", "advise m"),
    *("online m a", "clear m", "array list"),
    *("job m", "set m a=b", "inject m a eio", "crash m", "lab m", "lab --help", "resize m max"),
    *("trim m 0 4096", "volume list m", "volume --help", "array --help", "array list m"),
    *("balance m", "simulate e.toml", "simulate {here}/none", "layout list", "layout list --json"),
    *("layout show raid5 --disks 5", "layout chains rdp --disks 6", "layout recover rdp --disks 6"),
    *("quiz", "quiz --json", "schema", "schema status", "completions bash", "reshape --help"),
)
PROGRAM = """
import gc, json, os, sys, traceback
import raidx_fuse.daemon.create, raidx_fuse.daemon.serve, raidx_fuse.lab.experiments.spec
from raidx_fuse.cli.main import main
[main.commands[name] for name in main.commands]
gc.freeze()  # a child that collects garbage would copy all modules
lines, report, gone = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if gone:
    os.mkdir(gone)
    os.chdir(gone)
    os.rmdir(gone)
for words in lines:
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        found = {"words": words, "status": os.waitstatus_to_exitcode(status)}
        os.write(report, json.dumps(found).encode() + b"\\n")
        continue
    def note(*error):
        text = "".join(traceback.format_exception(*error))
        os.write(report, json.dumps({"words": words, "traceback": text}).encode() + b"\\n")
    sys.excepthook = note
    sys.argv[:] = ["raidx", *words]
    main()
    break
"""
CLOSED, FULL = ">&-", ">/dev/full"


def run(folder: Path, streams: str, *, gone: bool = False) -> dict[str, int]:
    """Run all LINES with *streams* of the shell, in a removed folder if *gone*.

    Returns the exit status by line. Fails for a traceback.
    """
    places = {name: folder / name for name in "abc"} | {"here": folder}
    lines = [shlex.split(line.format(**places)) for line in LINES]
    reading, writing = os.pipe()
    place = str(folder / "removed") if gone else ""
    words = [sys.executable, "-c", PROGRAM, json.dumps(lines), str(writing), place]
    shell = f'exec "$@" 0</dev/null {streams}'
    with (folder / "said").open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *words],
            cwd=folder,
            pass_fds=[writing],
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
        )
    os.close(writing)
    with os.fdopen(reading) as report:
        found = [json.loads(line) for line in report]
    assert process.wait() == 0
    said = (folder / "said").read_text()
    assert not [each for each in found if "traceback" in each]
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    statuses = {LINES[lines.index(each["words"])]: each["status"] for each in found}
    assert len(statuses) == len(LINES)
    assert set(statuses.values()) <= {0, 1, 2, 3, 4}, statuses
    return statuses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an array of a, b and c."""
    checked(tmp_path, "create --layout raid5 --size 4MiB a b c")
    return tmp_path


def test_the_lines_name_every_command() -> None:
    assert set(TABLE) <= {line.split()[0] for line in LINES if line}


@pytest.mark.parametrize("streams", [f"{CLOSED} 2>&-", FULL, f"{FULL} 2>&1"])
def test_what_cannot_be_printed_is_no_traceback(folder: Path, streams: str) -> None:
    statuses = run(folder, streams)
    undelivered = 1 if FULL in streams else 0
    for line in ("--help", "layout list", "layout list --json", "completions bash"):
        assert statuses[line] == undelivered, line
    assert statuses["status --bogus"] == 2


def test_a_removed_working_folder_is_no_traceback(folder: Path) -> None:
    statuses = run(folder, "", gone=True)
    assert statuses["status {a} {b} {c}"] == 0  # absolute paths need no working folder
    assert statuses["check {a} {b} {c}"] == 0
    assert statuses["status a b c --check"] != 0
    assert statuses["create --layout raid5 --size 4MiB x y z"] == 1


@pytest.mark.parametrize("streams", ["", CLOSED, "<&- >&- 2>&-"])
def test_a_daemon_holds_nothing_of_its_caller(folder: Path, streams: str) -> None:
    """The caller's lock is free again, and its pipes are at their end, while the daemon runs."""
    lock = folder / "lock"
    line = f'exec 9>{lock}; flock 9; "$0" serve a b c --nbd unix:{folder}/s {streams}'
    subprocess.run(["bash", "-c", line, RAIDX], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = [RAIDX, "status", str(folder / "s"), "--json"]
        done = subprocess.run(status, check=True, capture_output=True)
        open_files = Path(f"/proc/{json.loads(done.stdout)['pid']}/fd")
        numbers = {os.readlink(file): int(file.name) for file in open_files.iterdir()}
        for name in "abc":
            assert numbers[str(folder / name)] > 2, "a member in the place of a standard stream"
    finally:
        subprocess.run([RAIDX, "umount", str(folder / "s")], check=True, capture_output=True)
