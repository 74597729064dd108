"""Volumes through real mounts and the installed command: created, used, resized, deleted."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount]
MIB = 1 << 20


def names(array: RealArray) -> list[str]:
    return sorted(os.listdir(array.mnt))


def test_volumes_live_beside_each_other(array: RealArray) -> None:
    array.create("raid5", 4, "24MiB", "--no-volume")
    array.mount()
    assert names(array) == []
    assert array.ask("volume", "list", "ARRAY")["volumes"] == []
    (about,) = array.ask("array", "list", "ARRAY")["arrays"]
    assert about["free"] == about["size"] // 4096 * 4096
    for name, size in (("mail", "5MiB"), ("www", "6MiB")):
        made = array.ask("volume", "create", "ARRAY", name, "--size", size)
        assert made["path"] == str(array.mnt / name)
    assert names(array) == ["mail", "www"]
    mail, www = array.mnt / "mail", array.mnt / "www"
    assert (mail.stat().st_size, www.stat().st_size) == (5 * MIB, 6 * MIB)
    content = {path: os.urandom(path.stat().st_size) for path in (mail, www)}
    for path, data in content.items():
        path.write_bytes(data)
    assert all(path.read_bytes() == data for path, data in content.items())

    array.raidx("volume", "rename", "ARRAY", "mail", "post")
    assert names(array) == ["post", "www"]
    post = array.mnt / "post"
    assert post.read_bytes() == content[mail]
    assert not mail.exists()

    with post.open("r+b") as open_file:  # a volume grows under its users
        array.raidx("volume", "resize", "ARRAY", "post", "9MiB")
        assert os.fstat(open_file.fileno()).st_size == 9 * MIB
        open_file.seek(7 * MIB)
        assert open_file.read(4096) == bytes(4096)
        line = array.refused("volume", "delete", "ARRAY", "post", "--lose-data")
        assert line == "raidx: volume post is in use; close it and try again"
        line = array.refused("volume", "resize", "ARRAY", "post", "1MiB", "--lose-data")
        assert "in use" in line
    assert "--lose-data accepts it" in array.refused("volume", "delete", "ARRAY", "post", status=2)
    plan = array.ask("volume", "delete", "ARRAY", "post", "--lose-data", "-n")
    assert plan["loses"] >= 5 * MIB
    array.raidx("volume", "resize", "ARRAY", "post", "2MiB", "--lose-data")
    assert post.stat().st_size == 2 * MIB
    assert post.read_bytes() == content[mail][: 2 * MIB]
    array.raidx("volume", "delete", "ARRAY", "post", "--lose-data")
    assert names(array) == ["www"]

    counted = {volume["name"]: volume for volume in array.call("stats")["volumes"]}
    assert counted.keys() == {"www"}
    assert counted["www"]["write_bytes"] == 6 * MIB
    assert counted["www"]["read_bytes"] >= 6 * MIB

    array.unmount()
    array.mount()
    assert names(array) == ["www"]
    assert www.read_bytes() == content[www]
    status = array.ask("status", "ARRAY")
    assert [(v["name"], v["size"]) for v in status["volumes"]] == [("www", 6 * MIB)]
    array.unmount()
    at_rest = array.ask("status", *array.members)
    assert [v["name"] for v in at_rest["volumes"]] == ["www"]


def test_a_load_is_played_on_the_volume_that_is_named(array: RealArray) -> None:
    array.create("raid5", 3, "24MiB", "--no-volume")
    array.mount()
    load = ("replay", "uniform", "ARRAY", "--requests", "20", "--as-fast-as-possible")
    assert "has 0 volumes; --volume: none" in array.refused(*load, status=2)
    for name in ("one", "two"):
        array.raidx("volume", "create", "ARRAY", name, "--size", "4MiB")
    assert "has 2 volumes; --volume: one, two" in array.refused(*load, status=2)
    assert "no volume x; there is one, two" in array.refused(*load, "--volume", "x", status=2)
    array.raidx(*load, "--volume", "two", "--verify", "--number", "read_share=0")
    written = {v["name"]: v["written"] for v in array.ask("volume", "list", "ARRAY")["volumes"]}
    assert written["one"] == 0
    assert written["two"] > 0


def test_two_arrays_are_one_mount(make_array: Callable[..., RealArray]) -> None:
    first, second = make_array(), make_array()
    first.create("raid5", 3, "24MiB")
    second.create("raid0", 2, "24MiB", "--no-volume")
    line = first.refused("mount", *first.members, *second.members, first.mnt, status=2)
    assert f"two arrays are called {first.image.name}" in line
    for member in second.members:
        member.unlink()
    words = ["--layout", "raid0", "--size", "24MiB", "--no-volume", "--name", "spare room"]
    second.raidx("create", *words, *second.members)
    first.raidx("mount", second.members[1], *first.members, second.members[0], first.mnt)
    assert names(first) == [first.image.name]
    first.raidx("volume", "create", "ARRAY", "beside", "--size", "30MiB", "--on", "spare room")
    content = {name: os.urandom(7 * MIB) for name in (first.image.name, "beside")}
    for name, data in content.items():
        (first.mnt / name).write_bytes(data)
    status = first.ask("status", "ARRAY")
    assert {array["name"] for array in status["arrays"]} == {first.image.name, "spare room"}
    assert first.ask("status", f"{first.mnt}:spare room")["layout"] == "raid0"
    assert "name one: " in first.refused("stats", "ARRAY", status=2)
    assert first.ask("stats", f"{first.mnt}:{first.image.name}")["array"]["writes"] > 0
    first.raidx("fail-disk", f"{first.mnt}:{first.image.name}", "1")
    first.raidx("status", "ARRAY", "--check", status=1)
    first.unmount()
    # Each array alone is what it was.
    said = second.raidx("mount", *second.members, second.mnt).stderr
    assert f"array {first.image.name} (" in said
    assert f"is absent; not shown: {first.image.name}; give its members too" in said
    assert names(second) == ["beside"]
    assert (second.mnt / "beside").read_bytes()[: 7 * MIB] == content["beside"]
    first.mount()
    assert first.read(7 * MIB) == content[first.image.name]


def two_arrays(make_array: Callable[..., RealArray]) -> tuple[RealArray, list[Path]]:
    """Return a mount of two arrays, "fast" and "slow", without volumes, and all their members."""
    first, second = make_array(), make_array()
    for array, name, layout, width in ((first, "fast", "raid1", 2), (second, "slow", "raid5", 3)):
        array.members = [array.folder / f"{name}{role}.raidx" for role in range(width)]
        words = ["--layout", layout, "--size", "40MiB", "--no-volume", "--name", name]
        array.raidx("create", *words, *array.members)
    members = [*first.members, *second.members]
    first.raidx("mount", *members, first.mnt)
    return first, members


class Overwriter(threading.Thread):
    """Overwrites pages of *image* at random, until the disk goes away; *model* has what it wrote.

    *unsure* is the page that was not answered.
    """

    def __init__(self, image: Path, model: bytearray) -> None:
        super().__init__()
        self.image = image
        self.model = model
        self.unsure = -1
        self.ending = threading.Event()

    def run(self) -> None:
        draw = random.Random(7)
        with suppress(OSError), self.image.open("r+b", buffering=0) as image:
            while not self.ending.is_set():
                page = draw.randrange(len(self.model) // 4096)
                data = draw.randbytes(4096)
                self.unsure = page
                image.seek(page * 4096)
                image.write(data)
                self.model[page * 4096 : (page + 1) * 4096] = data
                self.unsure = -1

    def check(self) -> None:
        found = self.image.read_bytes()
        if self.unsure >= 0:  # old or new
            place = slice(self.unsure * 4096, (self.unsure + 1) * 4096)
            self.model[place] = found[place]
        assert found == self.model


def test_a_volume_moves_under_its_users_and_a_kill(make_array: Callable[..., RealArray]) -> None:
    pool, members = two_arrays(make_array)
    pool.raidx("volume", "create", pool.mnt, "mail", "--size", "24MiB", "--on", "fast")
    image = pool.mnt / "mail"
    model = bytearray(os.urandom(24 * MIB))
    image.write_bytes(model)
    plan = pool.ask("volume", "move", pool.mnt, "mail", "slow", "-n")
    assert (plan["bytes_moved"], plan["volume_bytes"]) == (24 * MIB, 24 * MIB)
    assert "is on array fast already" in pool.refused(
        *("volume", "move", pool.mnt, "mail", "--to", "fast"), status=2
    )
    for limit in ("speed_min", "speed_max"):
        pool.call("set", key=limit, value="1MiB", in_array="fast")
    pool.raidx("volume", "move", pool.mnt, "mail", "--to", "slow")
    writer = Overwriter(image, model)
    writer.start()
    await_that(lambda: pool.call("volume-list")["volumes"][0]["moving"]["watermark"])
    (one,) = pool.call("volume-list")["volumes"]
    assert (one["array"], one["moving"]["to"]) == ("fast", "slow")
    pool.send(signal.SIGKILL)
    writer.join()
    pool.clear()
    # Each array alone names what it cannot show.
    said = pool.raidx("mount", *members[:2], pool.mnt).stderr
    assert "volume mail is not shown: it is on its way to array slow" in said
    assert names(pool) == []
    (unshown,) = pool.ask("volume", "list", pool.mnt)["unshown"]
    assert (unshown["name"], unshown["array"]) == ("mail", "fast")
    pool.unmount()
    pool.raidx("mount", *members, pool.mnt)
    writer.check()
    for limit, value in (("speed_max", "0"), ("speed_min", "1GiB")):
        pool.call("set", key=limit, value=value, in_array="fast")
    writer = Overwriter(image, model)
    writer.start()
    jobs = pool.ask("job", f"{pool.mnt}:fast", "list")["jobs"]  # a resync, too
    (job,) = [one["id"] for one in jobs if one["kind"] == "move"]
    pool.raidx("job", f"{pool.mnt}:fast", "wait", str(job))
    writer.ending.set()
    writer.join()
    writer.check()
    (one,) = pool.ask("volume", "list", pool.mnt)["volumes"]
    assert (one["array"], one.get("moving")) == ("slow", None)
    pool.unmount()
    pool.raidx("mount", *members[2:], pool.mnt)
    writer.check()
