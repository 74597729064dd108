"""fio with verification on the image: 4 KiB to 1 MiB, mixed, random and sequential.

fio writes, remembers a CRC-32C for each block, and reads all of it back at the end.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import Completed, RealArray

pytestmark = [pytest.mark.mount]

MIB = 1 << 20
SIZE_BYTES = 16 * MIB  # of each of fio's jobs
JOBS = (  # what fio does, one after the other, each on its own part of the image
    {"rw": "randrw", "rwmixread": 40, "bsrange": "4k-1m"},
    {"rw": "write", "bsrange": "4k-1m"},
    {"rw": "randwrite", "bs": "4k"},
    {"rw": "write", "bs": "1m"},
)
# To the byte: what a file takes and a device does not. Overlaps are checked as they come.
UNALIGNED = ({"rw": "randwrite", "bsrange": "4k-300k", "bs_unaligned": 1, "iodepth": 1},)
COMMON = {
    "ioengine": "libaio",
    "iodepth": 8,
    "direct": 1,
    "verify": "crc32c",
    "do_verify": 1,
    "verify_fatal": 1,
    "verify_backlog": 512,
    "allow_file_create": 0,
    "fallocate": "none",
    "randseed": 4711,
    "invalidate": 0,
}

Fio = Callable[..., dict[str, Any]]


@pytest.fixture
def fio(
    array: RealArray, command: Callable[..., Completed], need: Callable[..., None], scale: float
) -> Fio:
    """Return a function that runs all of JOBS on a file or device; return their sums."""
    need("fio")

    def run(target: str | Path, jobs: tuple[dict[str, Any], ...] = JOBS) -> dict[str, Any]:
        size_bytes = int(SIZE_BYTES * scale) // MIB * MIB
        lines = ["[global]", f"filename={target}", f"size={size_bytes}"]
        lines += [f"{name}={value}" for name, value in COMMON.items()]
        for number, job in enumerate(jobs):
            lines += [f"[job{number}]", "stonewall", f"offset={number * size_bytes}"]
            lines += [f"{name}={value}" for name, value in job.items()]
        file = array.folder / "verify.fio"
        file.write_text("\n".join(lines) + "\n")
        # fio leaves its state file in the working directory.
        words = ["env", "-C", array.folder, "fio", "--output-format=json", file]
        done = command(*words, timeout_s=300 * max(1.0, scale))
        found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        assert [job["error"] for job in found] == [0] * len(jobs)
        return {
            "read": sum(job["read"]["io_bytes"] for job in found),
            "written": sum(job["write"]["io_bytes"] for job in found),
        }

    return run


def member_size(scale: float) -> str:
    """Return the size of the members so that two of them hold all jobs."""
    return f"{int(64 * max(1.0, scale))}MiB"


@pytest.mark.parametrize(("layout", "width"), [("raid0", 3), ("raid5", 4), ("raid1", 2)])
def test_fio_verifies_on_the_file(
    array: RealArray, fio: Fio, scale: float, layout: str, width: int
) -> None:
    array.create(layout, width, "128MiB" if layout == "raid1" else member_size(scale)).mount()
    sums = fio(array.image)
    assert sums["written"] >= 3 * SIZE_BYTES
    assert sums["read"] >= sums["written"]  # all of it was verified
    if layout != "raid0":
        array.scrub()
    array.unmount()


def test_fio_verifies_writes_of_odd_sizes(array: RealArray, fio: Fio, scale: float) -> None:
    array.create("raid5", 4, member_size(scale)).mount()
    sums = fio(array.image, UNALIGNED)
    assert sums["read"] >= sums["written"] > SIZE_BYTES // 2
    array.scrub()
    array.unmount()


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid1", 2)])
def test_fio_verifies_while_a_member_fails(
    array: RealArray, fio: Fio, scale: float, layout: str, width: int
) -> None:
    array.create(layout, width, "128MiB" if layout == "raid1" else member_size(scale)).mount()
    problems: list[BaseException] = []

    def fail() -> None:
        try:
            array.await_written(int(SIZE_BYTES * scale) // 2)
            array.fail(0)
        except BaseException as error:
            problems.append(error)

    failer = threading.Thread(target=fail)
    failer.start()
    try:
        sums = fio(array.image)
    finally:
        failer.join()
    assert not problems, problems
    assert sums["read"] >= sums["written"] >= 3 * SIZE_BYTES
    assert array.status()["state"] == "degraded"
    if layout != "raid1":  # a replica's reads are no reconstructions
        assert array.counters()["degraded_reads"] > 0
    array.replace(0, "--wait")
    array.scrub()
    array.unmount()
