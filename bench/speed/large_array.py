"""What does a large, sparse array cost: memory of its daemon, creation, mounting, a rebuild?

    python bench/speed/large_array.py

A RAID-5 image of 1 TiB over four sparse files. The cost of creation and rebuild must depend on the
bytes that were written, not on the size of the image. So the rebuild of 1 TiB with 100 MiB written
is compared with that of 128 MiB with the same 100 MiB. The 100 MiB are pieces of 1 MiB, spread
evenly over the image.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep

import trio
from candidates import MEMBERS, MIB, RAIDX, Candidate
from lines import Line, print_lines

from raidx_fuse.array.open import open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.members.local import LocalMember, create_file

LARGE_MIB = 1 << 20
SMALL_MIB = 128
WRITTEN_MIB = 100
METADATA_MIB = 2048  # room beside the data: maps with room for growth, log
MEMORY_BAR_MIB = 150
TIME_BAR = 2.0  # times the small array's


def idle_daemon(directory: Path) -> tuple[float, float, float]:
    """Return (seconds to create, seconds to mount, MiB that the idle daemon holds)."""
    members = [str(directory / f"large-{number}.img") for number in range(MEMBERS)]
    member_mib = LARGE_MIB // (MEMBERS - 1) + METADATA_MIB
    start_s = perf_counter()
    create = ["create", "--layout", "raid5", "--size", f"{member_mib}MiB", "--image-size", "1TiB"]
    subprocess.run([*RAIDX, *create, *members], check=True, stdout=subprocess.DEVNULL)
    created_s = perf_counter() - start_s
    mountpoint = directory / "mnt"
    mountpoint.mkdir()
    start_s = perf_counter()
    candidate = Candidate(
        "large", [*RAIDX, "mount", "--foreground", *members, str(mountpoint)], mountpoint
    )
    try:
        candidate.wait_until_mounted()
        mounted_s = perf_counter() - start_s
        assert candidate.image.stat().st_size == LARGE_MIB * MIB
        sleep(2.0)
        return created_s, mounted_s, candidate.resident_mib()
    finally:
        candidate.stop()


async def rebuild_s(directory: Path, image_mib: int) -> float:
    """Return the time to rebuild a member of an image with `WRITTEN_MIB` written."""
    size_bytes = (image_mib // (MEMBERS - 1) + METADATA_MIB) * MIB
    paths = [str(directory / f"{image_mib}-{number}.img") for number in range(MEMBERS + 1)]
    for path in paths:
        create_file(path, size_bytes)
    members = [LocalMember(path, reads_zero=True) for path in paths]
    try:
        await create_array(
            members[:MEMBERS], "raid5", name="bench", now_s=0, size_bytes=image_mib * MIB
        )
        async with open_array(members[:MEMBERS]) as array:
            noise = os.urandom(MIB)
            for piece in range(WRITTEN_MIB):
                await array.write(piece * image_mib // WRITTEN_MIB * MIB, noise)
            await array.flush()
            start_s = perf_counter()
            job = await array.replace_disk(0, members[MEMBERS])
            status = await array.jobs.wait(job["job"])
            assert status["state"] == "done", status
            return perf_counter() - start_s
    finally:
        for member in members:
            member.close()
        for path in paths:
            os.unlink(path)


def _time(row: str, seconds: float) -> Line:
    text = f"{seconds:.2f} s"
    return Line(row, "raid5", text, seconds, seconds, seconds, unit=" s", at_most=True)


def run(directory: str = "/dev/shm", rounds: int = 3) -> list[Line]:
    """Measure and return the lines of the large array."""
    with tempfile.TemporaryDirectory(prefix="raidx-bench-", dir=directory) as home:
        created_s, mounted_s, resident_mib = idle_daemon(Path(home))
        pairs = [
            (
                trio.run(rebuild_s, Path(home), LARGE_MIB),
                trio.run(rebuild_s, Path(home), SMALL_MIB),
            )
            for _ in range(rounds)
        ]
    ratios = [large / small for large, small in pairs]
    large_s, small_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    return [
        Line(
            row="1 TiB array, idle daemon",
            subject="raid5",
            figure=f"{resident_mib:.0f} MiB",
            value=resident_mib,
            low=resident_mib,
            high=resident_mib,
            bar=MEMORY_BAR_MIB,
            unit=" MiB",
            at_most=True,
            detail={"create_s": round(created_s, 3), "mount_s": round(mounted_s, 3)},
        ),
        _time("  create, whole command", created_s),
        _time("  mount, until usable", mounted_s),
        Line.over(
            ratios,
            "1 TiB, 100 MiB, rebuild",
            "raid5",
            f"{large_s * 1e3:.0f} ms",
            bar=TIME_BAR,
            unit="x of 128 MiB",
            at_most=True,
            detail={"large_s": large_s, "small_s": small_s},
        ),
    ]


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default="/dev/shm", help="folder for the sparse files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return print_lines(run(options.directory, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
