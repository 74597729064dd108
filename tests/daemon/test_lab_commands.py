"""`inject` and `crash` on arrays of RAM members, in virtual time, without a mount."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.dispatch import Dispatcher
from raidx_fuse.daemon.commands.lab import FAULTS, LabCommands
from raidx_fuse.errors import AmbiguousError, RaidxError, Reason, UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.lab_member import LabMember
from tests.daemon.conftest import Shelf
from tests.support.arrays import Rig
from tests.support.reasons import because
from tests.support.rigs import MakeRig

MEMBER_BYTES = 4 << 20
CHUNK = 4096
TEXT = b"The quick brown fox " * 2048  # ten stripes of two data chunks


class Bench:
    """A raid5 of three lab members (*lab*) or plain ones, with content, and its commands."""

    def __init__(self, lab: bool) -> None:
        self.rams = [RamMember(MEMBER_BYTES, name=f"ram{role}") for role in range(3)]
        self.members: list[Member] = [LabMember(ram) for ram in self.rams] if lab else [*self.rams]

    def start(self, array: Array) -> None:
        self.array = array
        lab = LabCommands([array], lambda: self.members, {"mountpoint": "/mnt"})
        self.commands = Dispatcher([ArrayCommands(array, [], Shelf(Rig("raid5", 3)))], lab=lab)

    async def ask(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return dict(await self.commands.handle(name, arguments))

    async def read_again(self, without: tuple[int, ...] = ()) -> bytes:
        """Return the content after a power cut, without some members."""
        left = [ram for role, ram in enumerate(self.rams) if role not in without]
        async with open_array(left, start_degraded=True) as array:
            return bytes(await array.read(0, len(TEXT)))


@asynccontextmanager
async def bench_of(*, lab: bool = True, journal: str = "partial") -> AsyncIterator[Bench]:
    bench = Bench(lab)
    await create_array(bench.rams, "raid5", chunk_bytes=CHUNK, name="bench", now_s=0)
    async with open_array(bench.members) as array:
        await array.set("journal", journal)
        await array.write(0, TEXT)
        await array.flush()
        bench.start(array)
        yield bench


@pytest.fixture
def bench(make_rig: MakeRig[Bench]) -> AbstractAsyncContextManager[Bench]:
    return make_rig(bench_of)


@pytest.mark.rig(lab=False)
async def test_nothing_can_be_broken_on_a_mount_that_was_not_made_for_it(bench: Bench) -> None:
    for fault in FAULTS:
        with pytest.raises(UsageError, check=because(Reason.NOT_LAB)):
            await bench.ask("inject", member="0", fault=fault)
    with pytest.raises(UsageError, match=r"crash is refused.*raidx mount --lab"):
        await bench.ask("crash")
    assert bytes(await bench.array.read(0, len(TEXT))) == TEXT
    assert (await bench.ask("status"))["lab"] is None
    assert "lab" not in await bench.ask("stats")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fault": "explode"}, "there is no fault 'explode'"),
        ({"fault": "rot", "at": MEMBER_BYTES}, f"byte {MEMBER_BYTES} is outside ram1"),
        ({"fault": "rot", "at": -1}, "byte -1 is outside ram1"),
        ({"fault": "rot", "at": MEMBER_BYTES - 1, "count": 2}, "beyond the end of ram1"),
        ({"fault": "bad-area", "at": 0, "count": 1 << 20}, "beyond the end of ram1"),
        ({"fault": "rot", "count": 0}, "a count of 0 is out of range"),
        ({"fault": "lose-write", "count": (1 << 20) + 1}, "is out of range"),
        ({"fault": "rot", "delay_s": 0.5}, "a delay is for slow, not for rot"),
        ({"fault": "slow", "delay_s": 0.0}, "a delay of 0 s is out of range"),
        ({"fault": "slow", "delay_s": 1e9}, "a delay of 1e"),
        ({"fault": "vanish", "count": 1}, "vanish is about the whole member"),
        ({"fault": "return", "at": 1}, "return is about the whole member"),
        ({"fault": "rot", "member": "7"}, "there is no role 7"),
        ({"fault": "rot", "in_array": "other"}, "there is no array other here"),
        ({"fault": "rot", "strength": 1}, "inject has no argument"),
    ],
)
async def test_impossible_faults_are_one_line(
    arguments: dict[str, Any], words: str, bench: Bench
) -> None:
    before = [bytes(ram.memory) for ram in bench.rams]
    with pytest.raises(UsageError, match=words) as caught:
        await bench.ask("inject", **{"member": "1", **arguments})
    assert "\n" not in str(caught.value)
    assert [bytes(ram.memory) for ram in bench.rams] == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keep": "most"}, "keep cannot be 'most'"),
        ({"writing": -1}, "outside the image"),
        ({"writing": 1 << 40}, "outside the image"),
        ({"writing": 0, "length": 0}, "length 0 is out of range"),
        ({"lose": ["9"]}, "there is no role 9"),
    ],
)
async def test_impossible_cuts_leave_the_power_on(
    arguments: dict[str, Any], words: str, bench: Bench
) -> None:
    with pytest.raises(UsageError, match=words):
        await bench.ask("crash", **arguments)
    await bench.array.write(0, TEXT)


async def test_rot_takes_a_written_place_by_the_seed_and_a_scrub_finds_it() -> None:
    places = []
    for seed in (1, 1, 2):
        async with bench_of() as bench:
            told = await bench.ask("inject", member="1", fault="rot", seed=seed)
            places.append(told["at"])
            ended = await bench.array.jobs.wait(await bench.array.start_scrub(repair=False))
            assert ended["mismatches"] == 1
    assert places[0] == places[1] != places[2]


async def test_a_bad_area_is_read_around(bench: Bench) -> None:
    told = await bench.ask("inject", member="0", fault="bad-area", seed=4)
    assert (told["length"], told["at"] % 512) == (4096, 0)
    assert bytes(await bench.array.read(0, len(TEXT))) == TEXT
    disk = bench.members[0]
    with pytest.raises(RaidxError, match="EIO"):
        await disk.readv(told["at"], [bytearray(512)])


@pytest.mark.parametrize("fault", ["lose-write", "torn-write", "misdirect"])
@pytest.mark.rig(journal="none")
async def test_a_write_that_goes_wrong_is_acknowledged(fault: str, bench: Bench) -> None:
    role, position = bench.array.context.position(*bench.array.context.layout.locate(0))
    told = await bench.ask(
        "inject", member=str(int(role)), fault=fault, at=position, seed=1, count=1
    )
    assert told["count"] == 1
    await bench.array.write(0, bytes(CHUNK))
    await bench.array.write(CHUNK, b"beside it")
    assert bytes(bench.rams[role].memory[position : position + CHUNK]) != bytes(CHUNK)
    assert bench.array.status()["state"] == "clean"


async def test_a_member_vanishes_and_returns(bench: Bench) -> None:
    await bench.ask("inject", member="2", fault="vanish")
    await bench.array.write(0, TEXT[::-1])
    await bench.array.flush()
    assert bench.array.status()["state"] == "degraded"
    await bench.ask("inject", member="2", fault="return")
    await bench.members[2].readv(0, [bytearray(512)])
    assert bytes(await bench.array.read(0, len(TEXT))) == TEXT[::-1]


async def test_the_status_names_the_faults_of_each_member(bench: Bench) -> None:
    assert [one["faults"] for one in (await bench.ask("status"))["lab"]] == [[], [], []]
    faults = ["bad-area", "lose-write", "hang", "vanish"]
    for fault in faults:
        await bench.ask("inject", member="1", fault=fault)
    told = (await bench.ask("status"))["lab"]
    assert [one["faults"] for one in told] == [
        [],
        ["bad-area", "lose-write", "hang", "vanish"],
        [],
    ]
    await bench.ask("inject", member="1", fault="return")
    assert (await bench.ask("status"))["lab"][1]["faults"] == []


async def test_on_a_pool_the_power_goes_for_all_arrays_and_faults_name_one(bench: Bench) -> None:
    lab = LabCommands([bench.array, bench.array], lambda: bench.members, {})
    both = Dispatcher([ArrayCommands(bench.array, [], Shelf(Rig("raid5", 3)))], lab=lab)
    with pytest.raises(AmbiguousError):
        await both.handle("inject", {"member": "0", "fault": "rot"})
    with pytest.raises(AmbiguousError):
        await both.handle("crash", {"writing": 0})
    members = [{"path": f"ram{role}"} for role in range(3)]
    status = {"arrays": [{"members": members[:1]}, {"members": members[1:]}]}
    first, second = lab.with_faults(status)["arrays"]
    assert [one["member"] for one in first["lab"] or ()] == ["ram0"]
    assert [one["member"] for one in second["lab"] or ()] == ["ram1", "ram2"]
    assert len((await both.handle("crash", {}))["cut"]) == 3


async def test_slow_and_hanging_operations_end_with_return(bench: Bench) -> None:
    await bench.ask("inject", member="0", fault="slow", delay_s=3.0, count=1)
    began_s = trio.current_time()
    await bench.members[0].readv(0, [bytearray(512)])
    assert trio.current_time() - began_s == 3.0
    await bench.ask("inject", member="0", fault="hang")
    with trio.move_on_after(100) as patience:
        await bench.members[0].readv(0, [bytearray(512)])
    assert patience.cancelled_caught
    await bench.ask("inject", member="0", fault="return")
    await bench.members[0].readv(0, [bytearray(512)])


async def _crashed(journal: str, seed: int, lost: tuple[int, ...]) -> tuple[dict[str, Any], bytes]:
    """Return the answer of a cut during a write to chunk 0, and the content after it."""
    async with bench_of(journal=journal) as bench:
        told = await bench.ask("crash", writing=0, seed=seed, lose=[str(role) for role in lost])
        return told, await bench.read_again(lost)


async def test_the_write_hole_without_a_log_and_none_with_it() -> None:
    """The member of chunk 1, to which nobody writes, is lost together with the power."""
    broken = 0
    for seed in range(12):
        _, found = await _crashed("none", seed, (1,))
        assert found[2 * CHUNK :] == TEXT[2 * CHUNK :]
        broken += found[CHUNK : 2 * CHUNK] != TEXT[CHUNK : 2 * CHUNK]
        told, found = await _crashed("partial", seed, (1,))
        assert found[CHUNK:] == TEXT[CHUNK:]
        assert found[:CHUNK] in (TEXT[:CHUNK], (b"NEW%d " % seed * CHUNK)[:CHUNK])  # no mixture
        assert told["lost_members"] == ["ram1"]
    assert 3 <= broken < 12


async def test_a_cut_repeats_by_its_seed_and_says_what_it_did() -> None:
    for seed in (1, 2, 3):
        assert await _crashed("none", seed, ()) == await _crashed("none", seed, ())
    told, _ = await _crashed("none", 1, ())
    assert told["again"] == {"mountpoint": "/mnt", "members": ["ram0", "ram1", "ram2"]}
    assert [cut["role"] for cut in told["cut"]] == [0, 1, 2]
    touched = [cut for cut in told["cut"] if cut["kept"] + cut["lost"] + cut["torn"]]
    assert len(touched) == 2  # data and parity


@pytest.mark.parametrize("keep", ["none", "all"])
async def test_what_was_flushed_stays_and_the_rest_is_as_told(keep: str, bench: Bench) -> None:
    await bench.array.write(CHUNK, b"flushed")
    await bench.array.flush()
    await bench.array.write(3 * CHUNK, b"open")
    await bench.ask("crash", keep=keep)
    found = await bench.read_again()
    assert found[CHUNK:].startswith(b"flushed")
    assert found[3 * CHUNK :].startswith(b"open") == (keep == "all")
