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

A `PoolExperiment` is what `raidx mount` makes of the members of several arrays: each volume has
loads of its own, the pool's monitor watches, and with `balance.auto` volumes move by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.statistics import Snapshot, difference, snapshot
from raidx_fuse.errors import RaidxError, UsageError, ungrouped
from raidx_fuse.lab.experiments.modelled import (
    ControllerCache,
    Event,
    EventReport,
    Hardware,
    NewMember,
    NoLocks,
    Samples,
    assume_written,
    beside,
    modelled_array,
    play,
)
from raidx_fuse.lab.loads.drive import (
    OUTSTANDING_MAX,
    Content,
    Figures,
    Recorder,
    digits,
    drive,
    read_back,
)
from raidx_fuse.lab.loads.request import Load
from raidx_fuse.lab.loads.workloads import Source
from raidx_fuse.members.base import ReadBuffer
from raidx_fuse.members.simulated.virtual_time import run, sleep, sleep_until
from raidx_fuse.pool.array_volumes import open_volumes
from raidx_fuse.pool.hotspots.balancer import Balancer, JobMover, watched
from raidx_fuse.pool.hotspots.settings import PoolSettings
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from raidx_fuse.settings import is_of_pool

MEMBERS_MAX = 1000  # of an array: their seeds are that far from those of the next array


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Hardware):
    """One array under one load.

    - *network*: the members are on servers behind it; "network" in the result has the bytes that it
      carried since the array was made, and the seconds for which it was busy.
    - *load*: called with the size of the image in bytes, returns the load.
    - *depth*: send so many requests at a time, as fast as possible, instead of at their times.
    - *prepare* is awaited before the load.
    - *section_s*: also summarize every span of so many seconds, with the members' operations and
      queues.
    - *events* happen during the load (modelled.py).
    - *stripe_locks* False, which is unsafe and only for experiments: writes to one stripe do not
      take turns. Needs the setting journal=none, no events and no content.
    - *controller_bytes*: size of a controller's write-back cache (`ControllerCache`).
    - *warm_up_s*: requests that arrive before are served, but not counted, nor are the members'
      operations up to then.
    - *verify*: compare reads with what was written ("verified_bytes", "wrong" in the result).
    - *report*: called with the running array after the load; its fields go under "extra".
    - *requests*, *seconds*: so many the load has, if that is known; for those who wait.
    """

    load: Callable[[int], Load]
    requests: int | None = None
    seconds: float | None = None
    name: str = "experiment"
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
    prepare: Callable[[Array], Awaitable[None]] | None = None
    report: Callable[[Array], Mapping[str, object]] | None = None

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


def simulate(experiment: Experiment | PoolExperiment, recorder: Recorder | None = None) -> Figures:
    """Run *experiment* and return its result (`measure`, `measure_pool`). Raises RaidxError.

    Another thread may read *recorder*, which must be new, while the experiment runs: it counts the
    requests that have ended.
    """
    recorder = Recorder() if recorder is None else recorder
    if isinstance(experiment, PoolExperiment):
        return run(measure_pool, experiment, recorder, seed=experiment.seed)
    return run(measure, experiment, recorder, seed=experiment.seed)


async def measure(experiment: Experiment, recorder: Recorder) -> Figures:
    """Build the array, drive the load, return the result; under the clock of the running loop.

    The result has the fields of `Recorder.figures`, "sections", "events", and "array" and "members"
    as `raidx stats --json` has them, counted from the start of the load, or the end of its warm-up,
    to the end of the last job. An event whose job has ended has "during", the summary of the
    requests that arrived meanwhile. Raises RaidxError.
    """
    experiment.check()
    keeps_content = experiment.content or experiment.verify
    seed = experiment.seed * MEMBERS_MAX
    hardware = replace(experiment, name="lab", keeps_content=keeps_content, seed=seed)
    with ungrouped():
        async with modelled_array(hardware, random.Random(experiment.seed)) as (array, modelled):
            for key, text in experiment.settings.items():
                await array.set(key, text)
            if experiment.prefilled:
                assume_written(array)
            if not experiment.stripe_locks:
                array.context.locks = array.context.cells.locks = NoLocks()
            if experiment.prepare is not None:
                await experiment.prepare(array)
            result = await _drive(array, experiment, modelled.member, recorder)
            link = modelled.link
            if link is not None:
                result["network"] = {"bytes": link.carried_bytes, "busy_s": link.busy_s}
            return result


