"""`raidx balance` and `raidx array evacuate`: plans that move volumes between arrays."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.commands.volume import array, mount_argument
from raidx_fuse.cli.output import Output, duration, warn
from raidx_fuse.cli.parameters import ARRAY, dry_run_option, wait_option
from raidx_fuse.cli.progress import looks
from raidx_fuse.errors import UsageError

PLANNERS = (  # a test compares them with pool/balance/strategies.py, which needs numpy
    *("best-fit", "bsr", "dswap", "dswap-paper", "exact"),
    *("random-packing", "random-reassign", "worst-fit"),
)


@verb()
@click.argument("mount", required=False, type=ARRAY)
@click.option(
    "--planner",
    "--strategy",
    type=click.Choice(PLANNERS),
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
        from raidx_fuse.cli.commands.teach.balance_steps import plan_page, stepped_plan

        document = stepped_plan(out, mount, planner)
        out.explain(document, Text("\n".join(plan_page(document, out))))
        return 0
    if mount is None:
        raise click.UsageError("Missing argument 'MOUNT'.")
    if status or cancel:
        result = ask(out, mount, "balance-cancel" if cancel else "balance-status")
        out.emit(result, Text("\n".join(progress_lines(result["balance"]))))
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


def _report(out: Output, mount: str, result: dict[str, Any], dry_run: bool, wait: bool) -> int:
    lines = plan_lines(result, out)
    if dry_run or not result["steps"]:
        out.emit(result, Text("\n".join(lines)))
        return 0
    if not wait:
        out.emit(result, Text("\n".join([*lines, f"begun: raidx balance {mount} --status"])))
        return 0
    for line in lines:
        out.note(line)
    said = -1
    state: dict[str, Any] = {}
    for state in looks(lambda: ask(out, mount, "balance-status")["balance"]):
        done, steps = state["steps_done"], state["steps"]
        if said < done < len(steps):
            said = done
            out.note(f"{done + 1} of {len(steps)}: {steps[done]}")
    if state["state"] == "failed":
        warn(f"the plan ended: {state['error']}")
    out.emit({**result, "balance": state}, Text(f"plan {state['state']}"))
    return int(state["state"] != "done")


def plan_lines(plan: dict[str, Any], out: Output) -> list[str]:
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


def progress_lines(state: dict[str, Any]) -> list[str]:
    """Return how far a plan is as lines."""
    lines = [f"balance.auto is {state['auto']}; {state['state']}"]
    for number, step in enumerate(state["steps"]):
        done = number < state["steps_done"]
        word = "dropped" if state["state"] == "cancelled" else "to do"
        now = number == state["steps_done"] and state["state"] == "running"
        lines.append(f"{'done' if done else 'now' if now else word}: {step}")
    return [*lines, *(text for text in (state["error"], state["note"]) if text)]
