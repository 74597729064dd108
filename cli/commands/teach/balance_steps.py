"""The output of `raidx balance --step`: a plan step by step, of a pool or of the paper's Fig. 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output
from raidx_fuse.pool.balance.steps import example, plan_steps
from raidx_fuse.pool.balance.strategies import make

PAPER = "dswap-paper"


def stepped_plan(out: Output, mount: str | None, planner: str | None) -> dict[str, Any]:
    """Return the plan of a dry run with its *trace*; without *mount*, of the paper's example."""
    if mount is not None:
        return ask(out, mount, "balance", planner=planner, dry_run=True, step=True)
    plan = make(planner or PAPER, example())
    return {
        "planner": plan.strategy,
        "example": "Fig. 2 of the Dswap paper",
        "solved": plan.solved,
        "bytes_moved": plan.cost_bytes,
        "trace": plan_steps(plan),
    }


def plan_page(document: dict[str, Any], out: Output) -> Iterator[str]:
    """Yield the plan as lines."""
    source = document.get("example", "this pool as it was observed; nothing is moved")
    yield f"{source}; planner {document['planner']}"
    for step in document["trace"]:
        yield f"step {step['step']}: {_title(step, out)}"
        yield from _PAGES.get(step["does"], _nothing)(step, out)
        if step["does"] != "end":
            yield from (f"    {line}" for line in _arrays(step["arrays"], out))


def _title(step: dict[str, Any], out: Output) -> str:
    if step["does"] == "begin":
        return f"overloaded: {', '.join(step['overloaded']) or 'no array'}"
    if step["does"] == "end":
        state = "no array is overloaded" if step["solved"] else "an array would stay overloaded"
        return f"{state}; {out.size(step['bytes_moved'])} of volumes are moved"
    volumes, back = ", ".join(step["volumes"]), ", ".join(step["back"])
    if step["does"] in ("swap", "exchange"):
        given = back or "nothing"
        return f"{step['does']} {volumes} of {step['source']} for {given} of {step['target']}"
    return f"{step['does']} {volumes} from {step['source']} to {step['target']}"


def _arrays(arrays: list[dict[str, Any]], out: Output) -> Iterator[str]:
    width = max(len(array["array"]) for array in arrays)
    for array in arrays:
        over = "  overloaded" if array["overloaded"] else ""
        yield (
            f"{array['array']:{width}}  load {array['load']:.4g} of {array['bandwidth']:.4g}, "
            f"{array['utilisation']:.0%} (threshold {array['tau']:.0%}), "
            f"{out.size(array['free_bytes'])} free{over}"
        )


def _order(volumes: list[dict[str, Any]]) -> str:
    return ", ".join(f"{one['volume']} {one['bsr']:.4g}" for one in volumes) or "none may move"


def _displace(step: dict[str, Any], out: Output) -> Iterator[str]:
    yield f"    {step['source']}, load per GiB (BSR), highest first: {_order(step['order'])}"
    targets = ", ".join(
        f"{one['array']} {one['spare_bsr']:.4g} ({one['spare']:.4g} to spare, "
        f"{out.size(one['free_bytes'])} free)"
        for one in step["targets"]
    )
    yield f"    targets, spare load per free GiB (spareBSR), highest first: {targets}"
    for refused in step["refused"]:
        yield f"    {refused['array']} is passed over: {refused['why']}"
    yield from _ours(step)


def _swap(step: dict[str, Any], out: Output) -> Iterator[str]:
    source, target = step["source"], step["target"]
    yield f"    O, from {source}, highest BSR first: {_order(step['order'])}"
    yield f"    U, from {target}, lowest BSR first: {_order(step['order_back'])}"
    c1, c2, c3 = step["c1"], step["c2"], step["c3"]
    yield f"    C1: takes {c1['relief']:.4g} of load off {source}, at least {c1['least']:.4g}"
    yield (
        f"    C2: {target} holds {out.size(c2['bytes'])} of {out.size(c2['capacity_bytes'])}, "
        f"load {c2['load']:.4g} of at most {c2['limit']:.4g}"
    )
    yield f"    C3: {source} holds {out.size(c3['bytes'])} of {out.size(c3['capacity_bytes'])}"
    yield from _ours(step)


def _ours(step: dict[str, Any]) -> Iterator[str]:
    if step["ours"]:
        yield f"    beyond the paper: {step['ours']}"


def _nothing(_step: dict[str, Any], _out: Output) -> Iterator[str]:
    yield from ()


_PAGES = {"displace": _displace, "swap": _swap}
