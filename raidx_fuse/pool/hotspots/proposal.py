"""From what the monitor has seen to a plan: the system that planners work on, and its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raidx_fuse.array.status import state
from raidx_fuse.errors import JobRunningError, ReadOnlyError, Reason, UsageError
from raidx_fuse.jobs.costs import redundancy_left
from raidx_fuse.members.threads import in_thread
from raidx_fuse.pool.array_volumes import ArrayVolumes
from raidx_fuse.pool.balance.actions import Action, actions_of, copied_bytes
from raidx_fuse.pool.balance.dswap import evacuate
from raidx_fuse.pool.balance.plan import Plan, explain
from raidx_fuse.pool.balance.rules import repaid
from raidx_fuse.pool.balance.strategies import planned, planner_named
from raidx_fuse.pool.balance.system import ArraySpec, System, VolumeSpec, make_system
from raidx_fuse.pool.balance.utilisation import ArrayShape, VolumeLoad, bandwidths, request_s
from raidx_fuse.pool.hotspots.sampler import Sampler

if TYPE_CHECKING:
    from raidx_fuse.documents import Proposed

SETTLED = ("clean", "degraded", "failed")
"""States of an array in which nothing is being rebuilt or changed."""
MOVING = ("move", "swap")  # kinds of jobs

PLAN_S = 120.0  # the planner exact gives up after 30 s by itself
RELIEF = 0.9
"""An array that is a hotspot by its latency alone is to lose a tenth of its load."""


@dataclass(frozen=True)
class Proposal:
    """A *plan* and the *actions* that carry it out; *hot*: the arrays that are hotspots.

    *written*: bytes of each volume that are copied, *rate_bytes_s*: how fast; *redundancy*: how
    many more members each array may lose; *notes*: what the user should know besides.
    """

    plan: Plan
    actions: list[Action]
    hot: list[str]
    written: dict[str, int]
    rate_bytes_s: float
    redundancy: dict[str, int]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the actions in words, in order."""
        system = self.plan.system
        found = []
        for action in self.actions:
            volume, source = system.volumes[action.volume], system.arrays[action.source]
            target = system.arrays[action.target]
            later = ", to go on later" * action.detour + ", in pieces" * bool(action.together)
            found.append(f"move {volume} from {source} to {target}{later}")
        return found

    def as_dict(self) -> Proposed:
        """Return the proposal as JSON values."""
        plan, system = self.plan, self.plan.system
        copied = copied_bytes(plan, self.actions)
        written = sum(self.written[system.volumes[action.volume]] for action in self.actions)
        left = [self.redundancy[name] for name in system.arrays]
        now = min([left[action.source] for action in self.actions] or left)
        end = min([left[action.target] for action in self.actions] or left)
        reduced = any(left[action.target] < left[action.source] for action in self.actions)
        return {
            "planner": plan.strategy,
            "solved": plan.solved,
            "hotspots": self.hot,
            "moves": [
                {
                    "volume": system.volumes[move.volume],
                    "from": system.arrays[move.source],
                    "to": system.arrays[move.target],
                    "size": int(system.size[move.volume]),
                    "step": move.reason.step,
                }
                for move in plan.moves
            ],
            "steps": self.lines(),
            "bytes_moved": plan.cost_bytes,
            "bytes_copied": copied,
            "bytes_read": written,
            "bytes_written": written,
            "seconds": written / self.rate_bytes_s,
            "utilisation": [
                {"array": name, "now": now, "expected": then, "tau": tau}
                for name, now, then, tau in zip(
                    system.arrays,
                    plan.before.tolist(),
                    plan.after.tolist(),
                    system.tau.tolist(),
                    strict=True,
                )
            ],
            "redundancy_left": min(left),
            "redundancy_reduced": reduced,
            "redundancy": {"now": now, "worst": min(now, end), "end": end},  # of volumes that move
            "explanation": [*explain(plan), *self.notes],
        }


