"""Run a coroutine in virtual time: ``run(afn, *args, seed=0)``; see `raidx_fuse.virtual_time`."""

from raidx_fuse.virtual_time import DeadlockError, VirtualClock, run, sleep, sleep_until

__all__ = ["DeadlockError", "VirtualClock", "run", "sleep", "sleep_until"]
