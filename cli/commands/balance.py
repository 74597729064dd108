"""`raidx balance` and `raidx array evacuate`: plans that move volumes between arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.commands.volume import array, mount_argument
from raidx_fuse.cli.output import Output, duration, warn
from raidx_fuse.cli.parameters import ARRAY, dry_run_option, wait_option
from raidx_fuse.cli.progress import looks
from raidx_fuse.errors import UsageError
from raidx_fuse.pool.balance.steps import (
    PlanStep,
    RankedVolume,
    StepArray,
    example,
    plan_steps,
)
from raidx_fuse.pool.balance.strategies import make
from raidx_fuse.settings import PLANNERS

if TYPE_CHECKING:
    from raidx_fuse.documents import Balance, PoolChange, PoolPlan


@verb()
@click.argument("mount", required=False, type=ARRAY)
@click.option(
    "--planner",
    "--strategy",
    type=click.Choice(sorted(PLANNERS)),
    help="How to plan; the default is the setting balance.planner.",
)
@dry_run_option
@wait_option
@click.option("--status", is_flag=True, help="Only print how far the plan under way is.")
@click.option("--cancel", is_flag=True, help="Drop the plan under way after its present move.")
@click.option(
    "--step",
    is_flag=True,
    help="Only show how the plan is made, step by step; without MOUNT the example of the paper.",
)
def balance(
    out: Output,
    mount: str | None,
    planner: str | None,
    dry_run: bool,
    wait: bool,
    status: bool,
    cancel: bool,
    step: bool,
) -> int:
    """Find hotspots among the arrays of a mount, and move or swap the volumes that relieve them
    with the fewest bytes, online.

    A hotspot is an array that was above hot.tau in most observations (raidx get MOUNT hot.tau).
    An unmount or a crash ends the plan: the next mount resumes only the moves that had begun.
    Rules for volumes are the settings balance.stay, balance.together and balance.apart.
    """
    if step:
        if wait or status or cancel:
            raise UsageError("--step only shows a plan: leave out --wait, --status and --cancel")
        document = stepped_plan(out, mount, planner)
        out.emit(document, Text("\n".join(plan_page(document, out))))
        return 0
    if mount is None:
        raise click.UsageError("Missing argument 'MOUNT'.")
    if status or cancel:
        result = ask(out, mount, "balance-cancel" if cancel else "balance-status")
        out.emit(result, "\n".join(progress_lines(result["balance"])))
        return 0
    result = ask(out, mount, "balance", planner=planner, dry_run=dry_run)
    return _report(out, mount, result, dry_run, wait)


@verb("evacuate", group=array)
@mount_argument
@click.argument("name", metavar="ARRAY")
@dry_run_option
@wait_option
def evacuate(out: Output, mount: str, name: str, dry_run: bool, wait: bool) -> int:
    """Move every volume of ARRAY to the other arrays of the mount, online, before maintenance."""
    result = ask(out, mount, "array-evacuate", name=name, dry_run=dry_run)
    return _report(out, mount, result, dry_run, wait)


def _report(out: Output, mount: str, result: PoolChange, dry_run: bool, wait: bool) -> int:
    lines = plan_lines(result, out)
    if dry_run or not result["steps"]:
        out.emit(result, "\n".join(lines))
        return 0
    if not wait:
        out.emit(result, "\n".join([*lines, f"begun: raidx balance {mount} --status"]))
        return 0
    for line in lines:
        out.note(line)
    said = -1
    state = result["balance"]
    for state in looks(lambda: ask(out, mount, "balance-status")["balance"]):
        done, steps = state["steps_done"], state["steps"]
        if said < done < len(steps):
            said = done
            out.note(f"{done + 1} of {len(steps)}: {steps[done]}")
    if state["state"] == "failed":
        warn(f"the plan ended: {state['error']}")
    out.emit({**result, "balance": state}, f"plan {state['state']}")
    return int(state["state"] != "done")


def plan_lines(plan: PoolPlan, out: Output) -> list[str]:
    """Return a plan as lines: hotspots, why each volume moves, bytes, what is expected."""
    lines = list(plan["explanation"])
    if not plan["steps"]:
        return lines
    lines += [f"{number}. {step}" for number, step in enumerate(plan["steps"], 1)]
    lines.append(
        f"moves {out.size(plan['bytes_moved'])} of volumes, copies {out.size(plan['bytes_read'])} "
        f"that were written, about {duration(plan['seconds'])}; planner {plan['planner']}"
    )
    return lines


def progress_lines(state: Balance) -> list[str]:
    lines = [f"balance.auto is {state['auto']}; {state['state']}"]
    for number, step in enumerate(state["steps"]):
        done = number < state["steps_done"]
        word = "dropped" if state["state"] == "cancelled" else "to do"
        now = number == state["steps_done"] and state["state"] == "running"
        lines.append(f"{'done' if done else 'now' if now else word}: {step}")
    return [*lines, *(text for text in (state["error"], state["note"]) if text)]


def stepped_plan(out: Output, mount: str | None, planner: str | None) -> Any:
    """Return the plan of a dry run with its *trace*; without *mount*, of the paper's example."""
    if mount is not None:
        return ask(out, mount, "balance", planner=planner, dry_run=True, step=True)
    plan = make(planner or "dswap-paper", example())
    return {
        "planner": plan.strategy,
        "example": "Fig. 2 of the Dswap paper",
        "solved": plan.solved,
        "bytes_moved": plan.cost_bytes,
        "trace": plan_steps(plan),
    }


def plan_page(document: dict[str, Any], out: Output) -> Iterator[str]:
    """Yield the plan, of a pool or of the paper's Fig. 2, as lines."""
    source = document.get("example", "this pool as it was observed; nothing is moved")
    yield f"{source}; planner {document['planner']}"
    for step in document["trace"]:
        yield f"step {step['step']}: {_title(step, out)}"
        if step["does"] == "displace":
            yield from _displace(step, out)
        elif step["does"] == "swap":
            yield from _swap(step, out)
        if step["does"] != "end":
            yield from (f"    {line}" for line in _arrays(step["arrays"], out))


def _title(step: PlanStep, out: Output) -> str:
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


def _arrays(arrays: list[StepArray], out: Output) -> Iterator[str]:
    width = max(len(each["array"]) for each in arrays)
    for each in arrays:
        over = "  overloaded" if each["overloaded"] else ""
        yield (
            f"{each['array']:{width}}  load {each['load']:.4g} of {each['bandwidth']:.4g}, "
            f"{each['utilisation']:z.0%} (threshold {each['tau']:z.0%}), "
            f"{out.size(each['free_bytes'])} free{over}"
        )


def _order(volumes: list[RankedVolume]) -> str:
    return ", ".join(f"{one['volume']} {one['bsr']:.4g}" for one in volumes) or "none may move"


def _displace(step: PlanStep, out: Output) -> Iterator[str]:
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


def _swap(step: PlanStep, out: Output) -> Iterator[str]:
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


def _ours(step: PlanStep) -> Iterator[str]:
    if step["ours"]:
        yield f"    beyond the paper: {step['ours']}"
