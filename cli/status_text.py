"""The status of an array as a page of text and in the format of ``/proc/mdstat``; dry runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from raidx_fuse.cli.asking import named_in
from raidx_fuse.cli.console import Table
from raidx_fuse.cli.output import Output, duration, percent, plural
from raidx_fuse.job_words import words_of

if TYPE_CHECKING:
    from raidx_fuse.documents import (
        ArrayReport,
        ClearedSums,
        Job,
        LastScrub,
        Load,
        Member,
        ScrubbedPages,
        SumsReport,
    )

_OF_PAGES: Final = {
    "misfits": "pages that misfit",
    "healed": "healed",
    "damaged": "lost",
    "without_sums": "without checksum",
}

BAR_COLUMNS = 20
BARS: Final = ("━─", "#.")  # done and to do, in Unicode and in ASCII

STATE_STYLES = {
    "clean": "green",
    "active": "green",
    "spare": "cyan",
    "rebuilding": "yellow",
    "resyncing": "yellow",
    "growing": "green",
    "restriping": "green",
    "evacuating": "green",
    "restoring": "yellow",
    "unclean": "yellow",
    "degraded": "bold yellow",
    "missing": "red",
    "failed": "bold red",
}


def state_text(state: str) -> Text:
    return Text(state, style=STATE_STYLES.get(state, "yellow"))


def status_page(status: ArrayReport, out: Output) -> RenderableType:
    """Return the whole page: state, next step, members, jobs, volumes, protections."""
    head = Table(named=True)
    for word, line in head_rows(status, out):
        head.add_row(f"{word}:", line)
    parts: list[RenderableType] = [head, Text(), _members(status, out)]
    if status.get("jobs"):
        parts += [Text("jobs", style="bold"), *(job_line(job, out) for job in status["jobs"])]
        parts.append(Text())
    if status.get("volumes"):
        parts += [Text("volumes", style="bold"), _volumes(status, out)]
    if status.get("protections"):
        parts += [Text(), Text("protections", style="bold"), _protections(status)]
    return Group(*parts)


def pool_lines(status: ArrayReport) -> list[Text]:
    """Return the load of the arrays of a mount; nothing for one array that is no hotspot."""
    if not (pool := status.get("pool")):
        return []
    arrays, balance = pool.get("arrays") or [], pool.get("balance")
    hot = any(one["hotspot"] for one in arrays)
    if len(arrays) < 2 and not hot:
        return []
    lines = [Text("load", style="bold"), *map(_load, arrays)]
    if balance and balance.get("state") == "running":
        done, steps = balance["steps_done"], balance["steps"]
        lines.append(Text(f"  balance: {steps[done]} ({done + 1} of {len(steps)})"))
    elif len(arrays) > 1 and hot:
        where = status.get("mountpoint") or "MOUNT"
        line = f"  what would help: raidx balance {where} --dry-run"
        lines.append(Text(line, style="yellow"))
    return lines


def _load(array: Load) -> Text:
    if not array["observations"]:
        return Text(f"  {array['array']}: not observed yet")
    line = Text(
        f"  {array['array']}: utilisation {array['utilisation']:z.0%} (threshold "
        f"{array['tau']:z.0%}), busy {array['busy']:z.0%}, {array['latency_ms']:z.1f} ms a request"
    )
    if array["hotspot"]:
        line.append(f"; hotspot for {array['above']:z.0%} of the window", style="yellow")
    return line


def _layout(status: ArrayReport, in_role: int) -> str:
    """Return layout and width of the array; during a restripe, the old and the new ones."""
    moving = status.get("layout_parameters", {}).get("restripe")
    if moving is None:
        return f"{status['layout']} on {plural(in_role, 'member')}"
    old, new = moving["from"], moving["to"]
    return f"{old['layout']} on {old['width']} members, becoming {new['layout']} on {new['width']}"


def head_rows(status: ArrayReport, out: Output) -> list[tuple[str, Text]]:
    """Return what the page says of the array as a whole: the word before each line, the line."""
    in_role = sum(member["role"] >= 0 for member in status["members"])
    chunk = out.size(status["chunk_size"])
    rows = [
        ("array", Text(f"{status['name']}  ({status['uuid']})")),
        ("layout", Text(f"{_layout(status, in_role)}, chunk {chunk}")),
        ("size", Text(out.size(status["size"]))),
        ("state", state_text(status["state"]) + Text(f", {_redundancy(status)}")),
    ]
    if "last_scrub" in status:  # absent in the answers of older daemons
        rows.append(("scan", Text(scan_text(status))))
    if sums := status.get("sums"):
        rows.append(("sums", sums_text(sums, out)))
    for host in status.get("hosts", ()):
        if host["full"]:
            line = f"no space for new writes: {', '.join(host['members'])}"
            rows.append(("host", Text(line, style="bold red")))
    if action := status.get("action"):
        rows.append(("action", Text(action, style="yellow")))
    if tuner := status.get("tuner"):
        moved = plural(tuner["chunks_moved"], "chunk")
        rows.append(("tuner", Text(f"{tuner['state']}: {tuner['why']}; {moved} moved")))
    if mountpoint := status.get("mountpoint"):
        mode = " (read-only)" if status.get("read_only") else ""
        rows.append(("mounted", Text(mountpoint + mode)))
    if lab := status.get("lab"):
        broken = [f"{one['member']}: {', '.join(one['faults'])}" for one in lab if one["faults"]]
        faults = f"members can be broken; faults now: {'; '.join(broken) or 'none'}"
        rows.append(("lab", Text(faults, style="yellow")))
    for warning in status.get("warnings", ()):
        named = named_in(warning, where) if (where := status.get("mountpoint")) else warning
        rows.append(("warning", Text(named, style="yellow")))
    return rows


def sums_text(sums: SumsReport, out: Output) -> Text:
    """Return whether checksums are kept, and what they found since the mount."""
    if sums["state"] != "on":
        room = sums.get("room_bytes")
        return Text(f"off, with room for {out.size(room)} on each member" if room else "off")
    style = "yellow" if any(sums[key] for key in ("misfits", "wrong_sums", "unverified")) else ""
    return Text(f"on, {counted_sums(sums)}", style=style)


def counted_sums(sums: SumsReport | ClearedSums) -> str:
    """Return the counts of checksums in words."""
    found = [
        f"{plural(sums['misfits'], 'misfit')}, {sums['healed']} healed",
        f"{plural(sums['wrong_sums'], 'wrong sum')}, {sums['unverified']} unverified",
    ]
    return ", ".join(found)


def scan_text(status: ArrayReport) -> str:
    """Return what scrub runs, or what the last one found and when, as the scan line of zpool."""
    for job in status.get("jobs", ()):
        if job["kind"] == "scrub":
            share = percent(job["done"], job["total"])
            return f"scrub in progress, {share:z.1f} % done, {_found(job, job['uncorrected'])}"
    scrub = status["last_scrub"]
    if scrub is None:
        return "none requested"
    took = f"{_found(scrub, scrub['left'])} in {duration(scrub['seconds'])}"
    ended = "" if scrub["state"] == "done" else f"{scrub['state']}, "
    if scrub["ended_s"] is None:
        return f"scrub {ended}{took}"
    return f"scrub {ended}{took} on {date_of(scrub['ended_s'])}"


def date_of(unix_s: float) -> str:
    return datetime.fromtimestamp(int(unix_s)).isoformat(" ")


def _found(counts: LastScrub | Job, left: int) -> str:
    found = (
        f"{plural(counts['mismatches'], 'mismatch')}, {counts['repaired']} repaired, {left} left"
    )
    unchecked = counts.get("unchecked_stripes", 0)
    return f"{found}, {plural(unchecked, 'stripe')} not checked" if unchecked else found


def _redundancy(status: ArrayReport) -> str:
    if status["state"] == "failed":
        return "more members are lost than the layout tolerates"
    if status["state"] == "unknown":
        return "another process uses it"
    return redundancy(status["redundancy_left"])


def redundancy(left: int) -> str:
    """Return "1 more loss tolerated" for *left* losses."""
    return f"{plural(left, 'more loss')} tolerated" if left else "no further loss tolerated"


def _members(status: ArrayReport, out: Output) -> Table:
    titles = ("role", "state", "size", "errors", "repaired", "member")
    table = Table(*titles, left=("state", "member"))
    for member in status["members"]:
        role, state, path = member_cells(member)
        size = out.size(member["size"]) if member.get("size") else "-"
        errors = str(member.get("errors_ever", member.get("errors")) or 0)
        repaired = str(member.get("repairs_ever") or 0)
        table.add_row(role, state, size, errors, repaired, path)
    return table


def member_cells(member: Member) -> tuple[str, Text, str]:
    role = str(member["role"]) if member["role"] >= 0 else "-"
    return role, state_text(member["state"]), str(member.get("path") or "(not here)")


def _volumes(status: ArrayReport, out: Output) -> Table:
    grid = Table(indent=2)
    for volume in status["volumes"]:
        where = str(volume.get("path") or "(not mounted)")
        grid.add_row(Text(volume["name"], style="bold"), out.size(volume["size"]), where)
    return grid


def _protections(status: ArrayReport) -> Table:
    grid = Table(indent=2)
    for name, state in status["protections"].items():
        words = "yes" if state["active"] else f"no: {state['reason']}"
        style = "" if state["active"] else "yellow"
        grid.add_row(Text(name.replace("_", " "), style="bold"), Text(words, style=style))
    return grid


def job_amount(job: Job, out: Output) -> str:
    """Return "1 MiB of 4 MiB, 2 MiB/s, 00:00:02 to go" for one job."""
    in_bytes = job.get("unit", "bytes") == "bytes"
    show = out.size if in_bytes else (lambda count: f"{int(count)} {job['unit']}")
    text = f"{show(job['done'])} of {show(job['total'])}"
    if job.get("catches_up"):
        text = f"catching up, {text}"
    if job.get("removes_members"):
        text += ", members leave"
    elif job.get("going_back"):
        text += ", going back"
    if job.get("paused"):
        return f"{text}, paused"
    if job.get("state", "running") != "running":
        return text
    if job.get("waits_for_role") is not None:
        return f"{text}, waits for member {job['waits_for_role']}"
    if job.get("error"):
        return f"{text}, waits: {job['error']}"
    if job.get("waits_for_resync"):
        return f"{text}, waits for the resync"
    rate = job.get("rate") or 0
    text += f", {out.rate(rate) if in_bytes else f'{rate:z.0f}/s'}"
    eta = job.get("eta_seconds")
    return f"{text}, {duration(eta)}{' to go' if eta is not None else ''}"


def bar(share: float, columns: int, marks: str = BARS[0]) -> Text:
    """Return *share*, in percent, as a bar: the *marks*, done and to do, differ without colours."""
    filled = min(max(0, int(share * columns / 100)), columns)  # any daemon may claim anything
    return Text.assemble(
        (marks[0] * filled, "green"), (marks[1] * (columns - filled), "bright_black")
    )


def job_line(job: Job, out: Output, *, columns: int = BAR_COLUMNS, marks: str = BARS[0]) -> Text:
    """Return one job as a line with a bar of *columns*."""
    share = percent(job["done"], job["total"])
    line = Text(f"  {job.get('id', '')} {job['kind']:8} ")
    line.append_text(bar(share, columns, marks))
    line.append(f" {share:5.1f} %  {job_amount(job, out)}")
    if job.get("error"):
        line.append(f"\n      {job['error']}", style="red")
    return line


def pages_lines(rows: Iterable[ScrubbedPages]) -> list[str]:
    """Return what a scrub found of pages and checksums as a table; nothing if all is well."""
    table = [
        [str(row["role"])] + [str(row.get(key, 0)) for key in _OF_PAGES]
        for row in rows
        if any(row.get(key) for key in _OF_PAGES)
    ]
    if not table:
        return []
    table.insert(0, ["member", *_OF_PAGES.values()])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]


def brief(status: ArrayReport) -> str:
    """Return the lines that monitors of ``/proc/mdstat`` parse; sizes in KiB as there.

    The letters are mdstat's: ``(F)`` failed, ``(S)`` spare; ``[UU_]`` up, up, not up.
    """
    in_role = sorted((m for m in status["members"] if m["role"] >= 0), key=lambda m: m["role"])
    spares = [m for m in status["members"] if m["role"] < 0]
    words = []
    for number, member in enumerate([*in_role, *spares]):
        mark = {"failed": "(F)", "spare": "(S)"}.get(member["state"], "")
        if member["state"] != "missing":
            words.append(f"{os.path.basename(member.get('path') or '?')}[{number}]{mark}")
    up = "".join("U" if member["state"] == "active" else "_" for member in in_role)
    kind = "inactive" if status["state"] == "failed" else "active"
    lines = [
        f"{status['name']} : {kind} {status['layout']} {' '.join(words)}",
        f"      {status['size'] // 1024} blocks {status['chunk_size'] // 1024}k chunk "
        f"[{len(in_role)}/{up.count('U')}] [{up}]",
    ]
    lines += [_mdstat_job(job) for job in status.get("jobs", ())]
    return "\n".join(lines)


def _mdstat_job(job: Job) -> str:
    share = percent(job["done"], job["total"])
    cells = max(0, int(share / 5))
    bar = "=" * cells + ">" + "." * (20 - cells) if cells < 20 else "=" * 20
    minutes = (job.get("eta_seconds") or 0) / 60
    verb = words_of(job["kind"]).mdstat
    return (
        f"      [{bar}]  {verb} = {share:4.1f}% ({job['done'] // 1024}/{job['total'] // 1024}) "
        f"finish={minutes:z.1f}min speed={int(job.get('rate') or 0) // 1024}K/sec"
    )


def dry_run_text(result: Mapping[str, Any], out: Output) -> Text:
    """Return what a dry run found: bytes to move, time, and reduced redundancy, as lines."""
    lines = [f"would do: {result['does']}"]
    if result["bytes_moved"]:
        lines.append(
            f"moves: {out.size(result['bytes_moved'])} (reads {out.size(result['bytes_read'])}, "
            f"writes {out.size(result['bytes_written'])})"
        )
        if result.get("bytes_logged"):
            lines.append(f"journal: {out.size(result['bytes_logged'])} more")
        lines.append(
            f"time: {duration(result['seconds'])} at {out.rate(result['rate'])} "
            f"({result['rate_source']}); {duration(result['seconds_busy'])} under load"
        )
    else:
        lines.append("moves: nothing")
    if "chunks_to_move" in result:
        written, others = result["chunks_to_move"], result["places_to_change"]
        lines.append(
            f"chunks: {plural(written, 'written chunk')} to move, "
            f"{plural(others, 'unwritten one')} by name only"
        )
    if result.get("size_after", 0) != result.get("size_before", 0):
        after = out.size(result["size_after"])
        lines.append(f"image: {out.size(result['size_before'])} now, {after} at the end")
    ends = result.get("redundancy")
    if ends and ends["end"] < ends["now"] and "chunks_at_stake" not in result:
        lines.append(f"redundancy: lost for good; {redundancy(ends['end'])} at the end")
    elif result["redundancy_reduced"]:
        seconds = result["redundancy_reduced_seconds"]
        until = "until the member is replaced" if seconds is None else f"for {duration(seconds)}"
        lines.append(f"redundancy: reduced {until}; now {redundancy(result['redundancy_left'])}")
    elif ends and ends["end"] > ends["now"]:
        now, end = redundancy(ends["now"]), redundancy(ends["end"])
        lines.append(f"redundancy: {now} now, {end} at the end")
    else:
        lines.append("redundancy: stays as it is")
    if result.get("chunks_at_stake"):
        lines.append(f"lost: up to {plural(result['chunks_at_stake'], 'chunk')}")
    return Text("\n".join(lines))
