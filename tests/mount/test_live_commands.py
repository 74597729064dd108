"""The commands on a running array: what they say of it, and their exit statuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

CHUNK_BYTES = 64 << 10
WRITTEN_BYTES = 4 << 20


@pytest.fixture
def raid5(array: RealArray) -> RealArray:
    array.create("raid5", 4, "32MiB").mount()
    with array.image.open("r+b") as image:
        image.write(os.urandom(WRITTEN_BYTES))
    return array


def test_status_and_its_exit_statuses(
    raid5: RealArray, make_array: Callable[..., RealArray]
) -> None:
    status = raid5.ask("status", "ARRAY")
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
