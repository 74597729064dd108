"""The commands of a pool's monitor and balancer, in front of those of its volumes and arrays.

`status` and `stats` gain the key *pool*; `get` and `set` know the pool's settings as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from raidx_fuse.array.array import Array
from raidx_fuse.daemon.commands.arguments import check_arguments
from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance.steps import plan_steps
from raidx_fuse.pool.hotspots.balancer import Balancer
from raidx_fuse.pool.hotspots.settings import (
    POOL_SETTINGS,
    RULES,
    is_pool_setting,
    rule_text,
    setting_named,
    split_rule,
)

Result = dict[str, Any]
Handler = Callable[[str, dict[str, Any]], Awaitable[Result]]


class BalanceCommands:
    """The commands of *balancer*; all others go to *rest*. `handle` is a `Handler`."""

    def __init__(self, balancer: Balancer, rest: Handler) -> None:
        self._balancer = balancer
        self._rest = rest
        self._handlers: dict[str, Callable[..., Awaitable[Result]]] = {
            "balance": self.balance,
            "balance-status": self.balance_status,
            "balance-cancel": self.cancel,
            "array-evacuate": self.evacuate,
        }

    async def handle(self, name: str, arguments: dict[str, Any]) -> Result:
        """Run command *name*. Raises UsageError for a bad request, or as the command does."""
        handler = self._handlers.get(name)
        if handler is not None:
            given = dict(arguments)
            given.pop("in_array", None)
            check_arguments(name, handler, given)
            return await handler(**given)
        if name in ("get", "set") and self._is_ours(name, arguments):
            setting = self._set if name == "set" else self._get
            check_arguments(name, setting, arguments)
            return await setting(**arguments)
        result = await self._rest(name, arguments)
        if name == "get" and arguments.get("key") is None:
            array = self._array(arguments.get("in_array"))
            ours = {key: self._shown(key, array) for key in POOL_SETTINGS}
            return {**result, "settings": {**result["settings"], **ours}}
        if name == "status":
            return {**result, "pool": {"arrays": self._balancer.sampler.arrays(), **self._state()}}
        if name == "stats":
            return {**result, "pool": {**self._balancer.sampler.report(), **self._state()}}
        return result

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
        found = self._array(name)
        assert found is not None
        proposal = await self._balancer.planning.evacuation(found.name)
        if not dry_run:
            self._balancer.carry_out(proposal)
        return {**proposal.as_dict(), "dry_run": dry_run, **self._state()}

    async def cancel(self) -> Result:
        """Drop the plan under way; return how it ended."""
        await self._balancer.cancel()
        return self._state()

    async def balance_status(self) -> Result:
        return self._state()

    def _state(self) -> Result:
        return {"balance": self._balancer.status()}

    # -- settings --------------------------------------------------------------------------------

    def _is_ours(self, name: str, arguments: Result) -> bool:
        key = arguments.get("key")
        if isinstance(key, str):
            return is_pool_setting(key)
        several = len(self._balancer.pool) > 1 and arguments.get("in_array") is None
        return name == "get" and key is None and several

    async def _get(self, key: str | None = None, in_array: str | None = None) -> Result:
        keys = POOL_SETTINGS if key is None else [setting_named(key).name]
        array = self._array(in_array)
        return {"settings": {one: self._shown(one, array) for one in keys}}

    async def _set(self, key: str, value: str, in_array: str | None = None) -> Result:
        array = self._array(in_array)
        await self._balancer.settings.set(key, self._rule(value) if key in RULES else value, array)
        return {"settings": {key: self._shown(key, array)}}

    def _shown(self, key: str, array: Array | None) -> Any:
        """Return a setting; of the whole pool one for each array if they differ."""
        settings = self._balancer.settings
        if key in RULES:
            return rule_text(settings.groups(key), self._names())
        arrays = [part.array for part in self._balancer.pool]
        if array is None and setting_named(key).each:
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
                    f"there is no volume {name[:100]}; there is {', '.join(uuids) or 'none'}"
                )
        return rule_text(groups, uuids)

    def _names(self) -> dict[str, str]:
        return {volume.uuid: volume.name for part in self._balancer.pool for volume in part.volumes}

    def _array(self, ref: Any) -> Array | None:
        if ref is None:
            return None
        arrays = [part.array for part in self._balancer.pool]
        for array in arrays:
            if ref in (array.name, array.uuid):
                return array
        names = ", ".join(array.name for array in arrays)
        raise UsageError(f"there is no array {str(ref)[:100]} here; there is {names}")
