"""A part of a computation that kills the worker that computes it, once."""

from __future__ import annotations

import os
import time
from pathlib import Path

from raidx_fuse.lab.experiments.spec import SweepRun, compute_run

Part = tuple[str, int, SweepRun | None]  # a folder for marks, the part's number, what to compute
KILLER = 2


def always_die(_part: int) -> None:
    """Kill the worker."""
    os._exit(1)


def compute_or_die(part: Part) -> tuple[int, str]:
    """Return the part's number and its result; the first to compute part `KILLER` dies of it."""
    folder, number, run = part
    mark = Path(folder) / "died"
    if number == KILLER and not mark.exists():
        mark.touch()
        os._exit(1)
    if run is None:
        time.sleep(0.01)
        return number, ""
    return number, repr(compute_run(run)["response_ms"])
