"""Commands that only read: status, wait, stats, damage, examine, check."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import click
import trio
from rich.console import Group, RenderableType
from rich.text import Text

from raidx_fuse.cli import metrics
from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import Found, array_named, ask, ask_all, is_place, running_arrays
from raidx_fuse.cli.commands.tune import heat_page
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.examine_text import examine_page
from raidx_fuse.cli.health_line import health_line
from raidx_fuse.cli.output import Output, plural, show, warn
from raidx_fuse.cli.parameters import ARRAYS, PATH, array_argument
from raidx_fuse.cli.progress import looks_until
from raidx_fuse.cli.status_text import (
    STATE_STYLES,
    brief,
    pages_lines,
    pool_lines,
    status_page,
)
from raidx_fuse.client.status_document import (
    EXIT_UNKNOWN,
    Standstill,
    document,
    exit_status,
    is_in,
    late,
)
from raidx_fuse.daemon.control_client import call
from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.fuse import mountpoint
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        ArrayReport,
        Bpu,
        Cache,
        Checked,
        Damage,
        MountProblem,
        RepairedMember,
        Stats,
    )

STATUS_TIMEOUT_S = 30.0
STUCK_LOOKS = 10  # in 5 s: a spare that takes over has begun by then
OF_MEMBERS = ("active", "spare", "missing")  # no state of an array
DAMAGE_SHOWN_MAX = 100  # ranges; --json has more
LATENCIES: Final = ("mean", "p50", "p95", "p99")
SERVICE_TIMES: Final = ("read_ms_mean", "read_ms_p99", "write_ms_mean", "write_ms_p99")
COUNTS: Final = ("pre_reads", "rmw", "rcw", "full_stripe", "degraded_reads", "chunks_moved")


@verb()
@click.argument("arrays", metavar="[ARRAY | MEMBER...]", nargs=-1, type=ARRAYS)
@click.option("--brief", "short", is_flag=True, help="Print in the format of /proc/mdstat.")
@click.option(
    "--check",
    is_flag=True,
    help="One line for Nagios; exit 0 healthy, 1 degraded, 2 failed, 4 unknown.",
)
def status(out: Output, arrays: tuple[str, ...], short: bool, check: bool) -> int:
    """Show state, members, jobs, and the next step to take.

    ARRAY is a mount point; MEMBER... are the paths of an array that is not mounted, or one path of
    an array that is. Without arguments, all running arrays are shown.
    """
    problems: list[Found] = []
    try:
        if arrays:
            found = [out.fit(each) for each in _collect(arrays)]
        else:
            every = ask_all(
                lambda status: (status_page(status, out), pool_lines(status), brief(status))
            )
            found = [out.fit(each.status) for each in every if each.status is not None]
            problems = [each for each in every if each.problem is not None]
    except RaidxError as error:
        if not check:
            raise
        warn(str(error))
        failed = {"error": error.as_dict() | {"exit_status": EXIT_UNKNOWN}}
        out.emit(failed, health_line([], [str(error)], EXIT_UNKNOWN), whole=True)
        return EXIT_UNKNOWN
    for each in problems:
        warn(f"{each.path}: {each.problem}")
    said: list[MountProblem] = [
        {"mountpoint": each.path, "problem": each.problem} for each in problems
    ]
    shown = document(found, said)
    every_array = [array for each in found for array in each.get("arrays", [each])]
    # Problems with mounts of other users are reported, but do not change the exit status.
    unknown = EXIT_UNKNOWN if any(each.own for each in problems) else 0
    worst = max((exit_status(each) for each in every_array), default=0) or unknown
    if short:
        text: RenderableType = "\n".join(map(brief, every_array))
    elif check:
        lines = [f"{each.path}: {each.problem}" for each in problems]
        text = health_line(every_array, lines, worst)
    else:
        pages: list[RenderableType] = []
        for mount in found:
            for one in mount.get("arrays", [mount]):
                pages += [status_page(one, out), Text()]
            if load := pool_lines(mount):
                pages += [*load, Text()]
        text = Group(*pages[:-1]) if found else Text("no array is mounted")
        if problems and not found:
            text = Text()
    out.emit(shown, text, whole=short or check)
    return worst if check else int(unknown != 0)


@verb()
@array_argument
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["healthy", *(each for each in STATE_STYLES if each not in OF_MEMBERS)]),
    default=("healthy",),
    help="A state of `raidx status`, or healthy, the default; several: any of them.",
)
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds; the default is no limit.")
def wait(out: Output, array: str, states: tuple[str, ...], timeout: float | None) -> None:
    """Wait until an array has a state.

    healthy means that no member is missing and nothing is rebuilt or resynchronised. If nothing
    leads there, because a member is lost and no job runs, the command fails after 5 s and says so;
    with --timeout it says so and waits, as somebody else may replace the member.
    """
    mount, name = mountpoint.split_array(array)

    def look() -> tuple[ArrayReport, list[ArrayReport]]:
        found: ArrayReport = out.fit(_status(mount))
        arrays = [each for each in found.get("arrays", [found]) if name in (None, each["name"])]
        if not arrays:
            raise UsageError(f"no array of {mount} is named {name}", reason=Reason.NO_SUCH_ARRAY)
        return found, arrays

    standstill = Standstill(states, STUCK_LOOKS)

    def hint(seen: tuple[ArrayReport, list[ArrayReport]]) -> None:
        stays = standstill.look(seen[1])
        if stays is None:
            return
        error, is_sure = stays
        if timeout is None and is_sure:
            raise error
        if timeout is not None and not is_sure:
            warn(str(error))

    def is_enough(seen: tuple[ArrayReport, list[ArrayReport]]) -> bool:
        return all(is_in(each, states) for each in seen[1])

    found, arrays = looks_until(look, is_enough, timeout, hint)
    if timeout is not None and not is_enough((found, arrays)):
        raise late(arrays, states, timeout)
    lines = [f"{each['name']}: {each['state']}" for each in arrays]
    out.emit(document([found]), "\n".join(lines))


def _collect(arrays: tuple[str, ...]) -> list[ArrayReport]:
    """Return the status of the mounts in *arrays*, or of the array whose member paths they are."""
    arrays = tuple(dict.fromkeys(map(_named, arrays)))
    if all(map(is_place, arrays)):
        return [_status(path) for path in arrays]
    members = [absolute(path) for path in arrays]
    uuid = _at_rest("array_in_use", members[0])
    running = {} if uuid is None else running_arrays()
    return [running[uuid][1] if uuid in running else _at_rest("status", members)]


def _status(place: str) -> ArrayReport:
    return cast("ArrayReport", call(place, "status", timeout_s=STATUS_TIMEOUT_S))


def _named(text: str) -> str:
    """Return the mount of what *text* names; a member stands for its array alone."""
    outside = mountpoint.find(os.path.dirname(os.path.abspath(text))) is None
    return text if outside and os.path.exists(text) else array_named(text)


def _at_rest(question: str, members: Any) -> Any:
    """Call the function *question* of daemon/inspect.py, which is imported only when needed."""
    from raidx_fuse.daemon import inspect

    return inspect.run(getattr(inspect, question), members)


def _checked(members: list[str], deep: bool) -> Checked:
    from raidx_fuse.daemon import inspect

    return trio.run(partial(inspect.check, deep=deep), members)


@verb()
@array_argument
@click.argument("interval", type=click.FloatRange(min=0, min_open=True), required=False)
@click.argument("count", type=click.IntRange(min=1), required=False)
@click.option("--prometheus", is_flag=True, help="Print all arrays of the mount as metrics.")
@click.option("--output", type=PATH, help="With --prometheus: replace this file by the metrics.")
@click.option("--hot", is_flag=True, help="Print the places of the image that are used most.")
def stats(
    out: Output,
    array: str,
    interval: float | None,
    count: int | None,
    prometheus: bool,
    output: str | None,
    hot: bool,
) -> None:
    """Print operations, bytes and latencies.

    They are counted since the mount, or in each INTERVAL seconds. COUNT intervals are shown; the
    default is no limit, with --json one.

    --hot shows, for any layout, which places of the image were used most in the last hour or so:
    how often, the share of writes and of accesses in order, and the members that hold them.

    --prometheus needs the extra: pip install 'raidx-fuse[prometheus]'.
    """
    if hot:
        if prometheus or output is not None or interval is not None:
            raise click.UsageError("--hot takes no INTERVAL, no --prometheus and no --output")
        report = ask(out, array, "heat")
        out.emit(report, heat_page(report, out))
        return
    if prometheus or output is not None:
        if not prometheus or interval is not None or out.json:
            raise click.UsageError(
                "--prometheus takes no INTERVAL and no --json; --output is for --prometheus"
            )
        _metrics(array, output)
        return
    if interval is None:
        report = ask(out, array, "stats")
        out.emit({**report, "reports": [report]}, _stats_page(report, out))
        return
    reports: list[Stats] = []
    while count is None or len(reports) < count:
        report = ask(out, array, "stats", interval_s=interval)
        if not out.json:
            show(_stats_page(report, out))
            count = count and count - 1
            if count == 0:
                return
            continue
        reports.append(report)
        if count is None:
            break
    out.emit({**reports[-1], "reports": reports})


def _metrics(array: str, output: str | None) -> None:
    """Print the metrics of the mount of *array*, or write them to the file *output*."""
    mount, _ = mountpoint.split_array(array)
    found = _status(mount)
    names = [each["name"] for each in found.get("arrays", [])]
    paths = {name: f"{mount}:{name}" for name in names} or {found["name"]: mount}
    text = metrics.as_text(found, {name: call(path, "stats") for name, path in paths.items()})
    if output is None:
        click.echo(text, nl=False)
    else:
        metrics.write_text(output, text)


def _stats_page(stats: Stats, out: Output) -> RenderableType:
    seconds, totals = stats["interval_seconds"], stats["array"]
    latency = totals["latency_ms"]
    table = Table("role", "reads/s", "writes/s", "read", "written", "queue", "busy")
    times = Table("role", "read ms", "p99", "write ms", "p99", "member", left=("member",))
    for member in stats["members"]:
        role = str(member["role"])
        table.add_row(
            role,
            f"{member['reads'] / seconds:z.1f}",
            f"{member['writes'] / seconds:z.1f}",
            out.rate(member["read_bytes"] / seconds),
            out.rate(member["write_bytes"] / seconds),
            f"{member['queue_mean']:z.2f}",
            f"{member['utilisation']:z.0%}",
        )
        figures = (f"{member[key]:z.2f}" for key in SERVICE_TIMES)
        times.add_row(role, *figures, str(member["path"]))
    rate = f"{totals['reads'] / seconds:z.1f} reads/s, {totals['writes'] / seconds:z.1f} writes/s"
    speed = (
        f"{out.rate(totals['read_bytes'] / seconds)} read, "
        f"{out.rate(totals['write_bytes'] / seconds)} written"
    )
    waits = ", ".join(f"{name} {latency[name]:z.2f}" for name in LATENCIES)
    counts = ", ".join(f"{name.replace('_', ' ')} {totals[name]}" for name in COUNTS)
    head = Text.assemble((f"{seconds:z.1f} s", "bold"), f": {rate}; {speed}")
    lines: list[RenderableType] = [head, f"latency ms: {waits}", counts]
    lines += _cache_lines(totals.get("cache"), out) + _bpu_lines(totals.get("bpu"))
    for volume in stats["pool"]["volumes"] if "pool" in stats else ():
        lines.append(
            f"volume {volume['volume']} on {volume['array']}: "
            f"{volume['reads_per_second']:z.1f} reads/s of {out.size(volume['mean_read'])}, "
            f"{volume['writes_per_second']:z.1f} writes/s of {out.size(volume['mean_write'])}; "
            f"{volume['utilisation']:z.1%} of the array"
        )
    return Group(*lines, table, times)


def _cache_lines(cache: Cache | None, out: Output) -> list[str]:
    if not cache or not cache["size"]:
        return []
    reads = cache["hits"] + cache["misses"]
    share = cache["hits"] / reads if reads else 0.0
    return [
        f"cache: {out.size(cache['used'])} of {out.size(cache['size'])}; {cache['hits']} of "
        f"{reads} reads hit ({share:z.1%}), {cache['pre_reads_spared']} pre-reads spared"
    ]


def _bpu_lines(bpu: Bpu | None) -> list[str]:
    if bpu is None:
        return []
    limits = bpu["thresholds"]
    shares = ", ".join(f"{state} {share:z.1%}" for state, share in bpu["of_time"].items())
    return [
        f"bpu: {shares} of the time (now {bpu['state']}); T_light "
        f"{limits['t_light_s'] * 1e3:z.3f} ms, T_heavy {limits['t_heavy_s'] * 1e3:z.3f} ms, "
        f"T_skew {limits['t_skew_s'] * 1e3:z.3f} ms, T_pre {limits['t_pre']}",
        f"     chose rmw {bpu['rmw']}, rcw {bpu['rcw']}, "
        f"{bpu['against_pre_reads']} against the count of pre-reads: "
        f"{bpu['extra_pre_reads']} extra ({bpu['extra_pre_reads_ratio']:z.1%}); "
        f"{bpu['touched_longest_ratio']:z.1%} of updates touched the longest queue",
    ]


@verb()
@array_argument
def damage(out: Output, array: str) -> int:
    """List the ranges of the image whose bytes are lost, and why.

    They answer with an error until they are written again, by pages of 4 KiB. What was lost with
    members is known for good. Pages that cannot be read, or do not fit their checksums, are known
    once something has read them, a scrub for example, and are listed if no parity or copy gives
    them back; those that do not fit are known after a restart as well. Of an array that is not
    mounted, `raidx check --deep MEMBER...` lists the ranges.
    The exit status is 1 if there are any.
    """
    found: Damage = ask(out, array, "damage")
    ranges = found["ranges"]
    table = Table("image offset", "length", "offset", "in", "why", left=("in", "why"))
    for each in ranges[:DAMAGE_SHOWN_MAX]:
        inside = each["volume_offset"]
        table.add_row(
            str(each["image_offset"]),
            str(each["length"]),
            "-" if inside is None else str(inside),
            each["volume"] or "no volume",
            each["why"],
        )
    parts: list[RenderableType] = [table] if ranges else []
    more = found["more"] + max(0, len(ranges) - DAMAGE_SHOWN_MAX)
    if more:
        parts.append(f"and {plural(more, 'more range')}")
    total = f"{out.size(found['lost_bytes'])} of {found['array']} are lost"
    parts.append(total if ranges else f"no byte of {found['array']} is known to be lost")
    if found["state"] == "failed":
        parts.append(f"{found['array']} has failed: what only its lost members have is not listed")
    out.emit(found, Group(*parts))
    return 1 if ranges else 0


@verb()
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
def examine(out: Output, members: tuple[str, ...]) -> int:
    """Show the superblock of each member.

    With --json it is a dump, field by field.
    """
    found = [out.fit(_at_rest("examine", absolute(member))) for member in members]
    for each in found:
        if each.get("problem"):
            warn(f"{each['path']}: {each['problem']}")
    pages = [] if out.json else [part for m in found for part in (examine_page(m, out), Text())]
    out.emit({"members": found}, Group(*pages[:-1]))
    return 1 if any(each.get("problem") for each in found) else 0


@verb()
@click.argument("members", metavar="MEMBER...", nargs=-1, required=True, type=PATH)
@click.option(
    "--repair-superblocks",
    "repair",
    is_flag=True,
    help="Instead, write the superblocks that are lost at one end of a member.",
)
@click.option(
    "--deep", is_flag=True, help="Also search enlarged members for the superblocks at their end."
)
@click.option("--yes", is_flag=True, help="With --repair-superblocks: do not ask.")
@click.option(
    "-n", "--dry-run", is_flag=True, help="With --repair-superblocks: only report what it would do."
)
def check(
    out: Output, members: tuple[str, ...], repair: bool, deep: bool, yes: bool, dry_run: bool
) -> int:
    """Check an array that is not mounted, without writing.

    It checks superblocks, maps, and the parity of all written chunks. In an array with checksums
    it compares every page of them with its checksum, also in raid0 and where members are lost, and
    reads all copies of the checksums themselves. It lists the ranges of the image whose bytes are
    lost. It does all of that also without --deep.

    A member of 64 MiB or more has its superblocks twice, in front and at its end. With
    --repair-superblocks, those that are lost at one of the two are written again from the other,
    after a question. What somebody else made in front of a member, a partition table say, is
    overwritten by that. Nothing else is checked or written.

    A member that was made larger has its end where its size was before. The other members of the
    array say where; if they do not, --deep searches for it: it reads 8 KiB of each MiB. Without
    --repair-superblocks what it finds is only reported.
    """
    if repair:
        paths = [absolute(member) for member in members]
        return _repair_superblocks(out, paths, yes, dry_run, deep)
    if yes or dry_run:
        raise click.UsageError("--yes and --dry-run go with --repair-superblocks")
    result = out.fit(_checked([absolute(member) for member in members], deep))
    problems = result["problems"]
    lines = [
        (f"{problem['member']}: " if problem["member"] else "")
        + (f"stripe {problem['stripe']}, " if problem.get("stripe") is not None else "")
        + (
            f"image offset {problem['image_offset']}, "
            if problem.get("image_offset") is not None
            else ""
        )
        + problem["what"]
        for problem in problems
    ]
    verdict = "no problem found" if result["ok"] else plural(len(problems), "problem")
    out.emit(result, "\n".join([*lines, *pages_lines(result["scrubbed"]), verdict]))
    return 0 if result["ok"] else 1


def _repair_superblocks(
    out: Output, members: list[str], yes: bool, dry_run: bool, deep: bool
) -> int:
    """Repair the superblocks of *members*; return the exit status."""
    from raidx_fuse.daemon import repair  # late: a check writes nothing

    found = trio.run(partial(repair.plan, deep=deep), members)
    if any(each["lost"] and each["problem"] is None for each in found) and not dry_run:
        if not yes:
            _ask_to_repair(out.fit(found))
        found = trio.run(partial(repair.repair, deep=deep), members)
    found = out.fit(found)
    lines = []
    for each in found:
        did = "is" if each["repaired"] else "would be"
        what = f"{', '.join(each['lost'])} {did} written again from the other end"
        if each["carries"] and each["lost"]:
            what += f", over {each['carries']}"
        if not each["lost"]:
            what = "no superblock is lost"
        lines.append(f"{each['path']}: {each['problem'] or what}")
    out.emit({"members": found, "dry_run": dry_run}, "\n".join(lines))
    return 1 if any(each["problem"] for each in found) else 0


def _ask_to_repair(found: list[RepairedMember]) -> None:
    """Ask whether to write to the members of *found*. Raises UsageError if nobody can answer."""
    if not sys.stdin.isatty():
        raise UsageError("this writes to members, and nobody can be asked", action="add --yes")
    for each in found:
        if each["lost"] and each["problem"] is None:
            over = f", over {each['carries']}" if each["carries"] else ""
            warn(f"{each['path']} ({each['array']}): {', '.join(each['lost'])}{over}")
    click.confirm("Write these superblocks again?", abort=True, err=True)
