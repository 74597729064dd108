"""The commands on a running array: their JSON as INTERFACE promises it, their exit statuses.

A shape is a dict of name to type, to a shape, or to a list of one shape; more names are allowed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

CHUNK_BYTES = 64 << 10
WRITTEN_BYTES = 4 << 20
NUMBER = (int, float)

JOB = {
    "kind": str,
    "done": int,
    "total": int,
    "unit": str,
    "rate": NUMBER,
    "eta_seconds": (int, float, type(None)),
    "paused": bool,
}
STATUS = {
    "output_version": int,
    "uuid": str,
    "name": str,
    "layout": str,
    "chunk_size": int,
    "size": int,
    "state": str,
    "redundancy_left": int,
    "members": [{"role": int, "path": str, "uuid": str, "state": str, "size": int}],
    "jobs": [JOB],
    "volumes": [{"name": str, "size": int, "path": str}],
}
STATS = {
    "output_version": int,
    "interval_seconds": NUMBER,
    "members": [
        {
            "role": int,
            "path": str,
            "reads": int,
            "writes": int,
            "read_bytes": int,
            "write_bytes": int,
            "queue_mean": NUMBER,
            "utilisation": NUMBER,
            "read_ms_mean": NUMBER,
            "write_ms_mean": NUMBER,
        }
    ],
    "array": {
        "reads": int,
        "writes": int,
        "read_bytes": int,
        "write_bytes": int,
        "latency_ms": {"mean": NUMBER, "p50": NUMBER, "p95": NUMBER, "p99": NUMBER},
        "pre_reads": int,
        "rmw": int,
        "rcw": int,
        "full_stripe": int,
        "degraded_reads": int,
        "chunks_moved": int,
    },
}


def check_shape(found: Any, shape: Any, where: str = "") -> None:
    """Assert that *found* has at least what *shape* has."""
    if isinstance(shape, dict):
        for name, inner in shape.items():
            assert name in found, f"{where}.{name} is missing"
            check_shape(found[name], inner, f"{where}.{name}")
    elif isinstance(shape, list):
        assert isinstance(found, list), where
        for number, item in enumerate(found):
            check_shape(item, shape[0], f"{where}[{number}]")
    else:
        assert isinstance(found, shape), f"{where}: {found!r} is no {shape}"


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    """Return a mounted RAID-5 array of four with data at its beginning."""
    array.create("raid5", 4, "32MiB").mount()
    with array.image.open("r+b") as image:
        image.write(os.urandom(WRITTEN_BYTES))
    return array


def test_status_and_its_exit_statuses(
    raid5: RealArray, make_array: Callable[..., RealArray]
) -> None:
    status = raid5.ask("status", "ARRAY")
    check_shape(status, STATUS)
    assert (status["state"], status["redundancy_left"], status["jobs"]) == ("clean", 1, [])
    assert status["size"] == raid5.image.stat().st_size
    assert Path(status["socket"]).is_socket()
    assert "raidx" in Path(f"/proc/{status['pid']}/cmdline").read_text()
    assert Path(status["log_path"]).read_text()
    assert status["chunk_size"] == CHUNK_BYTES
    assert [member["path"] for member in status["members"]] == [str(m) for m in raid5.members]
    assert status["volumes"][0]["path"] == str(raid5.image)
    raid5.raidx("status", "ARRAY", "--check", status=0)
    raid5.fail(1)
    status = raid5.ask("status", "ARRAY", "--check", status=1)
    assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
    assert "raidx replace-disk" in status["action"]
    assert [member["state"] for member in status["members"]].count("failed") == 1
    assert "cannot be spared" in raid5.refused("fail-disk", "ARRAY", "2")
    raid5.raidx("status", make_array().mnt, "--check", status=4)
    page = raid5.raidx("status", "ARRAY").stdout
    assert "action:" in page
    brief = raid5.raidx("status", "ARRAY", "--brief").stdout
    assert "[4/3] [U_UU]" in brief


def test_errors_that_no_code_corrects_are_told(array: RealArray) -> None:
    array.create("raid0", 2, "16MiB").mount()
    content = os.urandom(WRITTEN_BYTES)
    with array.image.open("r+b", buffering=0) as image:
        image.write(content)
        os.truncate(array.members[1], 1 << 20)  # most of the disk is gone
        with pytest.raises(OSError, match="error"):
            os.pread(image.fileno(), CHUNK_BYTES, 21 * CHUNK_BYTES)
        kept = os.pread(image.fileno(), CHUNK_BYTES, 20 * CHUNK_BYTES)
    assert kept == content[20 * CHUNK_BYTES : 21 * CHUNK_BYTES]  # on the other member
    assert array.status()["members"][1]["errors"] > 0


def test_stats(raid5: RealArray) -> None:
    stats = raid5.ask("stats", "ARRAY")
    check_shape(stats, STATS)
    assert stats["array"]["write_bytes"] == WRITTEN_BYTES
    assert stats["array"]["full_stripe"] > 0
    assert sum(member["write_bytes"] for member in stats["members"]) > WRITTEN_BYTES
    interval = raid5.ask("stats", "ARRAY", "0.2")
    check_shape(interval, STATS)
    assert interval["array"]["write_bytes"] == 0  # nobody writes now
    assert 0.1 < interval["interval_seconds"] < 10
    assert "latency" in raid5.raidx("stats", "ARRAY").stdout


def test_explain_tells_what_a_write_then_does(raid5: RealArray) -> None:
    plan = raid5.ask("explain", "ARRAY", "64KiB", "4KiB", "--write")
    assert (plan["reads"], plan["writes"]) == (2, 2)  # old data and parity; new data and parity
    before = raid5.counters()
    with raid5.image.open("r+b", buffering=0) as image:
        os.pwrite(image.fileno(), b"\1" * 4096, CHUNK_BYTES)
    wanted, end_s = before["pre_reads"] + 2, time.monotonic() + 60
    while raid5.counters()["pre_reads"] < wanted and time.monotonic() < end_s:
        time.sleep(0.1)  # the parity, with its pre-reads, follows at the checkpoint
    assert raid5.counters()["pre_reads"] == wanted
    reading = raid5.ask("explain", "ARRAY", "0", "1MiB")
    assert reading["reads"] >= 4
    assert "xor" in raid5.raidx("explain", "ARRAY", "64KiB", "4KiB", "--write").stdout
    assert "image" in raid5.refused("explain", "ARRAY", "1TiB", status=2)


def test_the_cache_answers_and_is_counted_in_writes(raid5: RealArray) -> None:
    raid5.raidx("set", "ARRAY", "cache.size=4MiB")
    with raid5.image.open("r+b", buffering=0) as image:
        content = os.pread(image.fileno(), 65536, 0)
        before = raid5.counters()
        assert os.pread(image.fileno(), 65536, 0) == content
        assert raid5.counters()["cache"]["hits"] > before["cache"]["hits"]
        assert raid5.counters()["cache"]["misses"] == before["cache"]["misses"]
        os.pwrite(image.fileno(), b"\1" * 4096, 0)  # leaves data and parity there
        plan = raid5.ask("explain", "ARRAY", "0", "4KiB", "--write")
        assert plan["reads"] == 0
        assert all(place["cached"] for place in plan["stripes"][0]["bands"][0]["reads"])
        before = raid5.counters()
        os.pwrite(image.fileno(), b"\2" * 4096, 0)
        after = raid5.counters()
        assert after["pre_reads"] == before["pre_reads"]
        assert after["cache"]["pre_reads_spared"] > before["cache"]["pre_reads_spared"]
    assert "cached" in raid5.raidx("explain", "ARRAY", "0", "4KiB", "--write").stdout
    assert "reads hit" in raid5.raidx("stats", "ARRAY").stdout
    raid5.raidx("set", "ARRAY", "cache.size=0")
    with raid5.image.open("rb", buffering=0) as image:
        assert os.pread(image.fileno(), 65536, 0) == b"\2" * 4096 + content[4096:]
    raid5.scrub()


def test_settings_take_effect_and_stay(raid5: RealArray) -> None:
    every = raid5.ask("get", "ARRAY")["settings"]
    assert {"parity.policy", "speed_min", "speed_max"} <= set(every)
    assert raid5.ask("set", "ARRAY", "speed_max=3MiB")["settings"] == {"speed_max": 3 << 20}
    raid5.raidx("set", "ARRAY", "parity.policy=rmw")
    assert raid5.ask("get", "ARRAY", "parity.policy")["settings"] == {"parity.policy": "rmw"}
    assert "did you mean speed_max" in raid5.refused("set", "ARRAY", "speedmax=1", status=2)
    raid5.unmount()
    raid5.mount()
    again = raid5.ask("get", "ARRAY")["settings"]
    moving = {f"bpu.t_{name}" for name in ("light", "heavy", "skew")}  # derived from measurements
    assert {key: value for key, value in again.items() if key not in moving} == {
        **{key: value for key, value in every.items() if key not in moving},
        "speed_max": 3 << 20,
        "parity.policy": "rmw",
    }


def test_bpu_is_set_and_reported_live(raid5: RealArray) -> None:
    raid5.raidx("set", "ARRAY", "parity.policy=bpu")
    assert raid5.ask("set", "ARRAY", "bpu.t_light=250us")["settings"] == {"bpu.t_light": 250e-6}
    assert "bpu.t_light" in raid5.refused("get", "ARRAY", "bpu.auto", status=2)
    counts = raid5.ask("stats", "ARRAY")["array"]["bpu"]
    assert counts["thresholds"]["t_light_s"] == 250e-6
    assert sum(counts["of_time"].values()) == pytest.approx(1)
    assert "T_light 0.250 ms" in raid5.raidx("stats", "ARRAY").stdout
    assert "not a time" in raid5.refused("set", "ARRAY", "bpu.t_light=soon", status=2)


def test_scrub_finds_repairs_and_reports(raid5: RealArray) -> None:
    assert raid5.scrub()["total"] > 0
    raid5.unmount()
    offset = raid5.ask("examine", raid5.members[2])["members"][0]["regions"]["data"][0]
    with raid5.members[2].open("r+b") as member:
        member.seek(offset + 5 * CHUNK_BYTES + 100)
        member.write(b"rot!" * 5)
    found = raid5.ask("check", *raid5.members, status=1)
    assert not found["ok"]
    assert found["problems"][0]["stripe"] == 5
    raid5.mount()
    job = raid5.ask("scrub", "ARRAY", "--check", "--wait", status=3)
    assert (job["mismatches"], job["uncorrected"]) == (1, 1)
    assert job["findings"][0]["stripe"] == 5
    job = raid5.ask("scrub", "ARRAY", "--repair", "--wait")
    assert (job["repaired"], job["uncorrected"]) == (1, 0)
    raid5.scrub()
    raid5.unmount()
    assert raid5.ask("check", *raid5.members)["ok"]


def test_examine_while_mounted_and_check_only_at_rest(raid5: RealArray) -> None:
    members = raid5.ask("examine", *raid5.members)["members"]
    assert [member["role"] for member in members] == [0, 1, 2, 3]
    assert {member["array_uuid"] for member in members} == {raid5.status()["uuid"]}
    assert str(raid5.members[0]) in raid5.refused("check", *raid5.members)
    raid5.unmount()
    assert raid5.ask("check", *raid5.members)["problems"] == []


def test_spare_takes_over_by_itself(raid5: RealArray) -> None:
    spare = raid5.folder / "spare.img"
    raid5.raidx("add-disk", "ARRAY", spare, "--as", "spare", "--create")
    assert raid5.status()["members"][4]["state"] == "spare"
    raid5.fail(0)
    end_s = time.monotonic() + 30
    while not raid5.jobs():  # the spare takes the role a moment later
        assert time.monotonic() < end_s
        time.sleep(0.05)
    raid5.wait_jobs()
    status = raid5.status()
    assert status["state"] == "clean"
    assert status["members"][0]["path"] == str(spare)
    raid5.scrub()


def test_dry_runs_change_nothing(raid5: RealArray) -> None:
    events = raid5.status()["events"]
    new = raid5.folder / "new.img"
    for words in (
        ("fail-disk", "ARRAY", "1"),
        ("replace-disk", "ARRAY", "1", new, "--create"),
        ("add-disk", "ARRAY", new, "--as", "spare", "--create"),
    ):
        planned = raid5.ask(*words, "--dry-run")
        assert planned["dry_run"] is True
        assert {"bytes_moved", "seconds", "redundancy_reduced_seconds"} <= set(planned)
    assert not new.exists()
    assert raid5.status()["events"] == events


def test_signature_is_not_overwritten(raid5: RealArray) -> None:
    taken = raid5.folder / "taken.img"
    content = bytearray(64 << 20)
    content[1080:1082] = b"\x53\xef"  # ext4's magic
    taken.write_bytes(content)
    line = raid5.refused("replace-disk", "ARRAY", "1", taken)
    assert "--overwrite-signature" in line
    assert taken.read_bytes() == content
    assert raid5.status()["state"] == "clean"
