"""`stats --hot` and `advise`: where the load goes, and what a raidx layout would gain for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import numpy as np
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.documents import Advice as Advised
from raidx_fuse.documents import AdvisedLayout, AdvisedMember, Verdict
from raidx_fuse.engine.access_stats import Heat
from raidx_fuse.engine.chunk_map import heat_of
from raidx_fuse.errors import BusyError, Reason, UsageError
from raidx_fuse.jobs.tuner.forecast import Forecast, Model, candidates, forecast, traffic_of
from raidx_fuse.jobs.tuner.measure import Measurements
from raidx_fuse.jobs.tuner.plan import RESPONSE_STEP_S
from raidx_fuse.jobs.tuner.speeds import MemberLoad
from raidx_fuse.layouts.numbers import by_role

SHOWN_MAX = 20  # regions
SAMPLES = 64  # chunks of a region whose members are looked up
ACCESSES_MIN = 1000  # of chunks; what fewer say may be chance
GAIN_MIN = 1.1  # times as fast; the model is not more exact


class Advice:
    """The commands about the heat of *array*; *where* returns what its commands call ARRAY."""

    def __init__(self, array: Array, where: Callable[[], str | None]) -> None:
        self._array = array
        self._where = where
        self._measured: Measurements | None = None
        self._is_running = False

    async def heat(self) -> Result:
        """Return the places of the image that are used most, with the members that hold them."""
        heat, layout = heat_of(self._array.context), self._array.context.layout
        chunk_bytes, total = self._array.context.chunk_bytes, heat.total
        whole = float(total.sum())
        order = np.argsort(-total, kind="stable")
        used = int(np.count_nonzero(total))
        half = int(np.searchsorted(np.cumsum(total[order]), whole / 2)) + 1 if used else 0
        rows = []
        for region in order[: min(used, SHOWN_MAX)].tolist():
            first = region * heat.region_chunks
            last = min(first + heat.region_chunks, layout.chunks)
            chunks = range(first, last, max(1, (last - first) // SAMPLES))
            roles = {int(layout.place(*layout.locate(chunk))[0]) for chunk in chunks}
            rate = float(total[region])
            rows.append(
                {
                    "image_offset": first * chunk_bytes,
                    "length": (last - first) * chunk_bytes,
                    "accesses_per_second": round(rate, 6),
                    "share_ratio": round(rate / whole, 6),
                    "write_ratio": round(float(heat.writes[region]) / rate, 6),
                    "in_order_ratio": round(min(1.0, float(heat.in_order[region]) / rate), 6),
                    "roles": sorted(roles),
                }
            )
        return {
            "region_bytes": heat.region_chunks * chunk_bytes,
            "accesses_per_second": round(whole, 6),
            "write_ratio": round(heat.write_share, 6),
            "used_ratio": round(used / len(total), 6),
            "half_ratio": round(half / len(total), 6),
            "hot": rows,
        }

    async def advise(self) -> Advised:
        """Return what a raidx layout would gain for the load seen, and the commands for it."""
        if self._is_running:
            raise BusyError("advice is being computed already", action="ask again in a moment")
        self._is_running = True
        try:
            return await self._advise()
        finally:
            self._is_running = False

    async def _advise(self) -> Advised:
        array, context = self._array, self._array.context
        if context.member_set.lost:
            raise UsageError(
                "a member is lost: what the others do now says little about the layout",
                action="replace it first",
                reason=Reason.DEGRADED,
            )
        heat = heat_of(context)
        counter = context.traffic.heat
        accesses = 0 if counter is None else counter.arrivals
        document: Advised = {
            "layout": array.member_set.config.layout,
            "accesses": accesses,
            "region_bytes": heat.region_chunks * context.chunk_bytes,
            "write_ratio": round(heat.write_share, 6),
            "present_ms": None,
            "in_turn_ms": None,
            "members": [],
            "options": [],
            "speedup": 1.0,
            "does": "",
            "next": [],
        }
        if accesses < ACCESSES_MIN:
            return document | {
                "does": f"nothing yet: {accesses} accesses of chunks were seen since the mount, "
                f"and advice needs {ACCESSES_MIN}; ask again under the usual load"
            }
        loads = await self._measure()
        planned, judged = (heat, heat) if counter is None else counter.halves()
        model = Model(loads, judged, context.chunk_bytes)
        present = traffic_of(context.layout, model, model.heat.region_chunks)
        present_ms = model.access_ms(present)
        document["present_ms"] = present_ms
        if context.code.is_copies:
            document["in_turn_ms"] = model.access_ms(present, in_turn=True)
        document["members"] = [_member(load) for load in loads]
        if present_ms <= 0:
            does = "nothing: the members answer from memory, in no time that could be measured"
            return document | {"does": does}
        if array.tuner is not None:
            return {**document, **await self._of_tuner()}
        found = await self._forecasts(model, planned)
        document["options"] = [
            {
                "layout": each.layout,
                "length": each.length,
                "image_bytes": each.image_bytes,
                "made_ms": each.made_ms,
                "tuned_ms": each.tuned_ms,
                "chunks_moved": each.chunks_moved,
                "speedup": present_ms / each.tuned_ms if each.tuned_ms else 1.0,
            }
            for each in found
        ]
        best = min(found, key=lambda each: each.tuned_ms, default=None)
        return {**document, **self._verdict(best, present_ms, len(loads))}

    async def _measure(self) -> list[MemberLoad]:
        """Return the measured members, in a fixed layout after a few reads of each."""
        array, context = self._array, self._array.context
        if array.tuner is not None:
            await array.tuner.measure(patiently=True)
            return array.tuner.loads()
        access = context.traffic.by_region
        assert access is not None
        if self._measured is None or self._measured.layout is not context.layout:
            self._measured = Measurements(context, context.layout, access, lambda: False)
        await self._measured.measure(patiently=True)
        return self._measured.loads()

    async def _forecasts(self, model: Model, planned: Heat) -> list[Forecast]:
        array, context = self._array, self._array.context
        data = context.member_set.data_offset
        chunks = {
            int(role): max(0, queue.member.size_bytes - data) // context.chunk_bytes
            for role, queue in by_role(context.member_set.queues)
            if queue is not None
        }
        found = []
        for name, length in candidates(context.code.tolerance, context.layout.width):
            made = await forecast(name, length, model, planned, chunks, array.size_bytes)
            if made is not None:
                found.append(made)
            await trio.lowlevel.checkpoint()
        return found

    async def _of_tuner(self) -> Verdict:
        """Return what tuning would gain: the array has a raidx layout already."""
        tuner = self._array.require_tuner()
        plan = await tuner.dry_run()
        speedup = float(plan["speedup"])
        layout = tuner.layout
        option: AdvisedLayout = {
            "layout": layout.name,
            "length": layout.length,
            "image_bytes": layout.size_bytes,
            "made_ms": plan["mean_ms"],
            "tuned_ms": plan["expected_ms"],
            "speedup": speedup,
            "chunks_moved": sum(2 if move["swap"] else 1 for move in plan["moves"]),
        }
        where = shlex.quote(self._where() or "ARRAY")
        if not plan["moves"]:
            return {"options": [option], "does": "nothing: no move of a chunk would gain anything"}
        steps = [f"raidx tune {where} --now --wait"]
        if not tuner.enabled:
            steps.append(f"raidx set {where} tuner.enabled=on")
        does = f"tuning gains up to {speedup:.3g} times the speed: {plan['does']} or more"
        return {"options": [option], "speedup": speedup, "does": does, "next": steps}

    def _verdict(self, best: Forecast | None, present_ms: float, width: int) -> Verdict:
        layout = self._array.member_set.config.layout
        if best is None:
            return {
                "does": f"nothing: no raidx layout on these members would hold the image and "
                f"survive as many losses as {layout}"
            }
        speedup = present_ms / best.tuned_ms
        if present_ms - best.tuned_ms < 1e3 * RESPONSE_STEP_S:
            return {
                "does": f"nothing: {present_ms:.3g} ms an access cannot be cut by "
                f"{1e3 * RESPONSE_STEP_S:g} ms"
            }
        if speedup < GAIN_MIN:
            return {
                "does": f"nothing: the best raidx layout, {best.layout}, would be {speedup:.2f} "
                f"times as fast, and less than {GAIN_MIN} is within the error of the model",
                "speedup": speedup,
            }
        does = f"{best.layout} on members like these would be {speedup:.3g} times as fast"
        return {"does": does, "speedup": speedup, "next": self._steps(best, width)}

    def _steps(self, best: Forecast, width: int) -> list[str]:
        """Return the commands that bring the content to a new array of layout *best*."""
        array = self._array
        where, name = self._where() or "MOUNTPOINT", array.name
        mount = shlex.quote(where.removesuffix(f":{name}"))
        new = " ".join(f"NEW_MEMBER{number}" for number in range(1, width + 1))
        records = array.member_set.config.members
        old = " ".join(
            shlex.quote(array.membership.path_of(record)) for record in records if record.role >= 0
        )
        length = "" if best.length == 1 else f" --length {best.length}"
        chunk = array.context.chunk_bytes >> 10
        return [
            f"raidx create {new} --layout {best.layout}{length} --chunk {chunk}KiB "
            f"--name {shlex.quote(name + '-raidx')} --no-volume",
            f"raidx umount {mount}",
            f"raidx mount {old} {new} {mount}",
            f"raidx array evacuate {mount} {shlex.quote(name)} --wait",
        ]


def _member(load: MemberLoad) -> AdvisedMember:
    """Return the measurements of a member; None where nothing was measured."""

    def mb_s(byte_s: float) -> float | None:
        return 1e-6 / byte_s if byte_s else None

    return {
        "role": load.role,
        "read_ms": load.read.latency_s.value * 1e3,
        "write_ms": load.write.latency_s.value * 1e3 if load.write.latency_s.count else None,
        "mb_s": mb_s(load.read.byte_s.value),
        "write_mb_s": mb_s(load.write.byte_s.value),
        "queue_on_arrival": load.queue,
    }
