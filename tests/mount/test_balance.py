"""A mounted pool under load finds its hotspot and dissolves it by itself; what it saw is kept."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.real_array import RealArray

pytestmark = pytest.mark.mount

MIB = 1 << 20
PAGE = 4096
LIMIT_S = 60.0


class Client:
    """Reads random ones of 500 pages of *path*, sometimes writes one, and knows what each holds."""

    def __init__(self, path: Path, number: int) -> None:
        self.stopped = threading.Event()
        self.rounds = 0
        self.wrong: list[int] = []
        self._path, self._rng = path, random.Random(number)
        self._pages = range(500 * number, 500 * number + 500)
        self._written: dict[int, bytes] = {}
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        file = os.open(self._path, os.O_RDWR)
        first = self._path.name.encode() * (PAGE // 4)
        try:
            while not self.stopped.is_set():
                page = self._rng.choice(self._pages)
                if self._rng.random() < 0.05:
                    self._written[page] = self._rng.randbytes(PAGE)
                    os.pwrite(file, self._written[page], page * PAGE)
                if os.pread(file, PAGE, page * PAGE) != self._written.get(page, first):
                    self.wrong.append(page)
                self.rounds += 1
        finally:
            os.close(file)


def test_a_hotspot_under_load_is_dissolved_by_itself_and_the_history_is_kept(
    make_array: Callable[..., RealArray],
) -> None:
    first, second = make_array(), make_array()
    pool: list[str] = []
    for name, array in (("fast", first), ("slow", second)):
        members = [f"{array.mnt.parent / name}{i}.img,model=hdd" for i in range(3)]
        words = ["--layout", "raid5", "--size", "24MiB", "--no-volume", "--name", name]
        first.raidx("create", *words, *members)
        pool += members
    first.raidx("mount", *pool, first.mnt)
    for name, on in (("mail", "fast"), ("logs", "fast"), ("olds", "slow")):
        first.raidx("volume", "create", "ARRAY", name, "--size", "4MiB", "--on", on)
        (first.mnt / name).write_bytes(name.encode() * MIB)
    for setting in ("hot.interval=500ms", "hot.window=4", "hot.tau=60%", "balance.auto=on"):
        first.raidx("set", "ARRAY", setting)
    clients = [Client(first.mnt / name, number) for name in ("mail", "logs") for number in (0, 1)]
    try:
        deadline = time.monotonic() + LIMIT_S
        while first.ask("balance", "ARRAY", "--status")["balance"]["state"] != "done":
            assert time.monotonic() < deadline, first.ask("status", "ARRAY")["pool"]
            time.sleep(0.2)
    finally:
        for client in clients:
            client.stopped.set()
            client.thread.join()
    assert min(client.rounds for client in clients) > 10
    assert not any(client.wrong for client in clients)
    steps = first.ask("balance", "ARRAY", "--status")["balance"]["steps"]
    assert steps == ["move mail from fast to slow"] or steps == ["move logs from fast to slow"]
    assert (first.mnt / "olds").read_bytes() == b"olds" * MIB
    first.raidx("set", "ARRAY", "balance.auto=off")
    seen = [one["observations"] for one in first.ask("status", "ARRAY")["pool"]["arrays"]]
    first.unmount()
    first.raidx("mount", *pool, first.mnt)
    again = [one["observations"] for one in first.ask("status", "ARRAY")["pool"]["arrays"]]
    assert min(seen) >= 4
    assert min(again) >= min(seen)
    told = [event["event"] for event in first.ask("events", "ARRAY")["events"]]
    assert "Hotspot" in told
    assert "hot.interval" in first.raidx("get", "ARRAY", "hot.interval").stdout