async def _drive(
    array: Array, experiment: Experiment, new: NewMember, recorder: Recorder
) -> Figures:
    before = [snapshot(array)]
    content = Content(array.size_bytes, experiment.seed) if experiment.verify else None
    events: list[EventReport] = []
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
    extra: Figures = {}
    if isinstance(target, ControllerCache):
        extra["controller"] = {"hits": target.hits}
    for event in events:
        if "job_ended_s" in event:
            event["during"] = recorder.summary(event["at_s"], event["job_ended_s"])
    if experiment.report is not None and (report := dict(experiment.report(array))):
        extra["extra"] = report
    if content is not None:
        await read_back(array, content)
        extra |= {"verified_bytes": content.checked_bytes, "wrong": content.wrong}
    return {
        "name": experiment.name,
        "layout": experiment.layout,
        "image_bytes": array.size_bytes,
        **recorder.figures(experiment.warm_up_s),
        "state": array.status()["state"],
        "array": stats["array"],
        "members": stats["members"],
        "events": events,
        "sections": beside(recorder.sections(experiment.section_s), [samples]),
        **extra,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolVolume:
    """A volume of *size_bytes* on the array with that name."""

    name: str
    array: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class VolumeLoad(Source):
    """A load of *volume* from *begin_s* on; *depth* as in `Experiment`, 0: at their times."""

    volume: str
    begin_s: float = 0.0
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExperiment:
    """Several arrays, their volumes and the loads of these; what has no word here: `Experiment`.

    *settings* are those of the pool; those of an array are its own, or the pool's for it. *events*
    name their array, except those that set a setting of the pool.
    """

    arrays: Sequence[Hardware]
    volumes: Sequence[PoolVolume]
    loads: Sequence[VolumeLoad]
    name: str = "experiment"
    settings: Mapping[str, str] = field(default_factory=dict)
    prefilled: bool = True
    verify: bool = False
    section_s: float = 0.0
    events: Sequence[Event] = ()
    seed: int = 0

    def check(self) -> None:
        """Raise UsageError if a part names another one that is not there."""
        arrays = [array.name for array in self.arrays]
        volumes = [volume.name for volume in self.volumes]
        for kind, names in (("arrays", arrays), ("volumes", volumes)):
            if not names or len(set(names)) != len(names):
                raise UsageError(f"an experiment needs {kind}, and each needs its own name")
        for volume in self.volumes:
            _require("array", volume.array, arrays)
        for load in self.loads:
            _require("volume", load.volume, volumes)
        for event in self.events:
            event.check()
            if event.array or not (event.do == "set" and is_of_pool(event.key)):
                _require("array", event.array, arrays)


def _require(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UsageError(f"there is no {kind} {name!r}", action=f"there is: {', '.join(known)}")


class _LoadRecorder(Recorder):
    """Passes the requests of a load that begins at *begin_s* on to *recorders*."""

    def __init__(self, begin_s: float, *recorders: Recorder) -> None:
        super().__init__()
        self._begin_s = begin_s
        self._recorders = recorders

    def add(self, at_s: float, response_s: float, is_write: bool, length_bytes: int) -> None:
        for recorder in self._recorders:
            recorder.add(at_s + self._begin_s, response_s, is_write, length_bytes)

    def count_held_back(self) -> None:
        for recorder in self._recorders:
            recorder.count_held_back()

    def fail(self, message: str) -> None:
        for recorder in self._recorders:
            recorder.fail(message)


class _Counted:
    """A volume that counts requests, as front ends do: the target of a load."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    async def read(self, offset_bytes: int, length_bytes: int) -> ReadBuffer:
        self._volume.count_read(length_bytes)
        return await self._volume.read(offset_bytes, length_bytes)

    async def write(self, offset_bytes: int, data: ReadBuffer) -> None:
        self._volume.count_write(len(data))
        await self._volume.write(offset_bytes, data)


class _NotedMover(JobMover):
    """Moves volumes and notes when, in seconds since *start_s*."""

    def __init__(self, pool: Pool, start_s: float) -> None:
        super().__init__(pool)
        self._start_s = start_s
        self.moves: list[dict[str, str | float]] = []

    async def move(self, volume: str, array: str) -> None:
        with self._noted([(volume, array)]):
            await super().move(volume, array)

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        with self._noted(moves):
            await super().exchange(moves)

    @contextmanager
    def _noted(self, moves: Sequence[tuple[str, str]]) -> Iterator[None]:
        notes: list[dict[str, str | float]] = []
        for volume, array in moves:
            source = self._pool.find(volume)[0].array.name
            notes.append({"volume": volume, "from": source, "to": array, "begin_s": self._now_s()})
        self.moves += notes
        try:
            yield
        except RaidxError as error:
            for note in notes:
                note["error"] = str(error)
            raise
        for note in notes:
            note["end_s"] = self._now_s()

    def _now_s(self) -> float:
        return digits(trio.current_time() - self._start_s)


async def measure_pool(experiment: PoolExperiment, recorder: Recorder) -> Figures:
    """Build the arrays, drive all loads, return the result; under the clock of the running loop.

    The result has the fields of `measure` except "array", "members", "layout" and "image_bytes",
    and "arrays", each with these and its "utilisation" by interval; "volumes", each with its array
    at the end and the fields of `Recorder.summary`; "balance": when which arrays were "hotspots",
    and the "moves". It ends with the last load, event and move. Raises RaidxError.
    """
    experiment.check()
    chance = random.Random(experiment.seed)
    with ungrouped():
        async with AsyncExitStack() as stack:
            parts, makers = [], {}
            for number, one in enumerate(experiment.arrays):
                hardware = replace(
                    one,
                    with_volume=False,
                    keeps_content=experiment.verify,
                    seed=(experiment.seed * len(experiment.arrays) + number) * MEMBERS_MAX,
                )
                opened = modelled_array(hardware, chance)
                array, modelled = await stack.enter_async_context(opened)
                makers[hardware.name] = modelled.member
                volumes = await stack.enter_async_context(open_volumes(array))
                for wanted in experiment.volumes:
                    if wanted.array == hardware.name:
                        made = await volumes.create(wanted.name, wanted.size_bytes)
                        if experiment.prefilled:
                            assume_written(array, volumes.extents(made))
                parts.append(volumes)
            pool = await stack.enter_async_context(open_pool(parts))
            settings = PoolSettings([part.array for part in pool.arrays])
            for key, text in experiment.settings.items():
                await settings.set(key, text)
            for one, part in zip(experiment.arrays, pool.arrays, strict=True):
                for key, text in one.settings.items():
                    if is_of_pool(key):
                        await settings.set(key, text, part.array)
                    else:
                        await part.array.set(key, text)
            mover = _NotedMover(pool, trio.current_time())
            balancer = await stack.enter_async_context(watched(pool.arrays, mover))
            return await _Run(experiment, pool, balancer, mover, makers, recorder).result()


@dataclass
class _Run:
    """One run of *experiment* on the mounted *pool*."""

    experiment: PoolExperiment
    pool: Pool
    balancer: Balancer
    mover: _NotedMover
    makers: Mapping[str, NewMember]
    recorder: Recorder
    start_s: float = field(default_factory=trio.current_time)
    events: list[EventReport] = field(default_factory=list)
    hotspots: list[Figures] = field(default_factory=list)
    contents: dict[str, Content] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recorders = {volume.name: Recorder() for volume in self.experiment.volumes}
        self.balancer.on_sample.append(self.note_hotspots)

    def note_hotspots(self) -> None:
        now_s = digits(trio.current_time() - self.start_s)
        hot = self.balancer.planning.hotspots()
        for one in self.hotspots:
            if one["end_s"] is None and one["array"] not in hot:
                one["end_s"] = now_s
        known = [one["array"] for one in self.hotspots if one["end_s"] is None]
        self.hotspots += [
            {"array": name, "begin_s": now_s, "end_s": None} for name in hot if name not in known
        ]

    async def result(self) -> Figures:
        experiment = self.experiment
        arrays = [part.array for part in self.pool.arrays]
        before = [snapshot(array) for array in arrays]
        samples = [Samples(array, experiment.section_s) for array in arrays]
        async with trio.open_nursery() as sampling:
            for one in samples:
                sampling.start_soon(one.take)
            async with trio.open_nursery() as nursery:
                for array in arrays:
                    nursery.start_soon(self.happen, array)
                nursery.start_soon(self.set_pool)
                for load in experiment.loads:
                    nursery.start_soon(self.serve, load)
            while self.balancer.running:
                await self.balancer.finished.wait()
            sampling.cancel_scope.cancel()
        for one in samples:
            one.finish()
        extra = await self.verified() if experiment.verify else {}
        sections = beside(self.recorder.sections(experiment.section_s), samples)
        described = [self.array(array, was) for array, was in zip(arrays, before, strict=True)]
        for section in sections:
            end_s = section["from_s"] + experiment.section_s
            section["utilisation"] = {
                one["name"]: _mean(one["utilisation"], section["from_s"], end_s)
                for one in described
            }
        states = [array.status()["state"] for array in arrays]
        return {
            "name": experiment.name,
            **self.recorder.figures(),
            "state": next((state for state in states if state != "clean"), "clean"),
            "arrays": described,
            "volumes": [self.volume(volume) for volume in experiment.volumes],
            "balance": {"hotspots": self.hotspots, "moves": self.mover.moves},
            "events": sorted(self.events, key=lambda event: float(event["at_s"])),
            "sections": sections,
            **extra,
        }

    async def happen(self, array: Array) -> None:
        events = [event for event in self.experiment.events if event.array == array.name]
        own = [e for e in events if not (e.do == "set" and is_of_pool(e.key))]
        for report in await play(array, own, self.makers[array.name]):
            self.events.append({"array": array.name, **report})

    async def set_pool(self) -> None:
        events = [e for e in self.experiment.events if e.do == "set" and is_of_pool(e.key)]
        for event in sorted(events, key=lambda event: event.at_s):
            await sleep_until(self.start_s + event.at_s)
            setting = f"{event.key}={event.value}"
            report: EventReport = {"at_s": event.at_s, "do": event.do, "set": setting}
            array = self.pool.array(event.array).array if event.array else None
            try:
                await self.balancer.settings.set(event.key, event.value, array)
            except RaidxError as error:
                report["refused"] = str(error)
            self.events.append(report)

    async def serve(self, load: VolumeLoad) -> None:
        _, volume = self.pool.find(load.volume)
        recorder = _LoadRecorder(load.begin_s, self.recorders[load.volume], self.recorder)
        content = None
        if self.experiment.verify:
            content = self.contents.setdefault(
                load.volume, Content(volume.size_bytes, self.experiment.seed)
            )
        await sleep_until(self.start_s + load.begin_s)
        made = load.load(volume.size_bytes)
        await drive(_Counted(volume), made, recorder, depth=load.depth or None, content=content)

    async def verified(self) -> Figures:
        wrong: list[str] = []
        for name, content in self.contents.items():
            await read_back(self.pool.find(name)[1], content)
            wrong += [f"volume {name}: {line}" for line in content.wrong]
        checked = sum(content.checked_bytes for content in self.contents.values())
        return {"verified_bytes": checked, "wrong": wrong}

    def array(self, array: Array, before: Snapshot) -> Figures:
        stats = difference(before, snapshot(array))
        history = self.balancer.monitor.arrays.get(array.uuid)
        rows = history.newest(1 << 30).tolist() if history else []
        return {
            "name": array.name,
            "layout": array.status()["layout"],
            "image_bytes": array.size_bytes,
            "state": array.status()["state"],
            "array": stats["array"],
            "members": stats["members"],
            "utilisation": [
                {
                    "at_s": digits(row[0] - self.start_s),
                    "estimated": digits(row[1]),
                    "measured": digits(row[2]),
                }
                for row in rows
            ],
        }

    def volume(self, wanted: PoolVolume) -> Figures:
        part, volume = self.pool.find(wanted.name)
        recorder = self.recorders[wanted.name]
        return {
            "name": volume.name,
            "size": volume.size_bytes,
            "array": part.array.name,
            **recorder.summary(),
            "failed": recorder.failed,
        }


def _mean(observations: Sequence[Mapping[str, float]], begin_s: float, end_s: float) -> float:
    """Return the mean of Eq. 5 over the observations that end inside a time; 0 if none does."""
    inside = [one["estimated"] for one in observations if begin_s < one["at_s"] <= end_s]
    return digits(sum(inside) / len(inside)) if inside else 0.0