class Planning:
    """Makes proposals for the pool of *sampler* from what that has observed."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._pool, self._monitor = sampler.pool, sampler.monitor
        self._settings = sampler.settings

    def hotspots(self) -> list[str]:
        """Return the names of the arrays that are hotspots."""
        arrays = [part.array for part in self._pool]
        return [
            array.name
            for array in arrays
            if self._monitor.is_hotspot(array.uuid, self._settings.rule_of(array))
        ]

    async def balance(self, planner: str | None = None) -> Proposal:
        """Return a plan by *planner*. Raises UsageError, BusyError, NoSpaceError."""
        self.require_possible()
        name = planner or self._settings.value("balance.planner")
        planner_of = planner_named(name)
        if not any(self._monitor.arrays.values()):
            seconds = self._settings.value("hot.interval")
            raise UsageError(
                "nothing was observed yet",
                action=f"wait {2 * seconds:g} s, two intervals",
                reason=Reason.BUSY,
            )
        system, shapes = self.system()
        within = self._settings.value("balance.repaid_within")
        if within != "off":
            system = repaid(system, _copy_rate(shapes), within)
        return await self._proposal(system, shapes, lambda merged: planner_of(merged, 0))

    async def evacuation(self, array: str) -> Proposal:
        """Return a plan that takes every volume off *array*.

        If they fit nowhere without overloading an array, it minds the space alone, and says so.
        Raises UsageError if there is no room, or as `balance`.
        """
        self.require_possible(leaving=array)
        system, shapes = self.system()
        number = system.arrays.index(array)
        proposal = await self._proposal(system, shapes, lambda merged: evacuate(merged, number))
        if _left(proposal.plan, number):
            loose = replace(system, tau=np.full(len(system.arrays), np.inf))
            proposal = await self._proposal(loose, shapes, lambda merged: evacuate(merged, number))
            note = "no array has the bandwidth to spare: only space counts in this plan"
            tight = replace(proposal.plan, system=system)
            proposal = replace(proposal, plan=tight, notes=(note,))
        left = _left(proposal.plan, number)
        if left:
            raise UsageError(
                f"array {array} cannot be emptied: {', '.join(left)} may not move or fits nowhere",
                action="see the rules with raidx get, or add an array to the mount",
                reason=Reason.ARRAY_FULL,
            )
        return proposal

    def require_possible(self, leaving: str = "") -> None:
        """Raise unless volumes can move now; *leaving*: an array that they are to leave."""
        if len(self._pool) < 2:
            raise UsageError("this mount has one array: there is no other one to move volumes to")
        for part in self._pool:
            array = part.array
            if array.read_only:
                raise ReadOnlyError("the mount is read-only", action="mount it read-write")
            word = state(array)
            if word not in SETTLED:
                raise JobRunningError(
                    f"array {array.name} is {word}: no volume moves meanwhile",
                    action=f"wait for it: raidx job MOUNT:{array.name} wait",
                )
            moving = [job.kind for job in array.jobs.running() if job.kind in MOVING]
            if moving:
                raise JobRunningError(
                    f"a {moving[0]} from array {array.name} is under way",
                    action=f"wait for it: raidx job MOUNT:{array.name} wait",
                )
            if word == "failed" and array.name == leaving:
                raise UsageError(
                    f"array {array.name} has failed: its volumes cannot be read",
                    reason=Reason.ARRAY_FAILED,
                )

    def system(self) -> tuple[System, list[ArrayShape]]:
        """Return the pool as planners see it: loads are the means of each array's window.

        Of an array that is a hotspot only the observations count that made it one.
        """
        settings, monitor = self._settings, self._monitor
        shapes = [self._sampler.shape(part.array) for part in self._pool]
        loads: list[VolumeLoad] = []
        for part in self._pool:
            rule = settings.rule_of(part.array)
            times = monitor.hot_times(part.array.uuid, rule)
            loads += [
                monitor.mean_load(volume.uuid, rule.window, times if len(times) else None)
                for volume in part.volumes
            ]
        capacity, needs = bandwidths(shapes, loads)
        arrays: list[ArraySpec] = []
        volumes: list[VolumeSpec] = []
        stay = {name for group in settings.groups("balance.stay") for name in group}
        for number, part in enumerate(self._pool):
            held = 0
            first = len(volumes)
            targets = [
                other.array.name
                for other in self._pool
                if self._may_hold(other, part)
                and settings.value("balance.target", other.array) == "on"
            ]
            for volume in part.volumes:
                size = sum(extent.length for extent in part.extents(volume))
                held += size
                need = needs[len(volumes)].tolist()
                stays = volume.uuid in stay or volume.name in stay
                volumes.append(VolumeSpec(volume.name, size, part.array.name, need, stays, targets))
            used = needs[first : len(volumes), number].sum() / capacity[number]
            tau = self._tau(part, float(used))
            space = held + part.free_bytes()
            arrays.append(ArraySpec(part.array.name, float(capacity[number]), space, tau))
        return make_system(arrays, volumes, self._named("balance.apart")), shapes

    def _may_hold(self, target: ArrayVolumes, source: ArrayVolumes) -> bool:
        """Say whether volumes of *source* may go to *target*: whole, and no less redundant."""
        enough = target.array.context.code.tolerance >= source.array.context.code.tolerance
        kept = self._settings.value("balance.redundancy") == "any" or enough
        return kept and state(target.array) == "clean"

    def _tau(self, part: ArrayVolumes, used: float) -> float:
        rule = self._settings.rule_of(part.array)
        hot = self._monitor.is_hotspot(part.array.uuid, rule)
        return max(RELIEF * used, 1e-6) if hot and used <= rule.tau else rule.tau

    def _named(self, key: str) -> list[list[str]]:
        """Return the sets of a rule by volumes' names, without volumes that are not here."""
        names = {
            ref: volume.name
            for part in self._pool
            for volume in part.volumes
            for ref in (volume.name, volume.uuid)
        }
        groups = [[names[one] for one in g if one in names] for g in self._settings.groups(key)]
        return [group for group in groups if len(group) > 1]

    async def _proposal(
        self, system: System, shapes: Sequence[ArrayShape], plan_of: Callable[[System], Plan]
    ) -> Proposal:
        together = self._named("balance.together")
        # In a thread: requests of users must not wait while a planner thinks.
        plan = await in_thread(
            "the planner", lambda: planned(system, together, plan_of), limit_s=PLAN_S
        )
        guessed = [
            part.array.name
            for part in self._pool
            if plan.moves and not self._sampler.measured(part.array)
        ]
        notes = tuple(
            f"the members of {name} were not measured yet: taken as those of the other arrays"
            for name in guessed
        )
        may_hold = [
            [self._may_hold(target, source) for target in self._pool] for source in self._pool
        ]
        scratch = np.array(may_hold)[system.where]
        written = {
            volume.name: part.written_bytes(volume)
            for part in self._pool
            for volume in part.volumes
        }
        return Proposal(
            plan,
            actions_of(plan, scratch),
            self.hotspots(),
            written,
            _copy_rate(shapes),
            {part.array.name: redundancy_left(part.array) for part in self._pool},
            notes,
        )


def _left(plan: Plan, array: int) -> list[str]:
    """Return the volumes that *plan* leaves on *array*."""
    return [plan.system.volumes[i] for i in np.flatnonzero(plan.array_of == array).tolist()]


def _copy_rate(shapes: Sequence[ArrayShape]) -> float:
    """Return the bytes a second of copying stripe after stripe on the slowest of the arrays."""
    rates = []
    for shape in shapes:
        stripe = np.array([float(shape.code.data_count * shape.chunk_bytes)])
        rates.append(stripe[0] * shape.disks / request_s(shape, stripe, write=True)[0])
    return float(min(rates))
