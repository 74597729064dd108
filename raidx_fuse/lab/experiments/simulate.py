"""Experiments in virtual time: the real engine on modelled members, without FUSE or root.

    result = simulate(
        Experiment(
            layout="raid5",
            members=("ssd",) * 8,
            load=lambda size_bytes: fit(generate("hm_0", seed=1, requests=50_000), size_bytes),
            settings={"parity.policy": "rmw", "journal": "none"},
        )
    )
    result["response_ms"]["mean"], result["array"]["pre_reads"], result["members"][0]["queue_mean"]

The same experiment gives the same result, to the last digit, on every machine: its seed is the only
source of randomness. Members keep no data unless *content* is set (`BlankMember`). By default every
chunk counts as written (*prefilled*), as in the papers.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.statistics import difference, snapshot
from raidx_fuse.errors import UsageError, ungrouped
from raidx_fuse.lab.experiments.events import Event, NewMember, play
from raidx_fuse.lab.experiments.modelled import (
    MEMBER_BYTES,
    Hardware,
    NoLocks,
    assume_written,
    modelled_array,
)
from raidx_fuse.lab.experiments.samples import Samples
from raidx_fuse.lab.loads.controller import ControllerCache
from raidx_fuse.lab.loads.drive import OUTSTANDING_MAX, drive, read_back
from raidx_fuse.lab.loads.record import Recorder
from raidx_fuse.lab.loads.request import Load
from raidx_fuse.lab.loads.verify import Content
from raidx_fuse.members.simulated.network import NetworkModel
from raidx_fuse.members.simulated.virtual_time import run, sleep


async def nothing(_array: Array) -> None:
    """Do nothing: the default of `Experiment.prepare`."""


def no_report(_array: Array) -> dict[str, Any]:
    """Return no fields: the default of `Experiment.report`."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One array under one load.

    - *members*: models, perhaps with own numbers, as behind ``model=`` in a member's spec: "hdd",
      "ssd,read_mb_s=445,write_mb_s=135".
    - *log_bytes*: of the log on each member; None: as `raidx create` makes it.
    - *network*: the members are on servers behind it; "network" in the result has the bytes that it
      carried since the array was made, and the seconds for which it was busy.
    - *load*: called with the size of the image in bytes, returns the load.
    - *depth*: send so many requests at a time, as fast as possible, instead of at their times.
    - *settings*: those of `raidx set`. *prepare* is awaited before the load.
    - *section_s*: also summarize every span of so many seconds, with the members' operations and
      queues.
    - *events* happen during the load (see events.py).
    - *stripe_locks* False, which is unsafe and only for experiments: writes to one stripe do not
      take turns. Needs the setting journal=none, no events and no content.
    - *controller_bytes*: size of a controller's write-back cache (loads/controller.py).
    - *warm_up_s*: requests that arrive before are served, but not counted, nor are the members'
      operations up to then.
    - *verify*: compare reads with what was written ("verified_bytes", "wrong" in the result).
    - *report*: called with the running array after the load; its fields go under "extra".
    """

    layout: str
    members: Sequence[str]
    load: Callable[[int], Load]
    name: str = "experiment"
    member_bytes: int = MEMBER_BYTES
    chunk_bytes: int = 64 << 10
    log_bytes: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    depth: int | None = None
    outstanding_max: int = OUTSTANDING_MAX
    prefilled: bool = True
    content: bool = False
    verify: bool = False
    stripe_locks: bool = True
    controller_bytes: int = 0
    warm_up_s: float = 0.0
    section_s: float = 0.0
    events: Sequence[Event] = ()
    seed: int = 0
    network: NetworkModel | None = None
    prepare: Callable[[Array], Awaitable[None]] = nothing
    report: Callable[[Array], Mapping[str, Any]] = no_report

    def check(self) -> None:
        """Raise UsageError if parts of it exclude each other."""
        checked = self.content or self.verify
        if not self.stripe_locks and (
            checked or self.events or self.settings.get("journal") != "none"
        ):
            raise UsageError(
                "without stripe locks parity is wrong",
                action="set journal=none, and neither verify nor events",
            )
        if self.controller_bytes and checked:
            raise UsageError("a controller's cache keeps no content: nothing can be verified")
        if not 0 <= self.warm_up_s < 1e9:
            raise UsageError(f"a warm-up cannot take {self.warm_up_s} s")
        if self.controller_bytes < 0:
            raise UsageError(f"a controller cannot have {self.controller_bytes} bytes of cache")
        for event in self.events:
            event.check()


def simulate(experiment: Experiment, recorder: Recorder | None = None) -> dict[str, Any]:
    """Run *experiment* and return its result (see `measure`). Raises RaidxError.

    Another thread may read *recorder*, which must be new, while the experiment runs: it counts the
    requests that have ended.
    """
    recorder = Recorder() if recorder is None else recorder
    return run(measure, experiment, recorder, seed=experiment.seed)


async def measure(experiment: Experiment, recorder: Recorder) -> dict[str, Any]:
    """Build the array, drive the load, return the result; under the clock of the running loop.

    The result has the fields of `Recorder.summary`, "failed", "errors", "held_back", "sections",
    "events", and "array" and "members" as `raidx stats --json` has them, counted from the start of
    the load, or the end of its warm-up, to the end of the last job. An event whose job has ended
    has "during", the summary of the requests that arrived meanwhile. Raises RaidxError.
    """
    experiment.check()
    hardware = Hardware(
        layout=experiment.layout,
        members=experiment.members,
        member_bytes=experiment.member_bytes,
        chunk_bytes=experiment.chunk_bytes,
        log_bytes=experiment.log_bytes,
        params=experiment.params,
        keeps_content=experiment.content or experiment.verify,
        seed=experiment.seed * 1000,
        network=experiment.network,
    )
    with ungrouped():
        async with modelled_array(hardware, random.Random(experiment.seed)) as (array, modelled):
            for key, text in experiment.settings.items():
                await array.set(key, text)
            if experiment.prefilled:
                assume_written(array)
            if not experiment.stripe_locks:
                array.context.locks = NoLocks()
            await experiment.prepare(array)
            result = await _drive(array, experiment, modelled.member, recorder)
            link = modelled.link
            if link is not None:
                result["network"] = {"bytes": link.carried_bytes, "busy_s": link.busy_s}
            return result


async def _drive(
    array: Array, experiment: Experiment, new: NewMember, recorder: Recorder
) -> dict[str, Any]:
    before = [snapshot(array)]
    content = Content(array.size_bytes, experiment.seed) if experiment.verify else None
    events: list[dict[str, Any]] = []
    samples = Samples(array, experiment.section_s)

    target: Array | ControllerCache = array
    if experiment.controller_bytes:
        target = ControllerCache(array, experiment.controller_bytes)

    async def happen() -> None:
        events.extend(await play(array, experiment.events, new))

    async def warm_up() -> None:
        await sleep(experiment.warm_up_s)
        before[0] = snapshot(array)

    async with trio.open_nursery() as sampling:
        sampling.start_soon(samples.take)
        if experiment.warm_up_s:
            sampling.start_soon(warm_up)
        if isinstance(target, ControllerCache):
            sampling.start_soon(target.serve)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(happen)
            await drive(
                target,
                experiment.load(array.size_bytes),
                recorder,
                depth=experiment.depth,
                outstanding_max=experiment.outstanding_max,
                content=content,
            )
        if isinstance(target, ControllerCache):
            await target.written()
        sampling.cancel_scope.cancel()
    samples.finish()
    if experiment.warm_up_s and not recorder.summary(experiment.warm_up_s)["requests"]:
        raise UsageError(f"no request arrives after the warm-up of {experiment.warm_up_s} s")
    stats = difference(before[0], snapshot(array))
    extra: dict[str, Any] = {}
    if isinstance(target, ControllerCache):
        extra["controller"] = {"hits": target.hits}
    for event in events:
        if "job_ended_s" in event:
            event["during"] = recorder.summary(event["at_s"], event["job_ended_s"])
    if report := dict(experiment.report(array)):
        extra["extra"] = report
    if content is not None:
        await read_back(array, content)
        extra |= {"verified_bytes": content.checked_bytes, "wrong": content.wrong}
    return {
        "name": experiment.name,
        "layout": experiment.layout,
        "image_bytes": array.size_bytes,
        **recorder.summary(experiment.warm_up_s),
        "failed": recorder.failed,
        "errors": recorder.errors,
        "held_back": recorder.held_back,
        "state": array.status()["state"],
        "array": stats["array"],
        "members": stats["members"],
        "events": events,
        "sections": samples.beside(recorder.sections(experiment.section_s)),
        **extra,
    }
