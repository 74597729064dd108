"""Growth beside the real md: the guest's output is parsed exactly; where it can run, both grow."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "figures"
MIB = 1 << 20
COUNTERS = "{} 5 0 {} 2 3 1 {} 9 0 2 11 0 0 0 0 0 0\n"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # it adds to it
    return importlib.import_module("md_growth")


def run(*words: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run it as users do, with *path* for the programs it looks for."""
    environment = {**os.environ, "PYTHONPATH": str(BENCH.parents[1])}
    if path is not None:
        environment["PATH"] = path
    line = [sys.executable, str(BENCH / "md_growth.py"), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=100)


def results(folder: Path, **files: str) -> Path:
    """Write what a guest would leave of a growth from one member to two; return *folder*."""
    written = {
        "before": COUNTERS.format("ubda", 8, 16) + COUNTERS.format("ubdb", 0, 2),
        "after": COUNTERS.format("ubda", 2056, 24) + COUNTERS.format("ubdb", 0, 1026),
        "numbers": "size_before=1048576\nseconds=7.25 9.00\nsize_after=2097152\ndone=1\n",
        **files,
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    return folder


def test_bytes_are_the_difference_of_the_kernels_counters(program: Any, tmp_path: Path) -> None:
    growth = program.parse_growth(results(tmp_path), 2)
    assert growth.members == [(MIB, 4096), (0, MIB // 2)]
    assert (growth.seconds, growth.old_bytes, growth.size_bytes) == (1.75, MIB, 2 * MIB)
    assert growth.per_byte == 1.5 + 1 / 256


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"error": "mdadm --grow: no\n"}, "mdadm --grow: no"),
        ({"numbers": "size_before=1048576\nseconds=7.25 9.00\n"}, "ended early"),
        ({"numbers": "size_before=1048576\nseconds=7.25\ndone=1\n"}, "ended early"),
        ({"numbers": "half a li"}, "ended early"),
        ({"after": "ubda 1 2 3\nubdb 1 2 3\n"}, "not the counters of a disk: 'ubda 1 2 3'"),
        ({"after": COUNTERS.format("ubda", "x", 24)}, "not the counters of a disk"),
        ({"after": "\n"}, "not the counters of a disk"),
        ({"after": COUNTERS.format("ubda", 2056, 24)}, "counters of 2 and 1 members, not 2"),
    ],
)
def test_what_is_not_whole_is_no_result(
    program: Any, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    with pytest.raises(program.PeerError, match=said):
        program.parse_growth(results(tmp_path, **files), 2)
    (tmp_path / "none").mkdir()
    with pytest.raises(program.PeerError, match="ended early"):
        program.parse_growth(tmp_path / "none", 2)


def test_it_says_in_one_line_what_to_install(monkeypatch: pytest.MonkeyPatch, program: Any) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert program.missing().endswith("type: apt-get install user-mode-linux mdadm kmod")
    done = run(path="/nonexistent")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "cannot run" in line
    assert "apt-get install user-mode-linux" in line


PANIC = """echo 'Linux version 6.1 (um)'
echo '[    0.10] Kernel panic - not syncing: get_fp_registers failed, errno = 5'
echo 'Call Trace:'
echo ' [<60046010>] ? um_set_signals+0x36/0x3e'
"""


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (PANIC + "kill -ABRT $$", 2, "Kernel panic - not syncing: get_fp_registers failed"),
        (
            "printf '\\033[2Jno such flag\\n'; exit 1",
            2,
            "ended with status 1 (its last words: ?[2Jno",
        ),
        ("exit 127", 2, "ended with status 127 (its last words: none)"),
        ("echo ok", 1, "ended early"),  # it lives, and did not do what it was to do
        (
            'for w; do case $w in MD_OUT=*) echo no md >"${w#*=}/error";; esac; done; exit 3',
            1,
            "no md",
        ),
    ],
)
def test_a_guest_that_cannot_live_here_is_told_from_one_that_failed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: Any,
    capsys: pytest.CaptureFixture[str],
    script: str,
    status: int,
    said: str,
) -> None:
    programs, members = tmp_path / "bin", tmp_path / "members"
    programs.mkdir()
    members.mkdir()
    for name in ("linux.uml", "mdadm", "modprobe"):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(program, "MODULES", programs)
    monkeypatch.setattr(sys, "argv", ["md_growth", "--size", "32", "--directory", str(members)])
    monkeypatch.setattr(program.logging, "disable", lambda: None)
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    assert program.main() == status
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert said in line
    assert printed.out == ""
    assert list(members.iterdir()) == []


def test_arrays_that_cannot_be_are_refused() -> None:
    done = run("--added", "13")
    assert done.returncode == 2
    assert "to 16 at the most" in done.stderr


@pytest.mark.parametrize(
    ("layout", "width", "added", "least", "of_md"),
    [("raid5", 4, 1, 0.533, 3.0), ("rdp", 6, 2, 0.75, 3.5)],
)
def test_codes_with_moving_parity_grow_by_the_least_beside_md(
    program: Any, tmp_path: Path, layout: str, width: int, added: int, least: float, of_md: float
) -> None:
    if (reason := program.missing()) is not None:
        pytest.skip(reason)
    shape = ("--layout", layout, "--width", str(width), "--added", str(added), "--ways", "live")
    done = run(*shape, "--size", "48", "--directory", tmp_path, "--timeout", "60", "--json")
    if done.returncode == 2:
        (line,) = done.stderr.splitlines()
        pytest.skip(line)
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    rows = {row[0]: row[1:] for row in table["rows"]}
    md, ours = rows["bytes for each byte of old data"][::2]
    assert md == pytest.approx(of_md, abs=0.05)
    assert least <= ours < 1.12 * least  # with maps and superblocks


def test_both_grow_and_nothing_stays(program: Any, tmp_path: Path) -> None:
    reason = program.missing()
    if reason is not None:
        pytest.skip(reason)
    ways = ("--ways", ",".join(program.WAYS))
    done = run("--size", "32", "--directory", tmp_path, "--timeout", "60", "--json", *ways)
    if done.returncode == 2:
        (line,) = done.stderr.splitlines()
        pytest.skip(line)
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    rows = {row[0]: row[1:] for row in table["rows"]}
    md, live, piggyback, surrogate, restripe = rows["bytes for each byte of old data"][::2]
    assert md == pytest.approx(3.0, abs=0.05)
    # Our maps and superblocks weigh more on members so small.
    assert 0.5 <= live < 0.6
    assert 1.0 <= min(piggyback, surrogate) <= max(piggyback, surrogate) < 2.0
    assert restripe > 2.0
    for size, old in zip(rows["size afterwards, MiB"], rows["old data, MiB"], strict=True):
        assert size == old or size == pytest.approx(old * 4 / 3)
    read, written = rows["4 (new)"][:2]
    assert read < 0.1
    assert written > 28
    # A guest that takes too long is ended, and all of it.
    done = run("--size", "32", "--directory", tmp_path, "--timeout", "0.3")
    assert done.returncode == 1
    assert "the guest has not ended within 0.3 s" in done.stderr
    assert list(tmp_path.iterdir()) == []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(tmp_path).encode() not in process.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
