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

The same experiment gives the same result, to the last digit, on every machine: the one source of
chance is its seed. Members hold no data unless *content* says so (see blank.py), and the array
counts as written from end to end (*prefilled*), as the papers' arrays are.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raidx_fuse.array import Array, open_array
from raidx_fuse.format.create import create_array
from raidx_fuse.interval import difference, snapshot
from raidx_fuse.lab.blank import BlankMember
from raidx_fuse.lab.drive import OUTSTANDING_MAX, drive
from raidx_fuse.lab.record import Recorder
from raidx_fuse.lab.request import Load
from raidx_fuse.members.model import ModelMember
from raidx_fuse.members.open import parse_spec
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.service import make_model
from raidx_fuse.virtual_time import run

MEMBER_BYTES = 8 << 30


def no_report(_array: Array) -> dict[str, Any]:
    """Add nothing to the result."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One array under one load.

    *members* are models with numbers by hand, as behind ``model=`` in a member's spec: "hdd",
    "ssd,read_mb_s=445,write_mb_s=135". *load* makes the load for an image of that many bytes;
    *depth* sends it as fast as possible, so many at a time, instead of at its times. *settings* are
    those of `raidx set`. *section_s*: a summary of each such span of time as well. *report* adds
    what it finds in the running array, after the load, to the result under "extra".
    """

    layout: str
    members: Sequence[str]
    load: Callable[[int], Load]
    name: str = "experiment"
    member_bytes: int = MEMBER_BYTES
    chunk_bytes: int = 64 << 10
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    depth: int | None = None
    outstanding_max: int = OUTSTANDING_MAX
    prefilled: bool = True
    content: bool = False
    section_s: float = 0.0
    seed: int = 0
    report: Callable[[Array], Mapping[str, Any]] = no_report


def simulate(experiment: Experiment) -> dict[str, Any]:
    """Run *experiment* and return its result (see `measure`). Raises RaidxError."""
    return run(measure, experiment, seed=experiment.seed)


async def measure(experiment: Experiment) -> dict[str, Any]:
    """Build the array, drive the load, return the result; under whatever clock runs.

    The result has the fields of `Recorder.summary`, "failed", "errors", "held_back", "sections",
    and "array" and "members" as `raidx stats --json` has them, counted over the load alone.
    """
    memory = [member_memory(experiment, number) for number in range(len(experiment.members))]
    members = [modelled(ram, experiment, number) for number, ram in enumerate(memory)]
    chance = random.Random(experiment.seed)
    config = await create_array(
        members,
        experiment.layout,
        chunk_bytes=experiment.chunk_bytes,
        params=experiment.params,
        name="lab",
        now_s=0,
        uuid_source=lambda: str(uuid.UUID(int=chance.getrandbits(128), version=4)),
    )
    for ram in memory:
        if isinstance(ram, BlankMember):
            ram.forgotten = config.regions.data
    async with open_array(members) as array:
        for key, text in experiment.settings.items():
            await array.set(key, text)
        if experiment.prefilled:
            assume_written(array)
        return await _drive(array, experiment)


def member_memory(experiment: Experiment, number: int) -> RamMember:
    """Return the memory behind member *number*."""
    kind = RamMember if experiment.content else BlankMember
    return kind(experiment.member_bytes, name=f"disk{number}")


def modelled(ram: RamMember, experiment: Experiment, number: int) -> ModelMember:
    """Return *ram* at the pace of the experiment's member *number*. Raises UsageError."""
    spec = parse_spec(f"ram:1MiB,model={experiment.members[number]}")
    assert spec.model is not None
    seed = experiment.seed * 1000 + number
    return ModelMember(ram, make_model(spec.model, **spec.numbers), seed=seed)


def assume_written(array: Array) -> None:
    """Make every chunk of a fresh array count as written: the members read as zero, and zeros are
    consistent. Only the map in memory changes, so the array must not outlive its members.
    """
    written = array.core.written
    whole, rest = divmod(written.chunks, 8)
    written.bits[:whole] = b"\xff" * whole
    if rest:
        written.bits[whole] |= (1 << rest) - 1


async def _drive(array: Array, experiment: Experiment) -> dict[str, Any]:
    before = snapshot(array)
    recorder = Recorder()
    await drive(
        array,
        experiment.load(array.size_bytes),
        recorder,
        depth=experiment.depth,
        outstanding_max=experiment.outstanding_max,
    )
    stats = difference(before, snapshot(array))
    extra = dict(experiment.report(array))
    return {
        "name": experiment.name,
        "layout": experiment.layout,
        "image_bytes": array.size_bytes,
        **recorder.summary(),
        "failed": recorder.failed,
        "errors": recorder.errors,
        "held_back": recorder.held_back,
        "array": stats["array"],
        "members": stats["members"],
        "sections": recorder.sections(experiment.section_s),
        **({"extra": extra} if extra else {}),
    }
