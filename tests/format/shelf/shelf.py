"""A shelf: arrays that the code of one commit has made, for the code of another one to mount.

    git worktree add --detach /tmp/old COMMIT
    cd /tmp/old
    PYTHONPATH=. python .../tests/format/shelf/shelf.py make .../tests/format/shelf/COMMIT.shelf
    PYTHONPATH=. python .../tests/format/shelf/shelf.py play FILE

*make* stops arrays where a kill would stop them, perhaps in the middle of a job, and where a power
cut would while the job ends, and keeps their members with the hash of every volume as the code that
made it read it. *play* mounts what is
on a shelf, finishes its jobs, and compares: a line of JSON for each array says "ok", "refused" with
the reason, or "wrong". Both use only what both sides have, so that either runs on either commit.

Every pair of layout and state is there, as far as the commit can make it, and with them every pair
of layout and journal mode and of state and mode.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import lzma
import random
import sys
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import RaidxError, UsageError, single
from raidx_fuse.format.create import create_array
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.powercut import CutRecord, PowerCutMember
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.pool.move import open_pool, start_move
from raidx_fuse.pool.pool import Pool

# This program runs on earlier commits as well, where the module has another name.
VOLUMES = ("raidx_fuse.pool.array_volumes", "raidx_fuse.pool.volume_table")
open_volumes = import_module(VOLUMES[find_spec(VOLUMES[0]) is None]).open_volumes

KIB = 1 << 10
CHUNK = PAGE = 4096
MEMBER_BYTES = 1024 * KIB
LOG_BYTES = 400 * KIB  # a restripe changes as much at once
SLOW = "8192"  # bytes a second: jobs take some seconds of virtual time
CUTS = 2  # power cuts of a case
MAGIC, SLOTS = b"RAIDX-SB", (0, 64 * KIB)
WINDOW = "WINDOW_BYTES"
LAYOUTS = {  # name -> members, and the layout that a restripe goes to
    "raid0": (3, "raid5"),
    "raid1": (3, "raid5"),
    "raid4": (4, "rdp"),
    "raid5": (4, "rdp"),
    "rdp": (5, "raid5"),
    "evenodd": (5, "raid4"),
    "xcode": (5, "rdp"),
    "pcode": (6, "raid4"),
    "upc": (6, "raid5"),
    "raidx-zero": (3, None),
    "raidx-copy": (4, None),
    "raidx-parity": (5, None),
}
MODES = ("partial", "full", "none")


Disk = RamMember | PowerCutMember


@dataclass
class Case:
    """One array, or two, being made: *members* by array, *pool* while it is mounted.

    *record*: of every write and flush, if the power is to be cut.
    """

    layout: str
    mode: str
    state: str
    seed: int
    members: dict[str, list[Disk]] = field(default_factory=dict)
    pool: Pool | None = None
    record: CutRecord | None = None
    numbers: dict[str, int] = field(default_factory=dict)  # path -> number in the record

    @property
    def name(self) -> str:
        """Its name on the shelf."""
        return f"{self.layout}-{self.mode}-{self.state}"

    def __post_init__(self) -> None:
        self.rng = random.Random(self.name)

    def uuids(self) -> str:
        """Return a UUID, the same ones each time."""
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def member(self, array: str, size_bytes: int = MEMBER_BYTES) -> Disk:
        """Return one more member of *array*, which gets it."""
        own = self.members.setdefault(array, [])
        name, record = f"{array}{len(own)}", self.record
        if record is None:
            own.append(RamMember(size_bytes, name=name))
        else:
            self.numbers[name] = len(record.starts)
            own.append(PowerCutMember(bytearray(size_bytes), name=name, record=record))
        return own[-1]

    async def create(self) -> None:
        """Create the arrays, with a volume of the whole image or with two of a part each."""
        width = LAYOUTS[self.layout][0]
        unlike = 8 * CHUNK if self.layout.startswith("raidx") else 0
        arrays = {"one": self.layout} | ({"two": "raid5"} if self.state == "move" else {})
        for array, layout in arrays.items():
            members = [
                self.member(array, MEMBER_BYTES + unlike * (n % 3))
                for n in range(width if array == "one" else 3)
            ]
            whole = self.state not in ("move", "removal") and self.seed % 2 == 0
            await create_array(
                members,
                layout,
                name=array,
                now_s=0,
                chunk_bytes=CHUNK,
                params=self.params(layout),
                log_bytes=LOG_BYTES,
                with_volume=whole,
                uuid_source=self.uuids,
            )

    def params(self, layout: str) -> dict[str, Any]:
        """Return parameters that leave space to grow, or without a member."""
        if layout in ("rdp", "evenodd"):
            return {"prime": 5}
        few = {"raidx-zero": 180, "raidx-copy": 120, "raidx-parity": 90}.get(layout)
        return {"bundles": few} if few and self.state == "removal" else {}

    @property
    def array(self) -> Array:
        """The array of the layout."""
        assert self.pool is not None
        return self.pool.array("one").array

    async def write(self, count: int) -> None:
        """Write *count* ranges of the volumes, from single sectors to whole stripes."""
        assert self.pool is not None
        for volumes in self.pool.arrays:
            for volume in volumes.volumes:
                for _ in range(count):
                    size = self.rng.choice((512, 700, PAGE, 3 * PAGE, 12 * PAGE))
                    size = min(size, volume.size_bytes)
                    at = self.rng.randrange(volume.size_bytes - size + 1)
                    # of few different bytes: a shelf is to be small
                    token = self.rng.randbytes(8) * -(-size // 8)
                    await volume.write(at, token[:size])

    async def flush(self) -> None:
        """Flush all arrays."""
        assert self.pool is not None
        for volumes in self.pool.arrays:
            await volumes.array.flush()

    async def until(self, share: float, array: str = "one") -> None:
        """Return when the running job of *array* has done *share* of its work."""
        assert self.pool is not None
        jobs = self.pool.array(array).array.jobs
        for _ in range(20_000):
            if not jobs.running():
                raise UsageError("it is done at once, or is no job")
            job = jobs.running()[0]
            if job.total_bytes and job.done_bytes >= share * job.total_bytes:
                return
            await trio.sleep(0.25)
        raise RuntimeError(f"{self.name}: the job does not move")


# -- states --------------------------------------------------------------------------------------


async def clean(case: Case) -> None:
    """Nothing under way: `snapshot` is after the close."""


async def log(case: Case) -> None:
    """Stopped with records in the log and regions marked."""


async def growth(case: Case) -> None:
    """In the middle of a growth."""
    await case.array.grow([case.member("one")])
    await case.until(0.25)


async def grown(case: Case) -> None:
    """After a growth."""
    await case.array.set("speed_max", "0")
    await case.array.grow([case.member("one")])
    for job in case.array.jobs.running():
        await job.finished.wait()


async def restripe(case: Case) -> None:
    """In the middle of a restripe to another layout and one more member."""
    await case.array.restripe([case.member("one")], LAYOUTS[case.layout][1], {})
    await case.until(0.25)


async def replacement(case: Case) -> None:
    """In the middle of a copy of a member in use to the one that replaces it."""
    await case.array.replace_disk(1, case.member("one", MEMBER_BYTES + 16 * CHUNK))
    await case.until(0.25)


async def rebuild(case: Case) -> None:
    """In the middle of a rebuild of a failed member."""
    await case.array.fail_disk(1)
    await case.write(4)
    await case.array.replace_disk(1, case.member("one", MEMBER_BYTES + 16 * CHUNK))
    await case.until(0.25)


async def removal(case: Case) -> None:
    """While a member leaves."""
    role = len(case.members["one"]) - 1
    if not case.layout.startswith("raidx"):
        await grown(case)
        await case.array.set("speed_max", SLOW)
        role += 1
    await case.array.remove_disk(role)
    await case.until(0.25)


async def move(case: Case) -> None:
    """While a volume moves to another array."""
    assert case.pool is not None
    ends = ("one", "two") if case.seed % 2 else ("two", "one")
    await case.pool.array(ends[0]).array.set("speed_max", SLOW)
    await start_move(case.pool, f"{ends[0]}-b", ends[1])
    await case.until(0.25, ends[0])


async def remembered(case: Case) -> None:
    """With every setting and a scrub to remember, and a spare where there can be one."""
    # Late: earlier commits, which have other modules of settings, only play what is made here.
    from raidx_fuse.settings import OF_ARRAY, OF_POOL

    for name in sorted(OF_ARRAY.keys() - {"journal", "speed_max"}):
        await case.array.set(name, _text_for(name))
    values = {name: one.default for name, one in OF_POOL.items()}
    await case.array.member_set.update(
        lambda config: dataclasses.replace(config, settings={**config.settings, **values})
    )
    await case.array.jobs.wait(await case.array.start_scrub(repair=True))
    if case.layout not in ("raid0", "raidx-zero"):
        await case.array.add_spare(case.member("one", MEMBER_BYTES + 16 * CHUNK))


def _text_for(name: str) -> str:
    """Return a text that setting *name* takes."""
    from raidx_fuse.array.settings import parse

    for text in TEXTS:
        with suppress(RaidxError):
            parse(name, text)
            return text
    raise RuntimeError(f"no text for {name}")


TEXTS = ("7", "0.5", "off", "bpu", "1MiB", "86400")


async def absent(case: Case) -> None:
    """Stopped while a member was absent: it has what it had when it left."""


STATES: dict[str, Callable[[Case], Awaitable[None]]] = {
    state.__name__: state
    for state in (
        *(clean, log, growth, grown, restripe, replacement, rebuild, removal, move, absent),
        remembered,
    )
}
MIDDLE = ("growth", "restripe", "replacement", "rebuild", "removal", "move")


def cases() -> Iterator[Case]:
    """Yield every pair of layout and state, each with one journal mode."""
    for n, layout in enumerate(LAYOUTS):
        for m, state in enumerate(STATES):
            yield Case(layout, MODES[(n + m) % len(MODES)], state, n + m)


# -- making --------------------------------------------------------------------------------------


@asynccontextmanager
async def mounted(arrays: Iterable[Sequence[Disk]]) -> AsyncIterator[Pool]:
    """Mount the members of one or several arrays; close them cleanly at the end."""
    async with AsyncExitStack() as stack:
        parts = []
        for members in arrays:
            array = await stack.enter_async_context(open_array(members, start_degraded=True))
            parts.append(await stack.enter_async_context(open_volumes(array)))
        yield await stack.enter_async_context(open_pool(parts))


async def hashes(pool: Pool, sizes: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
    """Return size and hash of every volume of *pool*, by name; of their beginnings by *sizes*."""
    found = {}
    for volumes in pool.arrays:
        for volume in volumes.volumes:
            size = sizes[volume.name][0] if sizes else volume.size_bytes
            content = await volume.read(0, size)
            found[volume.name] = [size, hashlib.sha256(content).hexdigest()]
    return found


async def make(case: Case) -> list[dict[str, Any]]:
    """Return what the shelf says of *case*: hashes, and the members as they were when it stopped.

    If the power is cut, that is so several times while its jobs end and it is closed, and nothing
    is written meanwhile: so every byte is known.
    """
    await case.create()
    async with mounted(case.members.values()) as case.pool:
        for volumes in case.pool.arrays:
            await volumes.array.set("journal", case.mode)
            await volumes.array.set("speed_max", SLOW)
            room = volumes.free_bytes() // PAGE
            pages = (24, 24) if case.state == "move" else (room * 2 // 5, room * 3 // 10)
            for name, size in zip("ab", pages, strict=True):
                if room:
                    await volumes.create(f"{volumes.array.name}-{name}", size * PAGE)
        await case.write(12)
        await case.flush()
    left = None
    if case.state == "absent":
        left = case.members["one"].pop(1)
    async with mounted(case.members.values()) as case.pool:
        await case.write(3)
        await STATES[case.state](case)
        await case.write(6)
        await case.flush()
        if case.record is None:
            await case.write(3)
        found = await hashes(case.pool)
        begin = len(case.record.events) if case.record is not None else 0
        if case.state in MIDDLE and not any(v.array.jobs.running() for v in case.pool.arrays):
            raise UsageError("it ended too soon")
        stopped = [] if case.record is not None else [images(case)]
        if case.record is not None:
            await _end_jobs(case.pool)
    if case.record is not None:
        stopped = cuts(case, begin)
    elif case.state == "clean":
        stopped = [images(case)]
    if left is not None:
        for one in stopped:
            one["one"].append((left.path, _content(left)))
    return [{"volumes": found, "images": one} for one in stopped]


def images(case: Case) -> dict[str, list[tuple[str, bytes]]]:
    """Return path and content of the members of each array, as they are now."""
    return {a: [(m.path, _content(m)) for m in own] for a, own in case.members.items()}


def _content(member: Disk) -> bytes:
    return bytes(member.memory if isinstance(member, RamMember) else member.state.image)


def is_member(content: Any) -> bool:
    """Return whether one of the slots in *content* begins like a superblock."""
    return any(bytes(content[at : at + len(MAGIC)]) == MAGIC for at in SLOTS)


def cuts(case: Case, begin: int) -> list[dict[str, list[tuple[str, bytes]]]]:
    """Return what CUTS power cuts leave, each at some write or flush from *begin* on."""
    assert case.record is not None
    paths = [(array, member.path) for array, own in case.members.items() for member in own]
    moments = range(begin, len(case.record.events))
    wanted = set(case.rng.sample(moments, min(CUTS, len(moments))))
    found = []
    for index, disks, _event in case.record.moments():
        if index not in wanted:
            continue
        left: dict[str, list[tuple[str, bytes]]] = {array: [] for array in case.members}
        for array, path in paths:
            disk = disks[case.numbers[path]]
            content = bytes(disk.crash(disk.sample(case.rng)))
            if is_member(content):  # else it was none yet, or is none any more
                left[array].append((path, content))
        found.append(left)
    return found


# -- the file ------------------------------------------------------------------------------------


def pages_of(content: bytes) -> list[list[int]]:
    """Return the runs (first, count) of pages of *content* that are not zero."""
    runs: list[list[int]] = []
    for page in range(len(content) // PAGE):
        if any(content[page * PAGE : (page + 1) * PAGE]):
            if runs and sum(runs[-1]) == page:
                runs[-1][1] += 1
            else:
                runs.append([page, 1])
    return runs


def pack(shelf: Sequence[tuple[str, Case, dict[str, Any]]], impossible: dict[str, str]) -> bytes:
    """Return the file: a table of contents, JSON in xz, behind its size; then each array in xz."""
    entries, packed = [], []
    for name, case, made in shelf:
        members, pages = [], []
        for array, own in made["images"].items():
            for path, content in own:
                runs = pages_of(content)
                members.append([array, path, len(content), runs])
                pages += [content[a * PAGE : (a + n) * PAGE] for a, n in runs]
        packed.append(lzma.compress(b"".join(pages)))
        about = {"layout": case.layout, "mode": case.mode, "state": case.state}
        how = {"cut": case.record is not None, "packed_bytes": len(packed[-1])}
        entries.append(
            {"name": name, **about, **how, "volumes": made["volumes"], "members": members}
        )
    contents = json.dumps({"cases": entries, "impossible": impossible}).encode()
    head = lzma.compress(contents)
    return b"".join((len(head).to_bytes(8, "little"), head, *packed))


@contextmanager
def small_windows() -> Iterator[None]:
    """Let jobs work in small windows, so that small arrays have some."""
    modules = [m for name, m in sys.modules.items() if name.startswith("raidx_fuse.jobs.")]
    kept = [(module, value) for module in modules if (value := vars(module).get(WINDOW))]
    for module, _ in kept:
        setattr(module, WINDOW, 4 * CHUNK)
    try:
        yield
    finally:
        for module, value in kept:
            setattr(module, WINDOW, value)


def make_shelf(path: Path, names: Collection[str] = ()) -> None:
    """Write a shelf of all cases, or of those named *names*."""
    shelf: list[tuple[str, Case, dict[str, Any]]] = []
    impossible: dict[str, str] = {}
    with small_windows():
        for case in cases():
            if names and case.name not in names:
                continue
            try:
                shelf += made(case)
            except (RaidxError, BaseExceptionGroup) as error:
                impossible[case.name] = str(_refusal(error))
    path.write_bytes(pack(shelf, impossible))


def made(case: Case) -> list[tuple[str, Case, dict[str, Any]]]:
    """Return the arrays of *case*, each with its name: stopped, and after some power cuts."""
    cut = dataclasses.replace(case, record=CutRecord(), members={}, numbers={})
    stopped = [(case.name, case, one) for one in run(make, case)]
    after = [(f"{case.name}-cut{n}", cut, one) for n, one in enumerate(run(make, cut))]
    return stopped + after


def _refusal(error: BaseException) -> RaidxError:
    """Return the error of raidx that *error* is; raise it if it is another one."""
    one = single(error) if isinstance(error, BaseExceptionGroup) else error
    if not isinstance(one, RaidxError):
        raise error
    return one


# -- playing -------------------------------------------------------------------------------------


def read_shelf(path: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the entries of a shelf, and what was not possible."""
    content = path.read_bytes()
    at = 8 + int.from_bytes(content[:8], "little")
    contents = json.loads(lzma.decompress(content[8:at]))
    for entry in contents["cases"]:
        entry["packed"] = content[at : at + entry["packed_bytes"]]
        at += entry["packed_bytes"]
    return contents["cases"], contents["impossible"]


