"""`raidx tune`: the state of a raidx array's tuner, its plan (--dry-run), and a run now (--now)."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import ask
from raidx_fuse.cli.output import Output
from raidx_fuse.cli.parameters import array_argument, dry_run_option, wait_option
from raidx_fuse.cli.progress import exit_status, wait_for_jobs


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
    if not wait:
        out.emit(result, Text(line))
        return 0
    out.note(line)
    (job,) = wait_for_jobs(array, [result["job"]], out)
    out.emit({**result, "result": job}, Text(f"{job['chunks_moved']} chunks moved"))
    return exit_status(job)


def tuner_text(tuner: dict[str, Any]) -> Text:
    """Return the tuner's state and reason, and its measurements of the members, as lines."""
    lines = [f"{tuner['state']}: {tuner['why']}; {tuner['chunks_moved']} chunks moved so far"]
    return Text("\n".join(lines + _member_lines(tuner)))


def _member_lines(answer: dict[str, Any]) -> list[str]:
    """Return a line for each measured member: random and sequential speed, queue, cost."""
    lines = []
    for each in answer["members"]:
        in_order = "" if each["mb_s"] is None else f", in order {each['mb_s']:.3g} MB/s"
        lines.append(
            f"role {each['role']}: read {each['read_ms']:.3g} ms, write {each['write_ms']:.3g} ms"
            f"{in_order}, queue on arrival {each['queue_on_arrival']:.2f}, "
            f"cost {each['cost_ms']:.3g} ms"
        )
    return lines


def _plan_text(plan: dict[str, Any], out: Output) -> Text:
    lines = [f"would do: {plan['does']}, {out.size(plan['bytes_moved'])}", *_member_lines(plan)]
    groups = "; ".join(", ".join(map(str, group)) for group in plan["groups"])
    lines.append(f"groups of roles, the fastest first: {groups}")
    if plan["moves"]:
        lines.append(
            f"expected time of a request: {plan['mean_ms']:.3g} ms now, "
            f"{plan['expected_ms']:.3g} ms then ({plan['speedup']:.1f} times as fast)"
        )
    for move in plan["moves"]:
        what = "parity or copy" if move["image_offset"] is None else f"image {move['image_offset']}"
        how = "in exchange with a chunk of role" if move["swap"] else "to role"
        lines.append(
            f"  bundle {move['bundle']} ({what}): from role {move['from']} {how} {move['to']}"
        )
    return Text("\n".join(lines))
