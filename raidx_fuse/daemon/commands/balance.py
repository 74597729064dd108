"""The commands of a pool's monitor and balancer, and what they add to `status` and `stats`."""

from __future__ import annotations

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import Result
from raidx_fuse.documents import PoolStats, PoolStatus
from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.pool.balance.steps import plan_steps
from raidx_fuse.pool.hotspots.balancer import Balancer
from raidx_fuse.pool.hotspots.settings import rule_text, split_rule
from raidx_fuse.pool.pool import array_named
from raidx_fuse.settings import EACH, OF_POOL, RULES, setting_named


class BalanceCommands:
    """The commands of *balancer*."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer

    def in_status(self) -> PoolStatus:
        """Return what the status of a mount shows as *pool*."""
        return {"arrays": self._balancer.sampler.arrays(), "balance": self._balancer.status()}

    def in_stats(self) -> PoolStats:
        """Return what the statistics of a mount show as *pool*."""
        return {**self._balancer.sampler.report(), "balance": self._balancer.status()}

    # -- plans -----------------------------------------------------------------------------------

    async def balance(
        self, planner: str | None = None, dry_run: bool = False, step: bool = False
    ) -> Result:
        """Plan to remove hotspots, and unless *dry_run* begin to do it; *step*: with its steps."""
        proposal = await self._balancer.planning.balance(planner)
        if not dry_run:
            self._balancer.start(proposal)
        more = {"trace": plan_steps(proposal.plan)} if step else {}
        return {**proposal.as_dict(), **more, "dry_run": dry_run, **self._state()}

    async def evacuate(self, name: str, dry_run: bool = False) -> Result:
        """Plan to move every volume off array *name*, and unless *dry_run* begin to do it."""
        found = array_named([part.array for part in self._balancer.pool], name)
        proposal = await self._balancer.planning.evacuation(found.name)
        if not dry_run:
            self._balancer.start(proposal, solved=False)
        return {**proposal.as_dict(), "dry_run": dry_run, **self._state()}

    async def cancel(self) -> Result:
        await self._balancer.cancel()
        return self._state()

    async def balance_status(self) -> Result:
        return self._state()

    def _state(self) -> Result:
        return {"balance": self._balancer.status()}

    # -- settings --------------------------------------------------------------------------------

    def get(self, key: str | None, in_array: str | None) -> Result:
        """Return the setting *key* or all, of the array *in_array* if arrays may differ."""
        keys = OF_POOL if key is None else [setting_named(key).name]
        array = self._array(in_array)
        return {one: self._shown(one, array) for one in keys}

    async def set(self, key: str, value: str, in_array: str | None) -> object:
        """Put a setting into force, of *in_array* if arrays may differ; return its value."""
        array = self._array(in_array)
        await self._balancer.settings.set(key, self._rule(value) if key in RULES else value, array)
        return self._shown(key, array)

    def _shown(self, key: str, array: Array | None) -> object:
        """Return a setting; of the whole pool one for each array if they differ."""
        settings = self._balancer.settings
        if key in RULES:
            return rule_text(settings.groups(key), self._names())
        arrays = [part.array for part in self._balancer.pool]
        if array is None and setting_named(key).of == EACH:
            values = {one.name: settings.value(key, one) for one in arrays}
            if len(set(values.values())) > 1:
                return values
        return settings.value(key, array)

    def _rule(self, text: str) -> str:
        """Return *text* with UUIDs for the names of volumes. Raises UsageError for unknown ones."""
        uuids = {name: uuid for uuid, name in self._names().items()}
        groups = split_rule(text)
        for name in (one for group in groups for one in group):
            if name not in uuids and name not in uuids.values():
                raise UsageError(
                    f"there is no volume {name[:100]}; there is {', '.join(uuids) or 'none'}",
                    reason=Reason.NO_SUCH_VOLUME,
                )
        return rule_text(groups, uuids)

    def _names(self) -> dict[str, str]:
        return {volume.uuid: volume.name for part in self._balancer.pool for volume in part.volumes}

    def _array(self, ref: str | None) -> Array | None:
        arrays = [part.array for part in self._balancer.pool]
        return None if ref is None else array_named(arrays, ref)
