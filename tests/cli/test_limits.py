"""Limits of the shell and names of another encoding: one clear line, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raidx_fuse.errors import shortage
from raidx_fuse.fuse import mountpoint
from tests.support.command import RAIDX


def run(folder: Path, limit: str, *words: str | bytes) -> tuple[int, list[str]]:
    """Run `raidx` in *folder* under *limit*; return its exit status and what it complains of."""
    line = ["bash", "-c", f'{limit}; exec "$0" "$@"', RAIDX, *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stderr.decode().splitlines()


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an array of a, b, c, and a mount point."""
    folder = tmp_path_factory.mktemp("disks")
    (folder / "mnt").mkdir()
    line = ("create", "--layout", "raid5", "--size", "4MiB", "a", "b", "c")
    status, said = run(folder, "true", *line)
    assert (status, said) == (0, [])
    return folder


@pytest.mark.parametrize(
    ("limit", "command", "said"),
    [
        ("ulimit -n 6", "check a b c", "too many open files; allow more: ulimit -n"),
        ("ulimit -n 5", "status a b c", "Too many open files"),
        ("ulimit -n 8", "create --layout raid5 --size 4MiB x y z", "Too many open files"),
        pytest.param(
            *("ulimit -n 8", "mount a b c mnt", "too many open files; allow more: ulimit -n"),
            marks=pytest.mark.mount,
        ),
        ("ulimit -f 1000", "create --layout raid5 --size 4MiB x y z", "(`ulimit -f unlimited`)"),
        pytest.param(
            *("ulimit -f 1000", "mount a b c mnt", "only 1024000 bytes of a file may be written"),
            marks=pytest.mark.mount,
        ),
        ("ulimit -v 300000", "serve a b c --nbd unix:s", "a daemon may need 1 GiB"),
        ("ulimit -v 60000", "check a b c", "not enough memory; free some, or allow more"),
    ],
)
def test_a_limit_that_is_too_tight_is_a_line(
    disks: Path, limit: str, command: str, said: str
) -> None:
    status, lines = run(disks, limit, *command.split())
    assert status in (1, 2)
    assert len(lines) == 1, lines
    assert lines[0].startswith("raidx: ")
    assert said in lines[0]
    assert sorted(os.listdir(disks)) == ["a", "b", "c", "mnt"]
    assert mountpoint.find(disks / "mnt") is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(24, "x"), "too many open files"),
        (BaseExceptionGroup("g", [OSError(23, "x")]), "too many open files"),
        (MemoryError(), "not enough memory"),
        (OSError(12, "x"), "not enough memory"),
        (RuntimeError("can't start new thread"), "not enough memory"),
        (ImportError("a.so: failed to map segment from shared object"), "not enough memory"),
        (OSError(5, "x"), None),
        (RuntimeError("a bug"), None),
    ],
)
def test_what_is_a_shortage(error: BaseException, said: str | None) -> None:
    found = shortage(error)
    assert (found is None) == (said is None)
    assert said is None or said in str(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("create --layout raid5 --size 4MiB NAME y z", "must be UTF-8"),
        ("create --layout raid5 x,size=9999999999TiB y z", "more bytes than a file or device"),
        ("create --layout raid5 --size 9999999999TiB x y z", "more bytes than a file or device"),
        ("status NAME", "must be UTF-8"),
        ("examine NAME", "must be UTF-8"),
        ("get NAME", r"odd\xff"),
        ("mount a b c NAME", r"odd\xff does not exist"),
        ("NAME", "no command"),
    ],
)
def test_a_name_that_is_no_utf_8_and_a_size_that_nothing_has_are_a_line(
    disks: Path, words: str, said: str
) -> None:
    line = [b"odd\xff" if word == "NAME" else word for word in words.split()]
    status, lines = run(disks, "true", *line)
    assert status in (1, 2)
    assert len(lines) == 1, lines
    assert lines[0].startswith("raidx: ")
    assert said in lines[0]
    assert sorted(os.listdir(disks)) == ["a", "b", "c", "mnt"]


def test_no_memory_for_the_first_libraries_is_a_line() -> None:
    program = (
        "import sys\n"
        "class Full:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click': raise MemoryError\n"
        "sys.meta_path.insert(0, Full())\n"
        "import raidx_fuse.cli.main\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    said = "raidx: not enough memory or files to begin; allow more: ulimit -v, ulimit -n"
    assert done.stderr.decode().splitlines() == [said]


def test_members_that_promise_more_than_their_host_has_are_a_warning(tmp_path: Path) -> None:
    host = os.statvfs(tmp_path)
    size = f"{(host.f_bfree * host.f_frsize >> 20) + 64}MiB"
    words = ["--layout", "raid5", "--size", size, "a", "b", "c"]
    status, said = run(tmp_path, "true", "create", *words)
    assert status == 0
    assert len(said) == 1
    assert said[0].startswith("raidx: warning: the file system of ")
    assert "writes will fail when it is full" in said[0]
