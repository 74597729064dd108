"""`raidx tune`: the state of a raidx array's tuner, its plan (--dry-run), and a run now (--now).

`raidx advise`: what tuning, or another layout, would gain for the load seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import array_argument, dry_run_option, wait_option
from raidx_fuse.cli.progress import begun

if TYPE_CHECKING:
    from raidx_fuse.documents import Advice, Heat, TunedMember, TunerState, TuningPlan


@verb()
@array_argument
@click.option("--now", is_flag=True, help="Move hot chunks now, without waiting for idle time.")
@dry_run_option
@wait_option
def tune(out: Output, array: str, now: bool, dry_run: bool, wait: bool) -> int:
    """Print what the tuner of a raidx array does, and why; with --now, move hot chunks."""
    result = ask(out, array, "tune", now=now, dry_run=dry_run)
    if dry_run:
        out.emit(result, _plan_text(result, out))
        return 0
    if not now:
        out.emit(result, tuner_text(result))
        return 0
    line = f"tuning started (job {result['job']}): raidx job {array} list"
    return begun(
        out, array, result, line, wait=wait, ended=lambda job: f"{job['chunks_moved']} chunks moved"
    )


def tuner_text(tuner: TunerState) -> str:
    """Return the tuner's state and reason, and its measurements of the members, as lines."""
    lines = [f"{tuner['state']}: {tuner['why']}; {tuner['chunks_moved']} chunks moved so far"]
    return "\n".join(lines + _member_lines(tuner["members"]))


def _member_lines(members: list[TunedMember]) -> list[str]:
    """Return a line for each measured member: random and sequential speed, queue, cost."""
    lines = []
    for each in members:
        in_order = "" if each["mb_s"] is None else f", in order {each['mb_s']:.3g} MB/s"
        lines.append(
            f"role {each['role']}: read {each['read_ms']:.3g} ms, write {each['write_ms']:.3g} ms"
            f"{in_order}, queue on arrival {each['queue_on_arrival']:z.2f}, "
            f"cost {each['cost_ms']:.3g} ms"
        )
    return lines


def _plan_text(plan: TuningPlan, out: Output) -> str:
    lines = [
        f"would do: {plan['does']}, {out.size(plan['bytes_moved'])}",
        *_member_lines(plan["members"]),
    ]
    groups = "; ".join(", ".join(map(str, group)) for group in plan["groups"])
    lines.append(f"groups of roles, the fastest first: {groups}")
    if plan["moves"]:
        lines.append(
            f"expected time of a request: {plan['mean_ms']:.3g} ms now, "
            f"{plan['expected_ms']:.3g} ms then ({plan['speedup']:z.1f} times as fast)"
        )
    for move in plan["moves"]:
        what = "parity or copy" if move["image_offset"] is None else f"image {move['image_offset']}"
        how = "in exchange with a chunk of role" if move["swap"] else "to role"
        lines.append(
            f"  bundle {move['bundle']} ({what}): from role {move['from']} {how} {move['to']}"
        )
    return "\n".join(lines)


@verb()
@array_argument
def advise(out: Output, array: str) -> None:
    """Say what a raidx layout, or tuning, would gain for the load seen so far.

    The gain follows from how often each place of the image was used since the mount and from the
    measured speeds of the members, by the model with which the tuner plans. A few reads measure the
    members. Where nothing would be gained, it says so; else it prints the commands to type.
    """
    result = ask(out, array, "advise")
    out.emit(result, advice_text(result, out))


def advice_text(advice: Advice, out: Output) -> str:
    """Return what would be gained, the figures behind it, and the next commands, as lines."""
    lines = [str(advice["does"])]
    if advice["present_ms"] is not None:
        turns = advice["in_turn_ms"]
        choice = "" if turns is None else f" ({turns:.3g} ms if copies were read in turn)"
        lines.append(
            f"{advice['layout']} now: {advice['present_ms']:.3g} ms an access{choice}, seen in "
            f"{advice['accesses']} accesses, {advice['write_ratio']:z.0%} of them writes"
        )
    for each in advice["options"]:
        bundle = "" if each["length"] == 1 else f" of {each['length']} chunks a bundle"
        lines.append(
            f"{each['layout']}{bundle}: {each['made_ms']:.3g} ms as made, {each['tuned_ms']:.3g} "
            f"ms tuned, {each['speedup']:.3g} times as fast as now, image of "
            f"{out.size(each['image_bytes'])}"
        )
    for member in advice["members"]:
        write = "not seen" if member["write_ms"] is None else f"{member['write_ms']:.3g} ms"
        lines.append(
            f"role {member['role']}: read {member['read_ms']:.3g} ms, write {write}, "
            f"queue on arrival {member['queue_on_arrival']:z.2f}"
        )
    if advice["next"]:
        lines += ["to do it:", *(f"  {command}" for command in advice["next"])]
    return "\n".join(lines)


def heat_page(heat: Heat, out: Output) -> RenderableType:
    """Return the answer of `raidx stats --hot`: the most used places as a table."""
    if not heat["hot"]:
        return "no place of the image was used since the mount"
    line = (
        f"{heat['accesses_per_second']:z.1f} accesses of chunks per second, "
        f"{heat['write_ratio']:z.0%} writes; {heat['used_ratio']:z.1%} of the image was used; "
        f"half of the accesses go to {heat['half_ratio']:z.1%} of it"
    )
    titles = ("image offset", "length", "accesses/s", "of all", "writes", "in order", "roles")
    table = Table(*titles)
    for place in heat["hot"]:
        table.add_row(
            str(place["image_offset"]),
            out.size(place["length"]),
            f"{place['accesses_per_second']:z.2f}",
            f"{place['share_ratio']:z.1%}",
            f"{place['write_ratio']:z.1%}",
            f"{place['in_order_ratio']:z.1%}",
            " ".join(str(role) for role in place["roles"]),
        )
    return Group(line, table)
