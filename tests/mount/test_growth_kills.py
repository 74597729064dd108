"""The ways of parity of the paper: a daemon killed in the middle of a growth, and a lost disk."""

from __future__ import annotations

import signal
import time

import pytest

from tests.mount.real_array import RealArray
from tests.mount.test_growth import MEMBER_BYTES, WAIT_S, await_share, grow_of


@pytest.mark.parametrize("way", ["piggyback", "surrogate"])
def test_the_papers_ways_of_parity_survive_a_kill_and_a_lost_disk(
    array: RealArray, way: str
) -> None:
    array.create("raid4", 4, MEMBER_BYTES).mount()
    content = bytes(range(256)) * (4 << 12)
    with array.image.open("r+b", buffering=0) as image:
        for _ in range(3):
            image.write(content)
    array.unmount()  # all regions are clean: a lost disk takes nothing with it
    array.mount()
    array.raidx("set", "ARRAY", "speed_max=2MiB")
    new = [array.folder / "new1.img", array.folder / "new2.img"]
    taker = array.folder / "surrogate.img"
    asked = ["--parity", "piggyback"] if way == "piggyback" else ["--surrogate", taker]
    dry = array.ask("add-disk", "ARRAY", *new, *asked, "--create", "-n")
    assert dry["parity"] == way
    assert ("surrogate" in dry["does"]) == (way == "surrogate")
    assert dry["bytes_logged"] == (0 if way == "surrogate" else dry["bytes_logged"] or -1)
    assert not taker.exists()
    array.raidx("add-disk", "ARRAY", *new, *asked, "--create")
    array.members += [*new, *([taker] if way == "surrogate" else [])]
    await_share(array, 0.3)
    assert grow_of(array)["parity"] == way
    array.send(signal.SIGKILL)
    array.clear()
    array.mount()
    assert grow_of(array)["state"] == "running"
    array.fail(1)
    assert array.read(3 * len(content)) == 3 * content
    array.send(signal.SIGKILL)
    array.clear()
    array.mount()
    array.raidx("set", "ARRAY", "speed_max=0")
    array.wait_jobs()
    assert grow_of(array)["state"] == "done"
    assert array.read(3 * len(content)) == 3 * content
    states = {member["path"]: member["state"] for member in array.status()["members"]}
    if way == "surrogate":  # who had the parity takes the lost disk's place
        deadline_s = time.monotonic() + WAIT_S
        while array.status()["state"] != "clean":
            assert time.monotonic() < deadline_s, array.status()
            time.sleep(0.05)
        states = {member["path"]: member["role"] for member in array.status()["members"]}
        assert states[str(array.members[3])] == 1
        assert states[str(taker)] == 3
    else:
        array.replace(1, "--wait")
    array.scrub()
    assert array.read(3 * len(content)) == 3 * content
