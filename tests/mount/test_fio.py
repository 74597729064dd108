"""fio with verification on the image: 4 KiB to 1 MiB, mixed, random and sequential.

fio writes, remembers a CRC-32C for each block, and reads all of it back at the end.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.mount.real_array import SCALE, RealArray, need, run

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

MEMBER = f"{int(64 * max(1.0, SCALE))}MiB"  # two of them hold all jobs


def fio(array: RealArray, jobs: tuple[dict[str, Any], ...] = JOBS) -> tuple[int, int]:
    """Run *jobs* on the image; return how many bytes they have read and written."""
    size_bytes = int(SIZE_BYTES * SCALE) // MIB * MIB
    lines = ["[global]", f"filename={array.image}", f"size={size_bytes}"]
    lines += [f"{name}={value}" for name, value in COMMON.items()]
    for number, job in enumerate(jobs):
        lines += [f"[job{number}]", "stonewall", f"offset={number * size_bytes}"]
        lines += [f"{name}={value}" for name, value in job.items()]
    file = array.folder / "verify.fio"
    file.write_text("\n".join(lines) + "\n")
    # fio leaves its state file in the working directory.
    words = ["env", "-C", array.folder, "fio", "--output-format=json", file]
    done = run(*words, timeout_s=300 * max(1.0, SCALE))
    found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert [job["error"] for job in found] == [0] * len(jobs)
    read, written = (sum(job[way]["io_bytes"] for job in found) for way in ("read", "write"))
    return read, written


def test_fio_verifies_on_the_file(array: RealArray) -> None:
    need("fio")
    array.create("raid0", 3, MEMBER).mount()
    read, written = fio(array)
    assert read >= written >= 3 * SIZE_BYTES  # all of it was verified
    array.unmount()


def test_fio_verifies_writes_of_odd_sizes(array: RealArray) -> None:
    need("fio")
    array.create("raid5", 4, MEMBER).mount()
    read, written = fio(array, UNALIGNED)
    assert read >= written > SIZE_BYTES // 2
    array.scrub()
    array.unmount()


@pytest.mark.parametrize(("layout", "width"), [("raid5", 4), ("raid1", 2)])
def test_fio_verifies_while_a_member_fails(array: RealArray, layout: str, width: int) -> None:
    need("fio")
    array.create(layout, width, "128MiB" if layout == "raid1" else MEMBER).mount()
    problems: list[BaseException] = []

    def fail() -> None:
        try:
            array.await_written(int(SIZE_BYTES * SCALE) // 2)
            array.fail(0)
        except BaseException as error:
            problems.append(error)

    failer = threading.Thread(target=fail)
    failer.start()
    try:
        read, written = fio(array)
    finally:
        failer.join()
    assert not problems, problems
    assert read >= written >= 3 * SIZE_BYTES
    assert array.status()["state"] == "degraded"
    if layout != "raid1":  # a replica's reads are no reconstructions
        assert array.counters()["degraded_reads"] > 0
    array.replace(0, "--wait")
    array.scrub()
    array.unmount()
