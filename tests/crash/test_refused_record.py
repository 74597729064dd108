"""Power cuts after only one of two log members took a record synchronously.

If its place were given to the next record, a cut that drops that one on both members would leave
this one there, and recovery would continue past a gap (journal/journal.py, law 1).
"""

from __future__ import annotations

import pytest
import trio

from raidx_fuse.engine.write.pending import complete
from raidx_fuse.journal.group_commit import CommitBatch, continue_held
from raidx_fuse.journal.journal import Journal
from raidx_fuse.journal.ring import RecordsInFlight
from raidx_fuse.lab.crash.disks import is_member
from raidx_fuse.lab.crash.hardware import CHUNK_BYTES, Shape
from raidx_fuse.lab.crash.oracle import Left
from raidx_fuse.lab.crash.player import Player
from raidx_fuse.lab.crash.recording import Recording
from raidx_fuse.lab.crash.state import Cell, Cut, State
from raidx_fuse.lab.crash.workload import record_workload
from raidx_fuse.layouts.numbers import CellIndex, Stripe
from raidx_fuse.layouts.placements.layout import Layout
from raidx_fuse.store.io_tuples import MemberIO
from tests.support.cuts import Verdicts

WIDTH = 4
SEED = 3  # without a cache
HALF = CHUNK_BYTES // 2  # with its parity as large as the record that is refused


write_now = Journal.write_now


def by_the_first_only(journal: Journal, offset: int, record: bytes) -> list[MemberIO]:
    """Write *record* to the first log member, and leave it to the others."""
    log_members = journal.log_members
    roles, turns = log_members.at(offset), log_members.turns
    log_members.turns = (roles[:1],)
    left = write_now(journal, offset, record)
    log_members.turns = turns
    return [*left, *((role, offset, [record], len(record)) for role in roles[1:])]


def refused(monkeypatch: pytest.MonkeyPatch) -> tuple[Recording, int, int]:
    """Record it; return the events between which no flush covers what came after."""
    events = []

    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        await player.array.context.journal.drain()
        await player.flush()
        span, data = player._begin_write(0, 0, CHUNK_BYTES)

        events.append(player.event)
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "write_now", by_the_first_only)
            done = player.array.writer._small_write.write(0, data, CHUNK_BYTES)
        assert done is not None
        assert done[1], "one member takes it later"
        assert player.event == events[0] + 1, "one member took it"

        async def finish() -> None:
            assert done is not None
            await complete(player.array.context, done, 0, memoryview(data))
            player.history.end(span, player.event)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            for at in (0, CHUNK_BYTES):  # their parity is the same
                nursery.start_soon(player.write, player.stripe_bytes + at, HALF)
        events.append(player.event)

    shape = Shape(WIDTH, stripes=3, pace="inline")
    recording = record_workload(Cell("raid5", "partial"), SEED, script, shape)
    return recording, events[0], events[1]


def broken(recording: Recording, first: int, last: int, turns: int = 90) -> list[str]:
    """Crash it with each member lost; return what breaks."""
    found, verdicts = [], Verdicts()
    for index, disks, _event in recording.record.moments():
        if not first < index <= last:
            continue
        for turn in range(turns):
            lost = turn % WIDTH
            state = State(recording.cell, SEED, Cut(index, f"s{turn}", (lost,)))
            cuts = zip(disks, state.cut.decisions(list(disks)), strict=True)
            images = {n: disk.crash(cut) for n, (disk, cut) in enumerate(cuts) if n != lost}
            images = {n: image for n, image in images.items() if is_member(image)}
            left = Left(recording, index, images, frozenset({lost}))
            if (what := verdicts.what_breaks(left, state)) is not None:
                found.append(what)
    return found


def test_a_record_that_one_member_took_is_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(*refused(monkeypatch)) == []


def without(layout: Layout, role: int) -> int:
    """Return the byte offset of a chunk that has neither its data nor its parity on *role*."""
    for chunk in range(layout.chunks):
        stripe, column = divmod(chunk, WIDTH - 1)
        cells = CellIndex(column), CellIndex(WIDTH - 1)
        if role not in [layout.place(Stripe(stripe), cell)[0] for cell in cells]:
            return chunk * CHUNK_BYTES
    raise AssertionError(f"every chunk is on role {role}")


def checkpointed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> tuple[Recording, int, int]:
    """Record a checkpoint that begins while a log member has not taken a record yet."""
    events = []

    async def script(player: Player) -> None:
        await player.write(0, player.stripes * player.stripe_bytes)
        await player.flush()
        journal = player.array.context.journal
        await journal.drain()
        await player.flush()

        taker = journal.log_members.at(journal.ring.next_place(HALF)[1])[0]
        handler = player.write(without(player.array.context.layout, taker), HALF)
        journal.deferral.allow(True)
        trap = handler.send(None)
        journal.deferral.allow(False)
        assert isinstance(trap, CommitBatch)
        events.append(player.event)
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "write_now", by_the_first_only)
            trap.write()
        assert journal.late is not None

        async def finish() -> None:
            await trio.sleep(1.0)  # so long it takes the other member
            await continue_held(handler)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            nursery.start_soon(journal.place)
        events.append(player.event)

    shape = Shape(WIDTH, stripes=3, pace="inline")
    recording = record_workload(Cell("raid5", "partial"), SEED, script, shape)
    return recording, events[0], events[1]


def test_a_checkpoint_waits_until_all_log_members_have_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a cut that takes the only one that has it leaves half of a change in its place."""
    assert broken(*checkpointed_meanwhile(monkeypatch), 8) == []

    async def no_wait(*_: object) -> None:
        """Settle at once: else the records of parities wait for the late one as well."""

    monkeypatch.setattr(Journal, "is_late", property(lambda _journal: False))
    monkeypatch.setattr(RecordsInFlight, "wait_for_earlier", no_wait)
    assert broken(*checkpointed_meanwhile(monkeypatch), 8), "a test that cannot fail proves nothing"
