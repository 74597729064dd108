"""The experiments of the RAIDX paper: arrays of unlike disks, loads one after the other, idle time.

`paper_raidx.py` makes the tables and figures of them. Sizes are a thousandth of the paper's. An
array gets content first; then a client with so many requests at a time runs a load as fast as it
can (the paper's "maximum speed"), idles for ten minutes, in which the tuner may work, and runs the
next one. Times are those of the loads alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio
from paper_common import log_bytes

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.lab.experiments.modelled import BlankMember
from raidx_fuse.lab.loads.request import fit, requests_of
from raidx_fuse.lab.loads.workloads import generate
from raidx_fuse.loop.tasks import TICK_S, rest
from raidx_fuse.members.base import Member
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.network import Link, NetworkMember, NetworkModel
from raidx_fuse.members.simulated.virtual_time import run
from raidx_fuse.store.queue import MemberQueue

MB = 1_000_000
MIB = 1 << 20
CHUNK = 64 << 10
PAGE = 4096
IDLE_S = 600.0
CLIENTS = 16
ZEROMQ = NetworkModel(mb_s=60, duplex=False)  # what the paper's Table I gives its ZeroMQ
IPC = NetworkModel(mb_s=65, duplex=False)  # the same for a device on the same machine
TOOL_BYTES = 64 << 10  # of a write and a read of the author's tool, by default
TOOL_PASSES = 3  # each on other places, by default
PAGE_CACHE = 32  # writes that the kernel sends at a time when it writes back

Kind = tuple[str, int]  # model, bytes
SSD, DISK = ("ssd", 250 * MB), ("hdd", 300 * MB)
DISKS = (("hdd", 1000 * MB), ("old", 300 * MB), ("sas10k", 74 * MB))
RAM = ("ram", 4 * MB)  # 600 MB in the paper, less does not fit here
SEVEN = (*(SSD,) * 4, *DISKS, RAM)
SEVEN_OLD = (*(SSD,) * 4, *(("old", size) for _, size in DISKS), RAM)
MODELS = {
    # A RAM disk behind a block device takes some time, too.
    "ram": {
        **{"read_access_ms": "0.005", "write_access_ms": "0.005"},
        **{"read_mb_s": "3000", "write_mb_s": "3000"},
    },
    "hdd, ncq": {"order": "ncq"},
    "sas10k, ncq": {"order": "ncq"},
    "old, ncq": {"seek_ms": "12", "rpm": "5400", "read_mb_s": "90", "write_mb_s": "90"}
    | {"order": "ncq"},
    "old": {"seek_ms": "12", "rpm": "5400", "read_mb_s": "90", "write_mb_s": "90"},
}

# What a file system does besides writing the files: one block group for so many bytes of them,
# a journal of so many, which a commit of so many bytes goes round for each file.
GROUP_BYTES = 8 * MIB
JOURNAL_BYTES = 4 * MIB
COMMIT_BYTES = 32 << 10
FILE_BYTES = MIB

Operation = tuple[bool, int, int]  # is it a write, offset, length


class Load(NamedTuple):
    """Requests on the first *span* bytes; *amount* of them; of files, so many bytes.

    *kind*: "spotcheck" (writes at random places, then their reads, many at a time), "diskSpotcheck"
    (the author's own tool: three passes, each with *amount* other places in ascending order that
    are written through the page cache and synced, then read one at a time, 64 KiB each),
    "hotspot" (reads, nine of ten in *share* of the chunks, which *hot_seed* draws), "files" (a file
    system is made and files are copied into it), "read files", "read packed" (as many bytes of
    files that lie behind each other from the beginning), "sequential" (all of the span, read
    in order, then written), "mixed" (two small requests to a hot tenth, then a chunk in order), or
    the name of a generated trace.
    *burst*: after so many requests a lull of *lull_s*.
    """

    kind: str
    span: int
    amount: int
    seed: int = 1
    hot_seed: int = 0
    share: float = 0.1
    clients: int = CLIENTS
    burst: int = 0
    lull_s: float = 0.0


class Run(NamedTuple):
    """One experiment: *loads* one after the other on *layout* over members of *kinds*.

    *network*: all members are behind one link, or with *own_links* each behind one like it; or
    None. *seed*: where the disks' platters stand. *shortest*: of copies, that on the member with
    the fewest waiting operations is read, as md does, whatever its speed. *journal*: of the array.
    """

    layout: str
    kinds: tuple[Kind, ...]
    loads: tuple[Load, ...]
    tuned: bool = True
    network: NetworkModel | None = None
    seed: int = 0
    own_links: bool = False
    shortest: bool = False
    journal: str = "partial"


class Result(NamedTuple):
    """Seconds of each load; the mean response in ms after lulls; chunks and time of the tuner."""

    seconds: tuple[float, ...]
    after_lull_ms: float
    chunks_moved: int
    tuner_s: float


def operations(load: Load) -> Iterator[Operation]:
    """Yield the requests of *load*."""
    rng = random.Random(load.seed)
    if load.kind == "spotcheck":
        places = []
        for _ in range(load.amount // 2):
            size = PAGE * rng.randint(1, 4)
            places.append((min(rng.randrange(load.span // PAGE) * PAGE, load.span - size), size))
        yield from ((True, at, size) for at, size in places)
        yield from ((False, at, size) for at, size in places)
    elif load.kind == "hotspot":
        chunks = load.span // CHUNK
        hot = random.Random(load.hot_seed).sample(range(chunks), max(1, int(chunks * load.share)))
        for _ in range(load.amount):
            chunk = rng.choice(hot) if rng.random() < 0.9 else rng.randrange(chunks)
            yield False, chunk * CHUNK + rng.randrange(CHUNK // PAGE) * PAGE, PAGE
    elif load.kind in ("files", "read files"):
        yield from _files(load)
    elif load.kind == "read packed":
        yield from ((False, at, CHUNK) for at in range(0, load.amount, CHUNK))
    elif load.kind == "sequential":
        for is_write in (False, True):
            yield from ((is_write, at, CHUNK) for at in range(0, load.span, CHUNK))
    elif load.kind == "mixed":
        chunks = load.span // CHUNK
        hot = random.Random(load.hot_seed).sample(range(chunks), max(1, chunks // 10))
        for number in range(load.amount):
            if number % 3:
                at = rng.choice(hot) * CHUNK + rng.randrange(CHUNK // PAGE) * PAGE
                yield number % 2 == 1, at, PAGE
            else:
                yield False, number // 3 % chunks * CHUNK, CHUNK
    else:
        blocks = fit(generate(load.kind, seed=load.seed, requests=load.amount), load.span)
        for request in requests_of(blocks):
            yield request.is_write, request.offset_bytes, request.length_bytes


def _files(load: Load) -> Iterator[Operation]:
    """Yield what making a file system and copying *amount* bytes of files to it sends, or reading.

    Block groups begin with their bitmaps and inode table; the journal lies in the middle.
    """
    groups = load.span // GROUP_BYTES
    journal = groups // 2 * GROUP_BYTES
    reading = load.kind == "read files"
    if not reading:
        for group in range(groups):
            for block in range(4):
                yield True, group * GROUP_BYTES + block * PAGE, PAGE
        for at in range(journal + 4 * PAGE, journal + JOURNAL_BYTES, CHUNK):
            yield True, at, CHUNK
    logged = 0
    for number in range(load.amount // FILE_BYTES):
        group = number * 5 % groups  # directories are spread over the groups
        group += group == groups // 2
        base = group * GROUP_BYTES
        yield not reading, base + 2 * PAGE, PAGE
        first = base + MIB + number * 5 // groups * FILE_BYTES % (GROUP_BYTES - MIB)
        for at in range(first, first + FILE_BYTES, CHUNK):
            yield not reading, at, CHUNK
        if not reading:
            yield True, journal + 4 * PAGE + logged % (JOURNAL_BYTES - CHUNK), COMMIT_BYTES
            logged += COMMIT_BYTES
            for block in (0, 1):
                yield True, base + block * PAGE, PAGE


def tool_places(load: Load, number: int) -> list[int]:
    """Return the places of pass *number* of diskSpotcheck, in pages of 4 KiB, ascending.

    As in the tool: the beginning, the end, and between them steps of a random share of what is left
    by a quarter of the count. So they are dense near the end.
    """
    rng = random.Random(f"{load.seed} {number}")
    last = load.span - TOOL_BYTES
    places = [0]
    for _ in range(load.amount - 2):
        left = last - places[-1] - TOOL_BYTES
        step = rng.random() * left / ((load.amount - 2) / 4) + TOOL_BYTES
        places.append(min(last, int(places[-1] + step)))
    return [place // PAGE * PAGE for place in (*places, last)]


async def _use_tool(array: Array, load: Load) -> tuple[float, list[float]]:
    """Return in how many seconds diskSpotcheck makes its passes."""
    started_s = trio.current_time()
    for number in range(TOOL_PASSES):
        places = tool_places(load, number)
        waiting = iter(places)

        async def write_back(waiting: Iterator[int] = waiting) -> None:
            for place in waiting:
                await array.write(place, bytes(TOOL_BYTES))

        async with trio.open_nursery() as nursery:
            for _ in range(PAGE_CACHE):
                nursery.start_soon(write_back)
        await array.flush()
        for place in places:
            await array.read(place, TOOL_BYTES)
    return trio.current_time() - started_s, []


async def _serve(array: Array, load: Load) -> tuple[float, list[float]]:
    """Return in how many seconds *load* is served, lulls aside, and the responses after them."""
    if load.kind == "diskSpotcheck":
        return await _use_tool(array, load)
    waiting = iter(operations(load))
    started_s = trio.current_time()
    rested_s = 0.0
    firsts: list[float] = []

    async def client() -> None:
        nonlocal rested_s
        for number, (is_write, offset, length) in enumerate(waiting):
            first = load.burst and not number % load.burst
            if first:
                await trio.sleep(load.lull_s)
                rested_s += load.lull_s
            began_s = trio.current_time()
            if is_write:
                await array.write(offset, bytes(length))
            else:
                await array.read(offset, length)
            if first:
                firsts.append(trio.current_time() - began_s)

    async with trio.open_nursery() as nursery:
        for _ in range(load.clients):
            nursery.start_soon(client)
    return trio.current_time() - started_s - rested_s, firsts


async def _idle() -> None:
    """Wait for IDLE_S, then until the middle of a tick of the background tasks.

    A load that began just before a tick had its first checkpoint at once, another one only when
    the log was half full: a tenth of the time of 6000 small requests, in either direction.
    """
    await rest(IDLE_S)
    await trio.sleep(TICK_S / 2)


async def _measure(order: Run) -> Result:
    blanks = [
        BlankMember(size // PAGE * PAGE, name=f"m{n}") for n, (_, size) in enumerate(order.kinds)
    ]
    members: list[Member] = [
        model_member(
            blank,
            kind.replace("old", "hdd").partition(",")[0],
            seed=number + 100 * order.seed,
            **MODELS.get(kind, {}),
        )
        for number, (blank, (kind, _)) in enumerate(zip(blanks, order.kinds, strict=True))
    ]
    if order.network is not None:
        links = [Link(order.network, seed=n) for n in range(len(members) if order.own_links else 1)]
        members = [NetworkMember(m, links[n % len(links)]) for n, m in enumerate(members)]
    config = await create_array(
        members,
        order.layout,
        chunk_bytes=CHUNK,
        log_bytes=log_bytes(min(blank.size_bytes for blank in blanks)),
        name="paper",
        now_s=0,
        both_ends=False,  # the places of the published figures
    )
    for blank in blanks:
        blank.forgotten = config.regions.data
    async with open_array(members) as array:
        tuner = array.tuner
        if tuner is not None:
            tuner.enabled = order.tuned
        array.regular_scrub.set_interval(0.0)
        content = max(load.span for load in order.loads)
        for at in range(0, content, MIB):
            await array.write(at, bytes(min(MIB, content - at)))
        await array.flush()
        await _idle()
        if order.journal != "partial":  # to set it anew would empty the log
            await array.set("journal", order.journal)
        seconds, firsts = [], []
        for load in order.loads:
            taken_s, after = await _serve(array, load)
            seconds.append(taken_s)
            firsts += after
            await array.flush()
            await _idle()
        return Result(
            tuple(seconds),
            1e3 * sum(firsts) / len(firsts) if firsts else 0.0,
            tuner.moved if tuner is not None else 0,
            tuner.work_s if tuner is not None else 0.0,
        )


@contextmanager
def fewest_waiting(chosen: bool) -> Iterator[None]:
    """If *chosen*, let the members with the fewest waiting operations answer first."""
    ours = MemberQueue.answer_s
    if chosen:
        MemberQueue.answer_s = MemberQueue.queue_length  # type: ignore[method-assign]
    try:
        yield
    finally:
        MemberQueue.answer_s = ours  # type: ignore[method-assign]


def measure(order: Run) -> Result:
    """Carry out *order* in virtual time."""
    with fewest_waiting(order.shortest):
        return run(_measure, order)
