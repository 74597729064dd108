"""The one table of a mount's commands, and what happens to each request before its handler runs.

    {"command": NAME, "arguments": {..., "in_array": ARRAY}}

    unknown NAME                  UsageError
    command of the mount          gets in_array only if its handler has that parameter
    command of one array          runs on the array *in_array*, or on the only one of the mount
    other arguments               must fit the parameters of the handler (arguments.py)

The control server turns errors into answers. On a command line *in_array* is MOUNT:ARRAY.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raidx_fuse.daemon.commands.arguments import WORD_CHARS_MAX, Result, check_arguments
from raidx_fuse.daemon.commands.balance import BalanceCommands
from raidx_fuse.daemon.commands.commands import ArrayCommands
from raidx_fuse.daemon.commands.lab import LabCommands
from raidx_fuse.daemon.commands.volumes import VolumeCommands
from raidx_fuse.documents import ArrayReport
from raidx_fuse.engine.chunk_map import ChunkMap
from raidx_fuse.engine.peek import Peek
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.pool.pool import array_named
from raidx_fuse.settings import is_of_pool

Run = Callable[..., Awaitable[Result]]

WORST = ("failed", "degraded", "rebuilding", "restoring")
"""States that the status of a mount shows first."""


KEPT = {
    *("fail-disk", "replace-disk", "add-disk", "remove-disk", "clear", "reshape", "scrub", "tune"),
    *("job-pause", "job-resume", "job-cancel", "job-limit", "set", "inject"),
    *("volume-create", "volume-resize", "volume-rename", "volume-delete", "volume-move"),
    *("volume-swap", "volume-trim", "array-forget", "array-evacuate"),
    *("balance", "balance-cancel"),
}
"""Commands that change something: what was done is an event."""


class Dispatcher:
    """The commands of a mount of *arrays*. `handle` is a `control_server.Handler`.

    Without *volumes*, *balance* or *lab* their commands are unknown.
    """

    def __init__(
        self,
        arrays: Sequence[ArrayCommands],
        volumes: VolumeCommands | None = None,
        balance: BalanceCommands | None = None,
        lab: LabCommands | None = None,
    ) -> None:
        self._arrays = arrays
        self._balance = balance
        self._lab = lab
        for commands in arrays:
            commands.beside_others = len(arrays) > 1
        self._of_array = [_of_array(commands) for commands in arrays]
        self._of_mount: dict[str, Run] = {
            "status": self.status,
            "stats": self.stats,
            "get": self.get,
            "set": self.set,
        }
        if volumes is not None:
            self._of_mount |= {
                "volume-create": volumes.create,
                "volume-list": volumes.list,
                "volume-resize": volumes.resize,
                "volume-rename": volumes.rename,
                "volume-delete": volumes.delete,
                "volume-move": volumes.move,
                "volume-swap": volumes.swap,
                "volume-trim": volumes.trim,
                "array-list": volumes.array_list,
                "array-forget": volumes.array_forget,
            }
        if balance is not None:
            self._of_mount |= {
                "balance": balance.balance,
                "balance-status": balance.balance_status,
                "balance-cancel": balance.cancel,
                "array-evacuate": balance.evacuate,
            }
        if lab is not None:
            self._of_mount |= {"inject": lab.inject, "crash": lab.crash}

    async def handle(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run command *name*. Raises UsageError for a bad request, or as the command does."""
        arguments = dict(arguments)
        ref = arguments.pop("in_array", None)
        if ref is not None and not isinstance(ref, str):
            raise UsageError(f"{name[:WORD_CHARS_MAX]}: in_array must be a name or a UUID")
        run = self._of_mount.get(name)
        if run is not None:
            if ref is not None and "in_array" in inspect.signature(run).parameters:
                arguments["in_array"] = ref
        elif name in self._of_array[0]:
            run = self._of_array[self._index(ref)][name]
        else:
            raise UsageError(
                f"this daemon has no command {name[:WORD_CHARS_MAX]!r}",
                reason=Reason.UNKNOWN_COMMAND,
            )
        check_arguments(name, run, arguments)
        result = await run(**arguments)
        if name in KEPT and not arguments.get("dry_run") and arguments.get("now", True):
            events = self._arrays[0 if ref is None else self._index(ref)].events
            if events is not None:
                events.note_command(name, {k: v for k, v in arguments.items() if k != "in_array"})
        return result

    def _index(self, ref: str | None) -> int:
        arrays = [commands.array for commands in self._arrays]
        return arrays.index(array_named(arrays, ref))

    # -- reports ---------------------------------------------------------------------------------

    def report(self) -> ArrayReport:
        """Return the status of the mount: that of its array; of several, the worst, and all."""
        reports = [commands.report() for commands in self._arrays]
        if len(reports) == 1:
            return reports[0]
        worst = {word: rank for rank, word in enumerate(WORST)}
        first = min(reports, key=lambda report: worst.get(report["state"], len(WORST)))
        volumes = [volume for report in reports for volume in report["volumes"]]
        return {**first, "volumes": volumes, "arrays": reports}

    async def status(self, in_array: str | None = None) -> ArrayReport:
        """Return the status of an array, or of all with the worst first."""
        of_one = in_array is not None
        document = self._arrays[self._index(in_array)].report() if of_one else self.report()
        if self._balance is not None:
            document["pool"] = self._balance.in_status()
        return document if self._lab is None else self._lab.with_faults(document)

    async def stats(self, interval_s: float | None = None, in_array: str | None = None) -> Result:
        document = await self._arrays[self._index(in_array)].stats(interval_s)
        return document if self._balance is None else {**document, "pool": self._balance.in_stats()}

    # -- settings --------------------------------------------------------------------------------

    async def get(self, key: str | None = None, in_array: str | None = None) -> Result:
        """Return one setting or all; of several arrays without *in_array* those of the pool."""
        of_pool: Result = {}
        if self._balance is not None:
            if key is not None and is_of_pool(key):
                return {"settings": self._balance.get(key, in_array)}
            if key is None:
                of_pool = self._balance.get(None, in_array)
                if in_array is None and len(self._arrays) > 1:
                    return {"settings": of_pool}
        return {"settings": {**await self._arrays[self._index(in_array)].get(key), **of_pool}}

    async def set(self, key: str, value: str, in_array: str | None = None) -> Result:
        """Change a setting, immediately and for later mounts."""
        if self._balance is not None and is_of_pool(key):
            return {"settings": {key: await self._balance.set(key, value, in_array)}}
        commands = self._arrays[self._index(in_array)]
        return {"settings": {key: await commands.set(key, value)}}


def _of_array(commands: ArrayCommands) -> dict[str, Run]:
    context = commands.array.context
    return {
        "fail-disk": commands.fail_disk,
        "replace-disk": commands.replace_disk,
        "add-disk": commands.add_disk,
        "remove-disk": commands.remove_disk,
        "clear": commands.clear,
        "reshape": commands.reshape,
        "scrub": commands.scrub,
        "tune": commands.tune,
        "job-list": commands.job_list,
        "job-pause": commands.job_pause,
        "job-resume": commands.job_resume,
        "job-cancel": commands.job_cancel,
        "job-wait": commands.job_wait,
        "job-limit": commands.job_limit,
        "damage": commands.damage,
        "save-metadata": commands.save_metadata,
        "explain": commands.explain,
        "peek": Peek(context).peek,
        "chunk-map": ChunkMap(context).chunk_map,
        "compare": commands.comparison.compare,
        "trace": commands.tracing.trace,
        "heat": commands.advice.heat,
        "advise": commands.advice.advise,
        **({} if commands.events is None else {"events-test": commands.events.test}),
    }
