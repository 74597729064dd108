"""Arrays of today given back to an earlier commit: it mounts or refuses by name, and loses nothing.

The commit is checked out of the history beside this tree, as far as the history is there, and run
with the packages that shelf/COMMIT.txt records: with those of this interpreter, if they are the
same, else with ones that pip installs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.format import create
from raidx_fuse.format.configuration.features import FEATURES
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import END_MEMBER_BYTES_MIN
from raidx_fuse.journal.announce import announce, retract
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.pool.pool import Pool
from tests.format.shelf import shelf
from tests.support.arrays import jobs_ended

ROOT = Path(__file__).parents[2]
PROGRAM = Path(shelf.__file__)
ANNOUNCED = "has no parameter"  # what it says of an array whose features it does not know


@pytest.fixture(scope="module")
def old_tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree of the earlier commit."""
    commit = request.config.getoption("--old-commit")
    git = ("git", "-C", str(ROOT))
    if subprocess.run(
        [*git, "cat-file", "-e", f"{commit}^{{tree}}"], capture_output=True
    ).returncode:
        pytest.skip(f"the history with commit {commit} is not here (git fetch --unshallow)")
    packed = subprocess.run([*git, "archive", commit], capture_output=True, check=True).stdout
    tree = tmp_path_factory.mktemp("old")
    subprocess.run(["tar", "-x", "-C", str(tree)], input=packed, check=True)
    return tree