def images_of(entry: Mapping[str, Any]) -> dict[str, list[tuple[str, bytes]]]:
    """Return path and content of the members of each array of *entry*, as `images` does."""
    pages = memoryview(lzma.decompress(entry["packed"]))
    found: dict[str, list[tuple[str, bytes]]] = {}
    at = 0
    for array, path, size, runs in entry["members"]:
        content = bytearray(size)
        for first, count in runs:
            content[first * PAGE : (first + count) * PAGE] = pages[at : at + count * PAGE]
            at += count * PAGE
        found.setdefault(array, []).append((path, bytes(content)))
    return found


def members_of(images: Mapping[str, Sequence[tuple[str, bytes]]]) -> list[list[RamMember]]:
    """Return members with the content of *images*."""
    arrays = []
    for own in images.values():
        members = []
        for path, content in own:
            member = RamMember(len(content), name=path)
            member.memory[:] = content
            members.append(member)
        arrays.append(members)
    return arrays


async def play(entry: Mapping[str, Any]) -> None:
    """Mount an array of a shelf, end its jobs, mount it again.

    Raises RaidxError if its start is refused, WrongError for everything else that must not be.
    """
    images = images_of(entry)
    arrays = members_of(images)
    started = False
    try:
        async with mounted(arrays) as pool:
            started = True
            await _play_mounted(entry, pool)
        arrays = [[m for m in members if is_member(m.memory)] for members in arrays]
        async with mounted(arrays) as pool:  # without members that have left
            if not all(volumes.array.was_clean for volumes in pool.arrays):
                raise WrongError("it was not closed cleanly")
            await _compare(entry, pool, "after a remount")
    except (RaidxError, BaseExceptionGroup) as error:
        refusal = _refusal(error)
        if started:
            raise WrongError(f"it started, and then: {refusal}") from error
        before = [content for own in images.values() for _, content in own]
        after = [bytes(member.memory) for members in arrays for member in members]
        if len(arrays) == 1 and before != after:  # of several, one is closed again
            raise WrongError(f"it was refused after writing: {refusal}") from error
        raise refusal from error


