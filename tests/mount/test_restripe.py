"""Restripes under a mount: killed, unmounted, with a lost disk in the middle, and cancelled."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

pytestmark = pytest.mark.mount

CONTENT = bytes(range(256)) * (4 << 12)
COUNT = 3
WAIT_S = 60.0


def restripe_of(array: RealArray) -> dict[str, Any]:
    """Return the newest restripe."""
    return [job for job in array.jobs() if job["kind"] == "restripe"][-1]


def await_share(array: RealArray, share: float) -> None:
    """Return when *share* of the restripe is done."""
    deadline_s = time.monotonic() + WAIT_S
    while (job := restripe_of(array))["done"] < share * job["total"]:
        assert time.monotonic() < deadline_s, job
        time.sleep(0.02)


def begin(array: RealArray, *words: str, new: int = 0) -> None:
    """Begin a slow restripe with *new* members, and let it begin to move."""
    array.raidx("set", "ARRAY", "speed_max=512KiB")
    files = [array.folder / f"more{len(array.members) + n}.img" for n in range(new)]
    dry = array.ask(words[0], "ARRAY", *files, *words[1:], "--create", "-n")
    assert dry["bytes_read"] >= COUNT * len(CONTENT)
    array.raidx(words[0], "ARRAY", *files, *words[1:], "--create")
    array.members += files
    await_share(array, 0.05)
    assert array.status()["state"] == "restriping"


def finish(array: RealArray, layout: str, state: str = "done", *, sound: bool = True) -> None:
    """Wait for the end; the content is what it was, and *sound*: the parity can be checked."""
    array.raidx("set", "ARRAY", "speed_max=0")
    array.wait_jobs()
    assert restripe_of(array)["state"] == state
    assert array.status()["layout"] == layout
    assert array.read(COUNT * len(CONTENT)) == COUNT * CONTENT
    if sound:
        array.scrub()


def test_from_raid0_by_way_of_raid5_to_two_parities(array: RealArray) -> None:
    array.create("raid0", 3, "24MiB", "--chunk", "16KiB").mount()
    with array.image.open("r+b", buffering=0) as image:
        for _ in range(COUNT):
            image.write(CONTENT)
    size = array.image.stat().st_size
    begin(array, "reshape", "--layout", "raid5", new=1)
    array.send(signal.SIGKILL)
    array.clear()
    array.mount()
    assert array.read(COUNT * len(CONTENT)) == COUNT * CONTENT
    finish(array, "raid5")
    assert array.image.stat().st_size == size
    begin(array, "reshape", "--layout", "upc", new=2)
    array.fail(2)
    array.unmount()
    array.mount()
    finish(array, "upc", sound=False)
    assert array.image.stat().st_size > size
    assert array.status()["redundancy_left"] == 1
    array.replace(2, "--wait")
    begin(array, "reshape", "--layout", "pcode")
    assert "going back" in array.raidx("job", "ARRAY", "cancel").stdout
    finish(array, "upc", "cancelled")
