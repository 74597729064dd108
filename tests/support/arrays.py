"""A rig for tests: an array over RAM members, and a bytearray as the model of its content.

A script is a list of tuples whose first item names the step (see the ``_step_`` methods); fractions
choose positions. Everything runs in virtual time, so a script replays exactly.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.errors import BusyError, RaidxError, UsageError
from raidx_fuse.format.create import create_array, shape
from raidx_fuse.jobs.job import Job
from raidx_fuse.layouts.codes.code import LayoutError
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.store.io_tuples import MemberLostError

MEMBER_OVERHEAD_BYTES = 2 << 20
UNLIKE_OVERHEAD_BYTES = 296 << 10  # little, so that members really differ
LOG_BYTES = 256 << 10
STEP_TIMEOUT_S = 3600.0


def small_log(
    layout: str, member_bytes: int, width: int, chunk_bytes: int, params: Mapping[str, Any]
) -> int:
    """Return the size of a log that tests fill in little time: LOG_BYTES where that is possible.

    Tiny members have less, large ones and those with large stripes more.
    """
    wanted = max(min(LOG_BYTES, member_bytes // 8), member_bytes // 32)
    sizes = [member_bytes] * width
    try:
        regions, _ = shape(layout, sizes, chunk_bytes, params, log_bytes=wanted)
    except UsageError:
        regions, _ = shape(layout, sizes, chunk_bytes, params)
    except LayoutError:
        return wanted  # creation says what is wrong
    return regions.log.length


async def ram_array(
    layout: str, width: int, size_bytes: int = 1 << 20, *, chunk_bytes: int = 4096, **options: Any
) -> list[RamMember]:
    """Make an array called disk of RAM members; return them."""
    members = [RamMember(size_bytes, name=f"d{number}") for number in range(width)]
    await create_array(members, layout, name="disk", now_s=0, chunk_bytes=chunk_bytes, **options)
    return members


async def jobs_ended(array: Array) -> None:
    """Wait until each job that runs now has ended."""
    for job in array.jobs.running():
        await job.finished.wait()


async def job_ended(job: Job, state: str = "done") -> None:
    """Wait until *job* has ended, and assert that it did so in *state*."""
    with trio.fail_after(STEP_TIMEOUT_S):
        await job.finished.wait()
    assert job.state == state, job.status()


async def parity_holds(array: Array) -> None:
    """Scrub, and assert that nothing wrong was found in what can be checked."""
    result = await array.jobs.wait(await array.start_scrub(repair=False))
    assert result["state"] == "done", result
    assert result["mismatches"] == 0, result["findings"]


class Rig:
    """An array of *width* RAM members wrapped for faults, and its *model*.

    *member_chunks*, the approximate chunks of each member, makes members of different sizes;
    *params* are the layout's.
    *slow* puts every member behind a disk model, so that requests suspend and interleave;
    *reads_zero* false fills the members with garbage first, as a used disk would be.
    """

    image_bytes: int | None = None  # less than the members can hold

    def __init__(
        self,
        layout: str,
        width: int,
        *,
        chunk_bytes: int = 4096,
        stripes: int = 24,
        rows: int = 1,
        slow: bool = False,
        reads_zero: bool = True,
        member_chunks: Sequence[int] = (),
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.layout = layout
        self.params = params or {}
        self.member_chunks = member_chunks
        self.width = width
        self.chunk_bytes = chunk_bytes
        self.member_bytes = MEMBER_OVERHEAD_BYTES + stripes * rows * chunk_bytes
        self.slow = slow
        self.reads_zero = reads_zero
        self.model = bytearray()
        self._array: Array | None = None
        self.members: list[FaultMember] = []
        self.vanished: list[FaultMember] = []
        self._made = 0
        self._stack = AsyncExitStack()

    @property
    def is_open(self) -> bool:
        """Whether there is an array."""
        return self._array is not None

    @property
    def array(self) -> Array:
        """The array, which is open."""
        assert self._array is not None
        return self._array

    def new_member(self, role: int | None = None) -> FaultMember:
        """Return a fresh member of the rig's kind; of unlike ones the *role*'s or largest."""
        size = self.member_bytes
        if self.member_chunks:
            chunks = max(self.member_chunks) if role is None else self.member_chunks[role]
            size = UNLIKE_OVERHEAD_BYTES + chunks * self.chunk_bytes
        ram = RamMember(size, name=f"ram{self._made}")
        if not self.reads_zero:
            noise = random.Random(self._made).randbytes(4096)
            for at in range(0, size, 4096):
                ram.memory[at : at + 4096] = noise[: size - at]
            ram.reads_zero = False
        inner = model_member(ram, "ssd", seed=self._made) if self.slow else ram
        self._made += 1
        return FaultMember(inner)

    async def open(self) -> Array:
        """Assemble and start the array."""
        self._array = await self._stack.enter_async_context(open_array(list(self.members)))
        return self._array

    async def close(self) -> None:
        """Close the array cleanly; the members stay."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        self._array = None

    async def reopen(self) -> Array:
        """Close the array cleanly and start it again."""
        await self.close()
        return await self.open()

    async def create(self, filled: float = 0.0) -> Array:
        """Make members and array, *filled* to a share; the model is as large as the image."""
        self.members = [self.new_member(role) for role in range(self.width)]
        await create_array(
            self.members,
            self.layout,
            chunk_bytes=self.chunk_bytes,
            name="rig",
            now_s=0,
            overwrite_signature=not self.reads_zero,
            params=self.params,
            size_bytes=self.image_bytes,
            log_bytes=small_log(
                self.layout,
                min(member.size_bytes for member in self.members),
                self.width,
                self.chunk_bytes,
                self.params,
            ),
        )
        array = await self.open()
        self.model = bytearray(array.size_bytes)
        if filled:
            await self.fill(filled)
        return array

    async def fill(self, share: float = 1.0, seed: int = 1) -> None:
        """Write a *share* of the image, chunk by chunk; all of it in one large write."""
        rng = random.Random(seed)
        size = len(self.model) if share == 1.0 else self.chunk_bytes
        for at in range(0, len(self.model), size):
            if share == 1.0 or rng.random() < share:
                await self.put(at, rng.randbytes(min(size, len(self.model) - at)))

    async def put(self, offset: int, data: bytes) -> None:
        """Write to the array and to the model."""
        await self.array.write(offset, data)
        self.model[offset : offset + len(data)] = data

    async def discard(self, offset: int, length: int) -> None:
        """Discard in the array, and write zeros to the model."""
        await self.array.discard(offset, length)
        self.model[offset : offset + length] = bytes(length)

    async def play(self, script: Sequence[tuple[Any, ...]], *, damage: bool = False) -> None:
        """Run *script*, then compare every byte; *damage* breaks one byte first (it must show)."""
        array = await self.create()
        try:
            for step in script:
                perform = getattr(self, f"_step_{step[0]}")(*step[1:])
                if step[0] == "remount":  # opens and closes nurseries: no scope may cross that
                    await perform
                else:
                    with trio.fail_after(STEP_TIMEOUT_S):  # virtual: a deadlock, not slowness
                        await perform
            if damage:
                ram = self.members[0]
                offset = array.member_set.data_offset
                buffer = bytearray(1)
                await ram.readv(offset, [buffer])
                await ram.writev(offset, [bytes([buffer[0] ^ 1])])
            await self.compare()
            await self.close()
            await self.open()
            await self.compare()
        finally:
            await self.close()

    async def compare(self) -> None:
        """Assert that the whole image equals the model."""
        step = 1 << 18
        for at in range(0, len(self.model), step):
            expected = self.model[at : at + step]
            got = bytes(await self.array.read(at, len(expected)))
            if got != expected:
                wrong = next(i for i in range(len(got)) if got[i] != expected[i])
                raise AssertionError(f"the image differs from the model at byte {at + wrong}")

        await self.check_cache()

    async def check_cache(self) -> None:
        """Assert that every cached page, asked for or not, is what the array holds."""
        context = self.array.context
        chunk_bytes = context.chunk_bytes
        for address, content in [] if context.cache is None else context.cache.items():
            if address >= 0:
                expected = bytes(self.model[address : address + len(content)])
            else:
                stripe, parity = divmod((-address - 1) // chunk_bytes, context.code.parity_count)
                role, position = context.position(stripe, context.code.data_count + parity)
                if role in context.member_set.lost_at(stripe):
                    continue
                buffer = memoryview(bytearray(len(content)))
                place = position + (address & context.chunk_bytes - 1)
                try:
                    await context.member_set.read([(role, place, [buffer], len(buffer))])
                except MemberLostError:
                    continue
                expected = bytes(buffer)
            assert content == expected, f"the cached page at {address} differs"

    # -- steps ---------------------------------------------------------------------------------

    def _range(self, where: float, size: float, unit: int = 1) -> tuple[int, int]:
        total = len(self.model) // unit
        # Mostly small, sometimes several stripes: the square favours small sizes.
        length = max(1, int(size * size * min(total, 6 * self.width * self.chunk_bytes // unit)))
        start = int(where * (total - length + 1))
        return start * unit, length * unit

    async def _step_write(self, where: float, size: float, seed: int) -> None:
        start, length = self._range(where, size)
        await self.put(start, random.Random(seed).randbytes(length))

    async def _step_sectors(self, where: float, size: float, seed: int) -> None:
        start, length = self._range(where, size, 512)
        await self.put(start, random.Random(seed).randbytes(length))

    async def _step_discard(self, where: float, size: float, unit: int) -> None:
        """Discard a range of whole *unit* bytes."""
        await self.discard(*self._range(where, size, unit))

    async def _step_read(self, where: float, size: float) -> None:
        start, length = self._range(where, size)
        got = bytes(await self.array.read(start, length))
        assert got == self.model[start : start + length], f"read at {start} differs"

    async def _step_parallel(self, where: float, size: float, seed: int) -> None:
        """Several neighbouring writes at once, in one or more stripes, and reads beside them."""
        array = self.array
        start, length = self._range(where, size)
        pieces: list[tuple[int, bytes]] = []
        at = start
        rng = random.Random(seed)
        while at < start + length and len(pieces) < 8:
            end = min(start + length, at + rng.randint(1, max(2, length // 3)))
            pieces.append((at, rng.randbytes(end - at)))
            at = end
        async with trio.open_nursery() as nursery:
            for offset, data in pieces:
                nursery.start_soon(array.write, offset, data)
                nursery.start_soon(array.read, offset, len(data))
        for offset, data in pieces:
            self.model[offset : offset + len(data)] = data

    async def _step_flush(self) -> None:
        await self.array.flush()

    def _can_lose(self) -> bool:
        member_set = self.array.member_set
        # A member that vanished counts although the array may not have noticed yet.
        gone = {r for r, q in enumerate(member_set.queues) if q and q.member in self.vanished}
        return len(member_set.lost | gone) < self.array.context.code.tolerance

    async def _step_fail(self, role: int) -> None:
        role %= self.width
        if self._can_lose() and role not in self.array.member_set.lost:
            await self.array.fail_disk(role)

    async def _step_eio(self, role: int, writes: bool) -> None:
        """From now on every read or write of one member fails."""
        role %= self.width
        queue = self.array.member_set.queues[role]
        if self._can_lose() and queue is not None and role not in self.array.member_set.lost:
            member = queue.member
            assert isinstance(member, FaultMember)
            member.vanish()
            self.vanished.append(member)

    async def _step_replace(self) -> None:
        """Replace the first failed role by a new member."""
        for record in self.array.member_set.config.members:
            running = [job for job in self.array.jobs.running() if job.kind == "rebuild"]
            if record.role >= 0 and record.state in ("failed", "missing") and not running:
                member = self.new_member()
                with contextlib.suppress(BusyError):  # a spare was quicker
                    await self.array.replace_disk(record.role, member)
                    self.members.append(member)
                return

    async def _step_spare(self) -> None:
        spares = [r for r in self.array.member_set.config.members if r.state == "spare"]
        if self.array.context.code.tolerance and not spares:
            member = self.new_member()
            self.members.append(member)
            await self.array.add_spare(member)

    async def _step_settle(self) -> None:
        """Wait for every running job."""
        for job in self.array.jobs.running():
            await job.finished.wait()
            assert job.state in ("done", "failed"), job.status()

    async def _step_scrub(self) -> None:
        await self._step_settle()
        try:
            job_id = await self.array.start_scrub(repair=False)
        except RaidxError:
            return
        result = await self.array.jobs.wait(job_id)
        assert result["state"] == "done", result
        assert result["mismatches"] == 0, result["findings"]

    async def _step_remount(self, clean: bool) -> None:
        await self.reopen()

    async def _step_cache(self, size_bytes: int) -> None:
        await self.array.set("cache.size", str(size_bytes))

    async def _step_policy(self, name: str) -> None:
        await self.array.set("parity.policy", name)