async def _play_mounted(entry: Mapping[str, Any], pool: Pool) -> None:
    """Compare, end the jobs, compare, scrub. Raises WrongError, RaidxError."""
    await _compare(entry, pool, "at once")
    array = pool.arrays[0].array
    stopped = not entry["cut"]  # else the cut says how much of it is there
    logged = stopped and entry["state"] == "log" and entry["mode"] != "none"
    if logged and not (array.replayed and array.replayed.records):
        raise WrongError("its log has nothing to redo")
    middle = stopped and entry["state"] in MIDDLE
    if middle and not any(volumes.array.jobs.running() for volumes in pool.arrays):
        raise WrongError("no job goes on")
    await _end_jobs(pool)
    await _compare(entry, pool, "after the jobs")
    for volumes in pool.arrays:
        array = volumes.array
        scrub = await array.jobs.wait(await array.start_scrub(repair=False))
        if scrub["state"] != "done" or scrub["mismatches"]:
            raise WrongError(f"a scrub of {array.name}: {scrub}")


async def play_without(entry: Mapping[str, Any], role: int) -> None:
    """Mount an array of a shelf without a member. Raises WrongError, RaidxError."""
    images = images_of(entry)
    images["one"] = [image for n, image in enumerate(images["one"]) if n != role]
    async with mounted(members_of(images)) as pool:
        await _compare(entry, pool, f"without member {role}")


