"""Parts of a computation over processes here, or over the workers of a Dask scheduler.

A part is a plain value, and its result depends on nothing else. So results are the same, to the
bit, whatever the number of workers, and they come in the order of the parts. The parts of a worker
that is lost are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from typing import Any, TypeVar

from raidx_fuse.errors import RaidxError, UsageError

Part = TypeVar("Part")
Result = TypeVar("Result")

LOST_MAX = 3  # times that workers may be lost; a part that kills its worker would never end
CONNECT_S = 10  # to reach a scheduler


def compute(
    function: Callable[[Part], Result],
    parts: Sequence[Part],
    *,
    workers: int = 1,
    scheduler: str | None = None,
) -> Generator[Result, None, None]:
    """Yield the result of *function* for each of *parts*, in their order.

    *function* is one of a module, which a worker can import. *scheduler* is the address of a Dask
    scheduler; then *workers* does not count. Raises UsageError if there is none, RaidxError if
    workers are lost again and again, and what *function* raises.
    """
    if scheduler is not None:
        yield from _over_scheduler(function, parts, scheduler)
    elif workers <= 1 or len(parts) <= 1:
        yield from map(function, parts)
    else:
        yield from _over_processes(function, parts, min(workers, len(parts)))


def _over_processes(
    function: Callable[[Part], Result], parts: Sequence[Part], workers: int
) -> Iterator[Result]:
    done = lost = 0
    while done < len(parts):
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        try:
            futures: list[Future[Result]] = []
            with suppress(BrokenProcessPool):  # the first result says so, too
                futures = [pool.submit(function, part) for part in parts[done:]]
            for future in futures:
                result = future.result()
                done += 1
                yield result
        except BrokenProcessPool:
            lost += 1
            if lost > LOST_MAX:
                raise RaidxError(f"worker processes ended {lost} times, at part {done}") from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _over_scheduler(
    function: Callable[[Part], Result], parts: Sequence[Part], address: str
) -> Iterator[Result]:
    try:
        distributed: Any = import_module("distributed")  # an extra, and slow to import
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask's distributed", action="pip install 'raidx-fuse[cluster]'"
        ) from None
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"no scheduler answers at {address}: {error}") from None
    try:
        if not client.scheduler_info()["workers"]:
            raise UsageError(
                f"the scheduler at {address} has no workers", action=f"dask worker {address}"
            )
        # Parts are not pure by name: two sweeps of one spec must not share a stale result.
        futures = client.map(function, parts, pure=False)
        for future in futures:
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise RaidxError(f"workers were lost again and again: {error}") from None
    finally:
        client.close()
