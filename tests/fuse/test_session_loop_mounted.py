"""The session loop against the kernel: requests of many threads to a mounted fake."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.fuse import workers

Make = Callable[..., Any]
pytestmark = pytest.mark.mount


def _read_all(image: Path, threads: int, requests: int, size: int = 4096) -> None:
    descriptor = os.open(image, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(lambda i: os.pread(descriptor, size, i * size), range(requests))
            assert all(len(data) == size for data in results)
    finally:
        os.close(descriptor)


def test_slow_reads_run_side_by_side(fake_mount: Make) -> None:
    fake = fake_mount("--delay", "0.2")
    assert fake.report["poll_first"]
    # The burst starts all the workers there may be; then they are parked.
    _read_all(fake.image, threads=2 * workers.WORKERS_MAX, requests=2 * workers.WORKERS_MAX)
    begin_s = time.monotonic()
    _read_all(fake.image, threads=16, requests=32)
    assert time.monotonic() - begin_s < 2  # one after the other: 6.4 s
    assert fake.call("counts")["in_flight_max"] >= 32
    assert not fake.unmount()


def test_more_slow_reads_than_workers(fake_mount: Make) -> None:
    fake = fake_mount("--delay", "0.1")
    _read_all(fake.image, threads=80, requests=160)
    counts = fake.call("counts")
    assert counts["reads"] == 160
    assert 32 <= counts["in_flight_max"] <= workers.WORKERS_MAX


def test_a_busy_mount_still_answers_control_and_runs_background_tasks(fake_mount: Make) -> None:
    fake = fake_mount()
    stop = threading.Event()

    def hammer() -> None:
        descriptor = os.open(fake.image, os.O_RDONLY)
        while not stop.is_set():
            os.pread(descriptor, 4096, 0)
        os.close(descriptor)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        before = fake.call("counts")["reads"]
        assert fake.call("ticks", seconds=1)["ticks"] > 50
        assert fake.call("counts")["reads"] - before > 1000  # busy it was
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("way", "stock"),
    [("unmount", False), ("SIGTERM", False), ("SIGINT", False), ("unmount", True)],
)
def test_the_mount_ends_with_parked_workers(fake_mount: Make, way: str, stock: bool) -> None:
    fake = fake_mount("--delay", "0.02", *(["--stock"] if stock else []))
    assert fake.report["poll_first"] is not stock
    _read_all(fake.image, threads=8, requests=64)
    if way == "unmount":
        fake.unmount()
    else:
        fake.stop(signal.Signals[way])
    assert fake.process.returncode == 0


def test_the_mount_ends_under_load(fake_mount: Make) -> None:
    fake = fake_mount("--delay", "0.01")
    failed: list[OSError] = []

    def hammer() -> None:
        try:
            descriptor = os.open(fake.image, os.O_RDONLY)
        except OSError as error:
            failed.append(error)
            return
        try:
            while True:
                os.pread(descriptor, 4096, 0)
        except OSError as error:
            failed.append(error)
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    logged = fake.stop()
    for thread in threads:
        thread.join()
    assert fake.process.returncode == 0
    assert len(failed) == 8
    assert "in use" in logged


def test_phantom_requests_do_no_harm(fake_mount: Make) -> None:
    fake = fake_mount("--phantom", "7", "--delay", "0.001")
    _read_all(fake.image, threads=4, requests=200)
    fake.unmount()
    assert fake.process.returncode == 0