@pytest.fixture(scope="module")
def old_python(old_tree: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment in which Python runs the earlier commit."""
    commit = request.config.getoption("--old-commit")
    recorded = PROGRAM.with_name(f"{commit}.txt")
    paths = [str(old_tree)]
    if recorded.exists() and not _are_here(recorded):
        packages = old_tree / "packages"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        words = [*pip, "--target", str(packages), "-r", str(recorded)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"its packages cannot be installed here: {done.stderr.strip()[-200:]}")
        paths.append(str(packages))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", "import raidx_fuse; print(raidx_fuse.__file__)"]
    done = subprocess.run(words, env=environment, cwd=old_tree, capture_output=True, text=True)
    assert done.stdout.startswith(str(old_tree)), (done.stdout, done.stderr)
    return environment


def _are_here(recorded: Path) -> bool:
    try:
        return all(
            version(name) == wanted
            for name, _, wanted in (line.partition("==") for line in recorded.read_text().split())
        )
    except PackageNotFoundError:
        return False


def played(path: Path, environment: dict[str, str], folder: Path) -> dict[str, tuple[str, str]]:
    """Return what comes of the arrays of the shelf *path*, by name: the outcome, and why."""
    words = [sys.executable, str(PROGRAM), "play", str(path)]
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (outcome, why) for name, outcome, why in rows}


def test_arrays_of_today_mount_there_or_are_refused_by_name(
    old_tree: Path, old_python: dict[str, str], tmp_path: Path
) -> None:
    """Idle, clean, and cut in the middle of every job."""
    new = tmp_path / "new.shelf"
    shelf.make_shelf(new)
    found = played(new, old_python, old_tree)
    assert set(found) == {entry["name"] for entry in shelf.read_shelf(new)[0]}
    wrong = {
        name: (outcome, why)
        for name, (outcome, why) in found.items()
        if not (outcome == "ok" or (outcome == "refused" and ANNOUNCED in why))
    }
    assert not wrong
    assert len(found) > 90


TRIED = "a feature to be tried"
CASES = (  # one of each way in which an array begins to be read there
    ("raid5", "partial", "log"),
    ("raid5", "none", "restripe"),
    ("rdp", "full", "growth"),
    ("raid1", "partial", "absent"),
    ("raidx-parity", "partial", "clean"),
    ("raid4", "partial", "rebuild"),
    ("xcode", "full", "move"),
)


@pytest.mark.parametrize("retracted", [False, True])
def test_what_is_announced_is_refused_there_and_mounts_again_when_it_is_retracted(
    old_tree: Path,
    old_python: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    retracted: bool,
) -> None:
    """Nothing is written by a start that is refused."""
    monkeypatch.setitem(FEATURES, TRIED, "nothing")

    def with_feature(state: Callable[[shelf.Case], Awaitable[None]]) -> object:
        async def reach(case: shelf.Case) -> None:
            assert case.pool is not None
            for volumes in case.pool.arrays:
                await announce(volumes.array.member_set, TRIED)
            await state(case)
            await case.write(2)
            if retracted:
                for volumes in case.pool.arrays:
                    array = volumes.array
                    await retract(array.context.journal, array.member_set, TRIED)

        return reach

    cases = [shelf.Case(*case, seed) for seed, case in enumerate(CASES)]
    for case in cases:
        monkeypatch.setitem(shelf.STATES, case.state, with_feature(shelf.STATES[case.state]))
    with shelf.small_windows():
        made = [one for case in cases for one in shelf.made(case)]
    path = tmp_path / "new.shelf"
    path.write_bytes(shelf.pack(made, {}))
    found = played(path, old_python, old_tree)
    assert set(found) == {name for name, _, _ in made}
    for name, (outcome, why) in found.items():
        if retracted:
            assert outcome == "ok", (name, why)
        else:
            assert (outcome, f"{ANNOUNCED} 'needs'" in why) == ("refused", True), (name, why)


WITH_SUMS = (
    *(("raid5", "partial", "log"), ("raid1", "none", "clean"), ("rdp", "full", "rebuild")),
    *(("raid0", "partial", "log"), ("raid4", "none", "absent")),
)
WITHOUT_SUMS = (
    ("raid5", "partial", "growth"),
    ("raid1", "full", "grown"),
    ("rdp", "none", "restripe"),
    ("raid4", "partial", "log"),
)


def test_arrays_with_checksums_are_refused_there(
    old_tree: Path, old_python: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "create_array", partial(create_array, sums=True))
    with shelf.small_windows():
        made = [
            one
            for seed, case in enumerate(WITH_SUMS)
            for one in shelf.made(shelf.Case(*case, seed))
        ]
    for name, (outcome, why) in _played(made, tmp_path, old_tree, old_python).items():
        assert (outcome, f"{ANNOUNCED} 'needs'" in why) == ("refused", True), (name, why)


@pytest.mark.parametrize("had", [False, True])
def test_arrays_with_room_for_checksums_mount_there(
    old_tree: Path,
    old_python: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    had: bool,
) -> None:
    """Those that never had any, and those that are switched off, cut in the middle of jobs, too."""
    monkeypatch.setattr(create, "has_room_for_sums", lambda _sizes: True)

    def switched_off(state: Callable[[shelf.Case], Awaitable[None]]) -> object:
        async def reach(case: shelf.Case) -> None:
            await case.array.set("sums", "on")
            await jobs_ended(case.array)
            await case.write(3)
            await case.array.set("sums", "off")
            await state(case)
            assert case.array.member_set.config.needs == ()

        return reach

    for state in {state for _, _, state in WITHOUT_SUMS} if had else ():
        monkeypatch.setitem(shelf.STATES, state, switched_off(shelf.STATES[state]))
    cases = [shelf.Case(*case, seed) for seed, case in enumerate(WITHOUT_SUMS)]
    with shelf.small_windows():
        made = [one for case in cases for one in shelf.made(case)]
    found = _played(made, tmp_path, old_tree, old_python)
    assert {name: why for name, why in found.items() if why != ("ok", "")} == {}


def _played(
    made: Sequence[tuple[str, shelf.Case, dict[str, Any]]],
    folder: Path,
    old_tree: Path,
    environment: dict[str, str],
) -> dict[str, tuple[str, str]]:
    path = folder / "new.shelf"
    path.write_bytes(shelf.pack(made, {}))
    found = played(path, environment, old_tree)
    assert set(found) == {name for name, _, _ in made}
    return found


LARGER = (
    *(("raid0", "partial"), ("raid1", "full"), ("raid4", "none"), ("raid5", "partial")),
    *(("rdp", "none"), ("evenodd", "partial"), ("xcode", "full"), ("pcode", "none")),
    *(("upc", "partial"), ("raidx-copy", "full"), ("raidx-parity", "partial")),
)


def test_arrays_of_members_that_were_replaced_by_larger_ones_mount_there(
    old_tree: Path, old_python: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the larger members have, in use; and cut while the array takes it."""

    async def take(case: shelf.Case) -> None:
        if case.array.larger_members.unused_bytes():  # those of raidx layouts are used at once
            await case.array.larger_members.use()

    async def larger(case: shelf.Case) -> None:
        await case.array.set("speed_max", "0")
        width, before = len(case.members["one"]), case.array.size_bytes
        for role in range(width):
            await case.array.replace_disk(role, case.member("one", 2 * shelf.MEMBER_BYTES))
            await jobs_ended(case.array)
        del case.members["one"][:width]
        if case.record is None:
            assert case.pool is not None
            (volumes,) = case.pool.arrays
            await take(case)
            assert case.array.size_bytes > 3 * before / 2
            await volumes.note_size()
            if free := volumes.free_bytes():
                await volumes.create("c", free)
            await case.write(12)

    ended = shelf._end_jobs
    monkeypatch.setitem(shelf.STATES, "larger", larger)
    monkeypatch.setattr(shelf, "CUTS", 4)
    found = []
    for seed, (layout, mode) in enumerate(LARGER):
        case = shelf.Case(layout, mode, "larger", seed)

        async def end_jobs(pool: Pool) -> None:
            await pool.array("one").array.larger_members.use()
            await ended(pool)

        if not layout.startswith("raidx"):
            monkeypatch.setattr(shelf, "_end_jobs", end_jobs)
        found += shelf.made(case)
        monkeypatch.setattr(shelf, "_end_jobs", ended)
    path = tmp_path / "new.shelf"
    path.write_bytes(shelf.pack(found, {}))
    outcomes = played(path, old_python, old_tree)
    assert set(outcomes) == {name for name, _, _ in found}
    assert {name: why for name, why in outcomes.items() if why != ("ok", "")} == {}


def test_arrays_with_a_member_smaller_than_the_one_that_it_replaced_mount_there(
    old_tree: Path, old_python: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def smaller(case: shelf.Case) -> None:
        array = case.array
        await array.set("speed_max", "0")
        assert array.rebundle is not None
        before = array.rebundle.layout.counts[2]
        await array.add_spare(case.member("one", array.rebundle.needed_bytes(Role(2))))
        await array.fail_disk(2)
        await trio.sleep(1)
        await jobs_ended(array)
        assert not array.member_set.lost
        assert array.rebundle.layout.counts[2] < before
        del case.members["one"][2]

    few = {"raidx-copy": 120, "raidx-parity": 90}
    monkeypatch.setattr(shelf.Case, "params", lambda _case, layout: {"bundles": few[layout]})
    monkeypatch.setitem(shelf.STATES, "smaller", smaller)
    found = []
    for seed, layout in enumerate(few):
        found += shelf.made(shelf.Case(layout, "partial", "smaller", seed))
    path = tmp_path / "new.shelf"
    path.write_bytes(shelf.pack(found, {}))
    outcomes = played(path, old_python, old_tree)
    assert set(outcomes) == {name for name, _, _ in found}
    assert {name: why for name, why in outcomes.items() if why != ("ok", "")} == {}


def test_arrays_with_superblocks_at_both_ends_are_refused_there_by_name(
    old_tree: Path, old_python: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From members of 64 MiB on: it would change the fronts alone."""
    monkeypatch.setattr(shelf, "MEMBER_BYTES", END_MEMBER_BYTES_MIN)
    made = [
        one
        for layout in ("raid1", "raidx-copy")
        for one in shelf.made(shelf.Case(layout, "partial", "clean", 0))
    ]
    path = tmp_path / "new.shelf"
    path.write_bytes(shelf.pack(made, {}))
    outcomes = played(path, old_python, old_tree)
    assert len(outcomes) == len(made) >= 2
    for name, (outcome, why) in outcomes.items():
        assert (outcome, f"{ANNOUNCED} 'needs'" in why) == ("refused", True), (name, why)
