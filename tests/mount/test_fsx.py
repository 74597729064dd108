"""fsx, the file system exerciser, on the image: as a FUSE file and as a loop device.

It knows what every byte must be and checks each read. It keeps the image's size (`blockmode`).
20,000 operations in all; RAIDX_TEST_SCALE multiplies them. A loop device has a page cache of its
own, which would answer all of fsx's reads: it is dropped again and again meanwhile.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.mount.real_array import SCALE, RealArray, run

pytestmark = [pytest.mark.mount]

OPERATIONS = 2000  # of each of the ten runs
LENGTH_BYTES = 4 << 20
OPERATION_BYTES_MAX = 256 << 10
SEED = 20240607

# A shared mapping needs the page cache, which the image on FUSE does without.
FILE_WEIGHTS = {"mapread": 0, "mapwrite": 0, "sendfile": 2, "copy_file_range": 0}
LOOP_WEIGHTS = {"mapread": 10, "mapwrite": 10, "posix_fadvise": 10, "sendfile": 0}
WEIGHTS = {"read": 10, "write": 10, "fsync": 2, "fdatasync": 2, "truncate": 0}
BLKFLSBUF = 0x1261  # linux/fs.h: write back and drop what the page cache holds of a device
DROP_EACH_S = 0.005


@contextmanager
def page_cache_dropped(device: str) -> Iterator[None]:
    """Write back and drop the page cache of *device*, if one is named, every now and then."""
    ended = threading.Event()

    def drop() -> None:
        with open(device, "rb") as file:
            while not ended.wait(DROP_EACH_S):
                fcntl.ioctl(file, BLKFLSBUF)

    dropper = threading.Thread(target=drop if device else ended.wait)
    dropper.start()
    try:
        yield
    finally:
        ended.set()
        dropper.join()


def configuration(weights: dict[str, int]) -> str:
    """Return fsx.toml for an image that never changes its size."""
    lines = [f"flen = {LENGTH_BYTES}", "blockmode = true", "[opsize]"]
    lines += [f"max = {OPERATION_BYTES_MAX}", "min = 1", "align = 1", "[weights]"]
    return "\n".join(lines + [f"{name} = {weight}.0" for name, weight in weights.items()])


@pytest.mark.parametrize(
    ("layout", "width", "degraded"),
    [
        ("raid0", 3, False),
        ("raid4", 4, True),
        ("raid5", 4, False),
        ("raid5", 4, True),
    ],
)
@pytest.mark.parametrize("door", ["file", pytest.param("loop", marks=pytest.mark.loop)])
def test_fsx(
    array: RealArray, fsx: str, layout: str, width: int, degraded: bool, door: str
) -> None:
    array.create(layout, width, "8MiB", "--chunk", "16KiB").mount()
    if degraded:
        array.fail(1)
    device = array.loop(direct_io=degraded) if door == "loop" else ""
    weights = WEIGHTS | (LOOP_WEIGHTS if door == "loop" else FILE_WEIGHTS)
    config = array.folder / "fsx.toml"
    config.write_text(configuration(weights))
    operations = round(OPERATIONS * SCALE)
    words = ["-N", str(operations), "-S", str(SEED), "-f", config, "-P", array.folder]
    with page_cache_dropped(device):
        done = run(fsx, *words, device or array.image, timeout_s=300 * max(1.0, SCALE))
    assert "All operations completed" in done.stdout + done.stderr
    totals = array.counters()
    assert totals["reads"] > 100
    assert totals["writes"] > 100
    assert (totals["degraded_reads"] > 0) is degraded
    if device:
        array.detach(device)
    if degraded:
        array.replace(1, "--wait")
    if layout != "raid0":
        array.scrub()
    array.unmount()
