"""Parts of a computation over processes here, or over the workers of a Dask scheduler.

A part is a plain value, and its result depends on nothing else. So results are the same, to the
bit, whatever the number of workers, and they come in the order of the parts. The parts of a worker
that is lost are computed again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from raidx_fuse.errors import RaidxError, Reason, UsageError

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


def _processes(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent)


def _end_with_parent() -> None:
    """Let this worker end when the program has ended, also if that was killed.

    It would wait for its next part for good: the other workers hold the pipe open.
    """
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _over_processes(
    function: Callable[[Part], Result], parts: Sequence[Part], workers: int
) -> Iterator[Result]:
    done = lost = 0
    while done < len(parts):
        pool = _processes(workers)
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


@contextmanager
def executor(
    function: Callable[[Part], Result], workers: int, scheduler: str | None = None
) -> Iterator[Callable[[Part], Future[Result]]]:
    """Yield what submits *function* for one part, to *workers* processes or to a *scheduler*.

    The workers of a scheduler need this package only, not the program that *function* is from: it
    goes to them by value, with all that it uses of the program's folder. Raises UsageError.
    """
    pool: Executor
    if scheduler is None:
        pool = _processes(workers)
        with pool:
            yield lambda part: pool.submit(function, part)
        return
    with _client(scheduler) as client:
        pickle = import_module("cloudpickle")  # distributed needs it, too
        file = sys.modules[function.__module__].__file__
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and file and Path(path).parent == Path(file).parent:
                pickle.register_pickle_by_value(module)
        pool = client.get_executor(pure=False)
        yield lambda part: _Unpickled(pool.submit(call, pickle.dumps((function, part))))


def call(pickled: bytes) -> bytes:
    """Call the function on its part, both in *pickled*, on a worker; return the pickled result."""
    pickle = import_module("cloudpickle")
    function, part = pickle.loads(pickled)
    result: bytes = pickle.dumps(function(part))
    return result


class _Unpickled(Future[Any]):
    """The result of a future that `call` gives."""

    def __init__(self, pickled: Future[bytes]) -> None:
        super().__init__()
        pickled.add_done_callback(self._done)

    def _done(self, pickled: Future[bytes]) -> None:
        error = pickled.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(import_module("cloudpickle").loads(pickled.result()))


def _over_scheduler(
    function: Callable[[Part], Result], parts: Sequence[Part], address: str
) -> Iterator[Result]:
    with _client(address) as client:
        # Parts are not pure by name: two sweeps of one spec must not share a stale result.
        futures = client.map(function, parts, pure=False)
        for future in futures:
            try:
                yield future.result()
            except import_module("distributed").KilledWorker as error:
                raise RaidxError(f"workers were lost again and again: {error}") from None


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        distributed = import_module("distributed")  # an extra, and slow to import
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask's distributed",
            action="pip install 'raidx-fuse[cluster]'",
            reason=Reason.NOT_INSTALLED,
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
        yield client
    finally:
        client.close()