class WrongError(Exception):
    """Something that must never be."""


async def _compare(entry: Mapping[str, Any], pool: Pool, when: str) -> None:
    found = await hashes(pool, entry["volumes"])
    if found != entry["volumes"]:
        raise WrongError(f"{when}: {found} instead of {entry['volumes']}")


async def _end_jobs(pool: Pool) -> None:
    """Let all jobs end, also those that follow others. Raises WrongError."""
    quiet = 0
    for volumes in pool.arrays:
        await volumes.array.set("speed_max", "0")
    while quiet < 3:
        running = [job for volumes in pool.arrays for job in volumes.array.jobs.running()]
        quiet = 0 if running else quiet + 1
        for job in running:
            await job.finished.wait()
            if job.state not in ("done", "cancelled"):
                raise WrongError(f"a job: {job.status()}")
        await trio.sleep(1)


def outcome(play_it: Callable[[], Awaitable[None]]) -> tuple[str, str]:
    """Return what comes of *play_it*: ok, refused or wrong, and why."""
    try:
        run(play_it)
    except WrongError as error:
        return "wrong", str(error)
    except (RaidxError, BaseExceptionGroup) as error:
        one = single(error) if isinstance(error, BaseExceptionGroup) else error
        return ("refused" if isinstance(one, RaidxError) else "wrong"), f"{one}"
    except Exception as error:
        return "wrong", repr(error)
    return "ok", ""


def play_shelf(path: Path) -> None:
    """Play all arrays of a shelf, and print a line for each."""
    logging.disable(logging.CRITICAL)
    for entry in read_shelf(path)[0]:
        result, why = outcome(partial(play, entry))
        print(json.dumps([entry["name"], result, why]), flush=True)


if __name__ == "__main__":
    what, file, *some = sys.argv[1:]
    if what == "make":
        make_shelf(Path(file), some)
    else:
        play_shelf(Path(file))
