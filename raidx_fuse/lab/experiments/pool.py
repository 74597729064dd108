"""Experiments on several arrays in virtual time: volumes, loads, hotspots found and dissolved.

As simulate.py, for what `raidx mount` makes of the members of several arrays: each volume has loads
of its own, the pool's monitor watches, and with `balance.auto` volumes move by themselves. The
result has for the whole pool what that of one array has, and by array and volume what belongs to
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any

import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.statistics import Snapshot, difference, snapshot
from raidx_fuse.errors import RaidxError, ungrouped
from raidx_fuse.lab.experiments.events import NewMember, play
from raidx_fuse.lab.experiments.modelled import assume_written, modelled_array
from raidx_fuse.lab.experiments.pool_parts import PoolExperiment, PoolVolume, VolumeLoad
from raidx_fuse.lab.experiments.samples import Samples
from raidx_fuse.lab.loads.drive import drive, read_back
from raidx_fuse.lab.loads.record import Recorder
from raidx_fuse.lab.loads.verify import Content
from raidx_fuse.members.simulated.virtual_time import run, sleep_until
from raidx_fuse.pool.hotspots.balancer import Balancer, JobMover, watched
from raidx_fuse.pool.hotspots.settings import PoolSettings
from raidx_fuse.pool.move import open_pool
from raidx_fuse.pool.pool import Pool
from raidx_fuse.pool.volume import Volume
from raidx_fuse.pool.volume_table import open_volumes
from raidx_fuse.settings import is_of_pool

MEMBERS_MAX = 1000  # of an array: their seeds are that far from those of the next array


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

    async def read(self, offset_bytes: int, length_bytes: int) -> Any:
        self._volume.count_read(length_bytes)
        return await self._volume.read(offset_bytes, length_bytes)

    async def write(self, offset_bytes: int, data: Any) -> None:
        self._volume.count_write(len(data))
        await self._volume.write(offset_bytes, data)


class _NotedMover(JobMover):
    """Moves volumes and notes when, in seconds since *start_s*."""

    def __init__(self, pool: Pool, start_s: float) -> None:
        super().__init__(pool)
        self._found = pool
        self._start_s = start_s
        self.moves: list[dict[str, Any]] = []

    async def move(self, volume: str, array: str) -> None:
        with self._noted([(volume, array)]):
            await super().move(volume, array)

    async def exchange(self, moves: Sequence[tuple[str, str]]) -> None:
        with self._noted(moves):
            await super().exchange(moves)

    @contextmanager
    def _noted(self, moves: Sequence[tuple[str, str]]) -> Iterator[None]:
        notes: list[dict[str, Any]] = []
        for volume, array in moves:
            source = self._found.find(volume)[0].array.name
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
        return _digits(trio.current_time() - self._start_s)


def simulate_pool(experiment: PoolExperiment, recorder: Recorder | None = None) -> dict[str, Any]:
    """Run *experiment* and return its result (see `measure_pool`). Raises RaidxError.

    *recorder* as in `simulate`.
    """
    recorder = Recorder() if recorder is None else recorder
    return run(measure_pool, experiment, recorder, seed=experiment.seed)


async def measure_pool(experiment: PoolExperiment, recorder: Recorder) -> dict[str, Any]:
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
                    one.hardware,
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
            await _set_all(experiment, pool)
            mover = _NotedMover(pool, trio.current_time())
            balancer = await stack.enter_async_context(watched(pool.arrays, mover))
            return await _Run(experiment, pool, balancer, mover, makers, recorder).result()


async def _set_all(experiment: PoolExperiment, pool: Pool) -> None:
    settings = PoolSettings([part.array for part in pool.arrays])
    for key, text in experiment.settings.items():
        await settings.set(key, text)
    for one, part in zip(experiment.arrays, pool.arrays, strict=True):
        for key, text in one.settings.items():
            await _set(settings, part.array, key, text)


async def _set(settings: PoolSettings, array: Array | None, key: str, text: str) -> None:
    if array is None or is_of_pool(key):
        await settings.set(key, text, array)
    else:
        await array.set(key, text)


class _Run:
    """One run of *experiment* on the mounted *pool*."""

    def __init__(
        self,
        experiment: PoolExperiment,
        pool: Pool,
        balancer: Balancer,
        mover: _NotedMover,
        makers: Mapping[str, NewMember],
        recorder: Recorder,
    ) -> None:
        self.experiment = experiment
        self.pool = pool
        self.balancer = balancer
        self.mover = mover
        self.makers = makers
        self.recorder = recorder
        self.start_s = trio.current_time()
        self.events: list[dict[str, Any]] = []
        self.hotspots: list[dict[str, Any]] = []
        self.recorders = {volume.name: Recorder() for volume in experiment.volumes}
        self.contents: dict[str, Content] = {}
        balancer.on_sample.append(self.note_hotspots)

    def note_hotspots(self) -> None:
        """Note which arrays have become hotspots, and which are none any more."""
        now_s = _digits(trio.current_time() - self.start_s)
        hot = self.balancer.planning.hotspots()
        for one in self.hotspots:
            if one["end_s"] is None and one["array"] not in hot:
                one["end_s"] = now_s
        known = [one["array"] for one in self.hotspots if one["end_s"] is None]
        self.hotspots += [
            {"array": name, "begin_s": now_s, "end_s": None} for name in hot if name not in known
        ]

    async def result(self) -> dict[str, Any]:
        """Drive the loads, let the events happen, and return the result."""
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
        extra: dict[str, Any] = {}
        if experiment.verify:
            extra = await self.verified()
        sections = self.recorder.sections(experiment.section_s)
        for one in samples:
            sections = _beside(sections, one.beside([{} for _ in sections]))
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
            **self.recorder.summary(),
            "failed": self.recorder.failed,
            "errors": self.recorder.errors,
            "held_back": self.recorder.held_back,
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
        """Change settings of the pool when it is time."""
        events = [e for e in self.experiment.events if e.do == "set" and is_of_pool(e.key)]
        for event in sorted(events, key=lambda event: event.at_s):
            await sleep_until(self.start_s + event.at_s)
            report = {"at_s": event.at_s, "do": event.do, "set": f"{event.key}={event.value}"}
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
        await drive(_Counted(volume), made, recorder, depth=load.depth, content=content)

    async def verified(self) -> dict[str, Any]:
        """Read everything back; return what was compared, and what was wrong."""
        wrong: list[str] = []
        for name, content in self.contents.items():
            await read_back(self.pool.find(name)[1], content)
            wrong += [f"volume {name}: {line}" for line in content.wrong]
        checked = sum(content.checked_bytes for content in self.contents.values())
        return {"verified_bytes": checked, "wrong": wrong}

    def array(self, array: Array, before: Snapshot) -> dict[str, Any]:
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
                    "at_s": _digits(row[0] - self.start_s),
                    "estimated": _digits(row[1]),
                    "measured": _digits(row[2]),
                }
                for row in rows
            ],
        }

    def volume(self, wanted: PoolVolume) -> dict[str, Any]:
        part, volume = self.pool.find(wanted.name)
        recorder = self.recorders[wanted.name]
        return {
            "name": volume.name,
            "size": volume.size_bytes,
            "array": part.array.name,
            **recorder.summary(),
            "failed": recorder.failed,
        }


def _beside(
    sections: list[dict[str, Any]], rows: Sequence[Mapping[str, list[float]]]
) -> list[dict[str, Any]]:
    """Return *sections* with the samples of one more array behind those that they have."""
    return [
        section | {key: [*section.get(key, ()), *values] for key, values in row.items()}
        for section, row in zip(sections, rows, strict=True)
    ]


def _mean(observations: Sequence[Mapping[str, float]], begin_s: float, end_s: float) -> float:
    """Return the mean of Eq. 5 over the observations that end inside a time; 0 if none does."""
    inside = [one["estimated"] for one in observations if begin_s < one["at_s"] <= end_s]
    return _digits(sum(inside) / len(inside)) if inside else 0.0


def _digits(value: float) -> float:
    """Return *value* to nine digits: a printed figure, not a memory image."""
    return float(f"{value:.9g}")
