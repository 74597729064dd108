"""Plots of results: response times and queue lengths over time, and the load of each member.

matplotlib is an extra (``pip install 'raidx-fuse[plots]'``); it is imported only for drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import nan
from typing import Any

from raidx_fuse.errors import Reason, UsageError
from raidx_fuse.lab.experiments.results import members_of

INCHES_WIDE = 9.0
NO_CLASSES: Mapping[str, Any] = {"edges_ms": (), "reads": (), "writes": ()}
_STYLE = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "raidx"}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "drawing needs the package matplotlib",
            action="pip install 'raidx-fuse[plots]'",
            reason=Reason.NOT_INSTALLED,
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_results(results: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw *results* of `simulate` into *path* (.png, .svg, .pdf).

    Raises UsageError if matplotlib is missing, the file type is unknown, or the file cannot be
    written.
    """
    pyplot = _pyplot()
    timed = [result for result in results if len(result["sections"]) > 1]
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            4 if timed else 2, 1, figsize=(INCHES_WIDE, 12.0 if timed else 6.0), squeeze=False
        )
        rows = [row[0] for row in axes]
        if timed:
            _over_time(rows[0], rows[1], timed)
        _distributions(rows[-2], results)
        _load(rows[-1], results)
        figure.tight_layout()
        _save(figure, path)
        pyplot.close(figure)


def _over_time(response: Any, queues: Any, results: Sequence[Mapping[str, Any]]) -> None:
    for number, result in enumerate(results):
        color = f"C{number}"
        sections = result["sections"]
        edges_s = [*(section["from_s"] for section in sections), result["seconds"]]
        times = [section["response_ms"] for section in sections]
        lengths = [section.get("member_queues") or [nan] for section in sections]
        for axis, word, values, style in (
            (response, "mean", [each["mean"] for each in times], "-"),
            (response, "p99", [each["p99"] for each in times], ":"),
            (queues, "longest", [max(each) for each in lengths], "-"),
            (queues, "mean", [sum(each) / len(each) for each in lengths], ":"),
        ):
            label = f"{result['name']}: {word}" if style == "-" else word
            axis.plot(*section_steps(edges_s, values), color=color, linestyle=style, label=label)
        for event in result["events"]:
            for axis in (response, queues):
                axis.axvline(event["at_s"], color=color, alpha=0.4, linewidth=0.8)
            top = response.get_ylim()[1]
            words = event["do"] + (f" {event['disk']}" if "disk" in event else "")
            response.text(event["at_s"], top, words, rotation=90, va="top", fontsize=7)
    response.set_ylabel("response time, ms")
    queues.set_ylabel("queue length")
    for axis in (response, queues):
        axis.set_xlabel("time, s")
        axis.legend(fontsize=7)


def section_steps(
    edges_s: Sequence[float], values: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the points of a line that has each value all through its section.

    Section i lasts from *edges_s* [i] to [i + 1]. A point at the start of each section, joined to
    the next one, would show a peak at the event that ends the section before it.
    """
    times = [at_s for pair in pairwise(edges_s) for at_s in pair]
    return times, [value for value in values for _ in range(2)]


def _distributions(axis: Any, results: Sequence[Mapping[str, Any]]) -> None:
    """Draw which share of the reads, and of the writes, was answered within each time."""
    for number, result in enumerate(results):
        classes = result.get("distribution", NO_CLASSES)  # that of `sweep.compute_run`
        for kind, style in (("reads", "-"), ("writes", ":")):
            sums = list(accumulate(classes[kind], initial=0))
            if sums[-1]:
                shares = [100 * each / sums[-1] for each in sums]
                label = f"{result['name']}: {kind}"
                axis.plot(classes["edges_ms"], shares, f"C{number}{style}", label=label)
    axis.set_xscale("log")
    axis.set_xlabel("response time, ms")
    axis.set_ylabel("answered within, %")
    if axis.lines:
        axis.legend(fontsize=7)


def _load(axis: Any, results: Sequence[Mapping[str, Any]]) -> None:
    width = 0.8 / len(results)
    for number, result in enumerate(results):
        members = members_of(dict(result))
        places = [role + (number - (len(results) - 1) / 2) * width for role, _ in members]
        done = [member["reads"] + member["writes"] for _, member in members]
        axis.bar(places, done, width=width, label=result["name"])
    axis.set_xlabel("member")
    axis.set_ylabel("operations")
    axis.legend(fontsize=7)


def draw_lines(
    path: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> None:
    """Draw *series* as lines over a common *x* into *path*. Raises as `draw_results`."""
    pyplot = _pyplot()
    with pyplot.rc_context(_STYLE):
        figure, axis = pyplot.subplots(figsize=(6.0, 3.2))
        for name, values in series.items():
            axis.plot(list(x), list(values), marker="o", markersize=3, label=name)
        if log_x:
            axis.set_xscale("log")
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.legend(fontsize=7)
        figure.tight_layout()
        _save(figure, path)
        pyplot.close(figure)


def _save(figure: Any, path: str) -> None:
    # No date in the file: equal results give equal files.
    metadata = {"Date": None} if path.endswith(".svg") else None
    try:
        figure.savefig(path, metadata=metadata, dpi=120)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be drawn: {error}") from None
