"""Arrays over exports that err, shut down and end: nbdkit with filters under members."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.open import open_export
from tests.support.nbd_real import running

SIZE_BYTES = 6 << 20
PAGE = 4096
WAIT_S = 60.0


class Servers:
    """nbdkit on files in *folder*, number 0 with *filters* and *options*."""

    def __init__(self, folder: Path, filters: Sequence[str], options: Sequence[str]) -> None:
        if shutil.which("nbdkit") is None:
            pytest.skip("nbdkit is not installed")
        known = subprocess.run(["nbdkit", "--dump-config"], capture_output=True, text=True)
        (place,) = re.findall(r"filterdir=(.*)", known.stdout)
        for name in filters:
            if not Path(place, f"nbdkit-{name}-filter.so").exists():
                pytest.skip(f"this nbdkit has no filter {name!r}")
        self.folder = folder
        self._filters = [f"--filter={name}" for name in filters]
        self._options = options
        self._stack = ExitStack()
        self.first: subprocess.Popen[bytes] | None = None

    def start(self, number: int) -> None:
        """Start a server; it ends with the test."""
        disk, place = self.folder / f"m{number}", self.folder / f"s{number}"
        if not disk.exists():
            disk.touch()
            os.truncate(disk, SIZE_BYTES)
        command = ["nbdkit", "-f", "-U", str(place)]
        command += [*self._filters, "file", str(disk), *self._options]
        if number:
            command = ["nbdkit", "-f", "-U", str(place), "file", str(disk)]
        process = self._stack.enter_context(running(command, place))
        if not number:
            self.first = process

    @contextmanager
    def members(self, count: int) -> Iterator[list[Member]]:
        """Open all members until the end of the block."""
        socket = f"nbd+unix:///disk?socket={self.folder}/s"
        with ExitStack() as stack:
            opened: list[Member] = []
            for number in range(count):
                opened.append(open_export(f"{socket}{number}"))
                stack.callback(opened[-1].close)
            yield opened

    def close(self) -> None:
        self._stack.close()


Start = Callable[[Sequence[str], Sequence[str]], Servers]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Start]:
    made: list[Servers] = []

    def make(filters: Sequence[str], options: Sequence[str]) -> Servers:
        made.append(Servers(tmp_path, filters, options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Load:
    """Tasks that write pages of *array* at random, and read what they wrote before."""

    def __init__(self, array: Array, seed: int) -> None:
        self._array = array
        self._chance = random.Random(seed)
        self._pages: dict[int, int] = {}
        self.steps = self._wanted = 0
        self.ended = False
        self._reached = trio.Event()

    async def run(self, tasks: int = 6) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(self._work, number, tasks)

    async def _work(self, number: int, tasks: int) -> None:
        array, chance = self._array, self._chance
        while not self.ended:
            page = chance.randrange(100) * tasks + number
            if chance.random() < 0.6:
                value = chance.randrange(1, 256)
                await array.write(page * PAGE, bytes([value]) * PAGE)
                self._pages[page] = value
            elif chance.random() < 0.1:
                await array.flush()
            else:
                await self._check(page)
            self.steps += 1
            if self.steps >= self._wanted:
                self._reached.set()
            await trio.lowlevel.checkpoint()

    async def _check(self, page: int) -> None:
        expected = bytes([self._pages.get(page, 0)]) * PAGE
        assert await self._array.read(page * PAGE, PAGE) == expected, page

    async def verify(self) -> None:
        for page in self._pages:
            await self._check(page)

    async def go_on(self, steps: int) -> None:
        """Return when so many more steps are done."""
        self._wanted, self._reached = self.steps + steps, trio.Event()
        with trio.fail_after(WAIT_S):
            await self._reached.wait()


async def under_load(
    servers: Servers, layout: str, count: int, story: Callable[[Array, Load], Awaitable[None]]
) -> None:
    """Make an array, and tell *story* while it is used; then every byte is there, also at once."""
    for number in range(count):
        servers.start(number)
    with servers.members(count) as members:
        await create_array(members, layout, name="disk", now_s=0, chunk_bytes=PAGE)
        await _used(members, story)


async def _used(members: Sequence[Member], story: Callable[[Array, Load], Awaitable[None]]) -> None:
    async with open_array(members) as array:
        load = Load(array, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await load.go_on(100)
            await story(array, load)
            load.ended = True
        await array.flush()
        await load.verify()


def states(array: Array) -> list[str]:
    return [member["state"] for member in array.status()["members"]]


def test_a_server_that_errs_now_and_then_costs_no_byte(
    servers: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is tried once more; a member that errs twice may be excluded, the data is right."""
    options = ["error-pread-rate=20%", "error-pwrite-rate=5%", f"error-file={tmp_path}/errs"]

    async def story(array: Array, load: Load) -> None:
        (tmp_path / "errs").touch()
        await load.go_on(600)
        assert "trying once more" in caplog.text
        (tmp_path / "errs").unlink()

    trio.run(under_load, servers(["error", "delay"], [*options, "wdelay=1ms"]), "raid5", 3, story)


@pytest.mark.parametrize(
    ("filters", "options"),
    [
        (["retry-request", "error"], ["retry-request-delay=1", "error-rate=100%"]),
        (["retry", "error"], ["retry-delay=1", "error-rate=100%"]),  # it opens its disk again
        (["limit", "delay"], ["limit=1", "delay-write=1ms"]),  # of several connections one stays
        (["fua", "blocksize"], ["fuamode=emulate", "minblock=512", "maxdata=8k"]),
    ],
    ids=lambda value: "+".join(value),
)
def test_a_server_behind_filters_stays_a_member(
    servers: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    filters: list[str],
    options: list[str],
) -> None:
    """A server that tries again after an error answers late; nothing of it is seen here."""
    if "error" in filters:
        options = [*options, f"error-file={tmp_path}/errs"]

    async def story(array: Array, load: Load) -> None:
        (tmp_path / "errs").touch()
        await trio.sleep(0.1)
        (tmp_path / "errs").unlink()
        await load.go_on(300)
        assert states(array) == ["active"] * 3
        assert "trying once more" not in caplog.text

    trio.run(under_load, servers(filters, options), "raid5", 3, story)


def test_a_server_that_says_it_shuts_down_is_asked_again(servers: Start, tmp_path: Path) -> None:
    """ESHUTDOWN is no error of the disk: the request goes to the next connection."""
    options = ["error=ESHUTDOWN", "error-rate=100%", f"error-file={tmp_path}/down"]

    async def story(array: Array, load: Load) -> None:
        for _ in range(3):
            (tmp_path / "down").touch()
            await trio.sleep(0.05)
            (tmp_path / "down").unlink()
            await load.go_on(60)
        assert states(array) == ["active"] * 3

    trio.run(under_load, servers(["error"], options), "raid5", 3, story)


def test_a_server_that_is_told_to_end_and_is_started_again_loses_nothing(servers: Start) -> None:
    """As by a supervisor: it says that it shuts down, ends, and another process follows."""
    made = servers([], [])

    async def story(array: Array, load: Load) -> None:
        before = made.first
        assert before is not None
        before.terminate()
        with trio.fail_after(WAIT_S):
            await trio.to_thread.run_sync(before.wait, abandon_on_cancel=True)
        made.start(0)
        await load.go_on(200)
        assert states(array) == ["active"] * 3

    trio.run(under_load, made, "raid5", 3, story)
