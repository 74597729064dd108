"""Rebundle and evacuation (raidx): the fewest chunk moves, found as a minimum-cost flow.

The moves make K more bundles possible, or empty the members that will leave. All other chunks stay.
Each member has a capacity in chunks. It gives at most K of its free chunks to the K new bundles,
which need K * L chunks. If that is not enough, members must free chunks by moving chunks of old
bundles to other members, but never to a member on which the bundle already has a chunk:

    counts 3 3 | 9    L = 2. Three bundles lie on members 0 and 1; then member 2 joins, and 7
                      bundles fit, so K = 4. Member 2 gives 4 chunks, the others none, 4 are
                      lacking. So 4 chunks move to member 2, and each move frees one chunk.

This is a minimum-cost flow problem; successive shortest paths solve it exactly. A path is

    new bundles -> member that must free a chunk -> ... -> member with free capacity

It has a step from a to c if a bundle has a chunk on a and none on c. The cost of a step is that of
moving this chunk: high for a written chunk, 1 for an unwritten one, negative for a chunk that
returns to its original member. Members that will leave are emptied by the same kind of paths.
Bundles on the same members with the same columns written form a *class*; as many bundles of a class
as possible take a path together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

WRITTEN = 1 << 20
"""The cost of moving a written chunk, relative to that of an unwritten chunk."""
FAR = 1 << 40  # the cost of an impossible step
PARTS = 64  # a flow is pushed in about so many parts, so that members fill evenly
DIGITS = 32  # roles whose base-three digits fit into one 64-bit number
LEVELS = (0, 1, WRITTEN + 1)  # value of a place to a bundle: foreign, original, original + written

Cells: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Moves:
    """The planned moves: *cells* move to the roles *targets*; *written* of them hold data.

    *lacking* is the number of chunks for new bundles that could not be freed. *stuck* is the number
    of cells that find no place outside the leaving members.
    """

    cells: Cells
    targets: NDArray[np.uint8]
    written: int
    lacking: int = 0
    stuck: int = 0

    def __len__(self) -> int:
        return len(self.cells)


def plan_moves(
    disk: NDArray[np.uint8],
    live: NDArray[np.bool_],
    caps: Sequence[int],
    *,
    more: int = 0,
    leaving: Collection[int] = (),
) -> Moves:
    """Return the fewest moves after which *more* bundles fit and *leaving* roles hold nothing.

    *disk* and *live* have the shape (bundles, L): the role of each cell, and whether the cell is
    written. *caps* is the capacity of each role in chunks. If not everything is possible, the plan
    does as much as possible; written chunks are moved off leaving roles before unwritten ones.
    """
    width, length = len(caps), disk.shape[1]
    used = np.bincount(disk.reshape(-1), minlength=width)[:width]
    given = np.clip(np.asarray(caps, np.int64) - used, 0, more)
    given[list(leaving)] = 0
    lacking = more * length - int(given.sum())
    if lacking <= 0 and not used[list(leaving)].any():
        return Moves(np.zeros(0, np.int64), np.zeros(0, np.uint8), 0)
    if not more:
        # Each chunk on the leaving roles needs at least one move. If moves of their bundles alone
        # suffice, one for each chunk, the plan is optimal without a look at the other bundles.
        concerned = np.flatnonzero(np.isin(disk, list(leaving)).any(axis=1))
        if len(concerned) < len(disk):
            part = _emptied(disk[concerned], live[concerned], caps, used, leaving)
            if not part.stuck and len(part) == used[list(leaving)].sum():
                bundles, columns = np.divmod(part.cells, length)
                cells = concerned[bundles] * length + columns
                return Moves(cells, part.targets, part.written)
        return _emptied(disk, live, caps, used, leaving)
    flow = _Flow(disk, live, caps, used, given, more, leaving)
    stuck = flow.empty(leaving)
    lacking = max(0, lacking)
    lacking -= flow.push(width, lacking)
    return flow.moves(lacking, stuck)


def _emptied(
    disk: NDArray[np.uint8],
    live: NDArray[np.bool_],
    caps: Sequence[int],
    used: NDArray[np.int64],
    leaving: Collection[int],
) -> Moves:
    flow = _Flow(disk, live, caps, used, np.zeros(len(caps), np.int64), 0, leaving)
    return flow.moves(0, flow.empty(leaving))


def _alike(disk: NDArray[np.uint8], live: NDArray[np.bool_], width: int) -> list[NDArray[Any]]:
    """Return the bundles of each class, ascending.

    The bundles of a class lie on the same roles and are written on the same roles. A class is a
    number in base three with one digit for each role; DIGITS roles are compared at a time.
    """
    classes = [np.arange(len(disk))]
    for first in range(0, width, DIGITS):
        powers = np.zeros(256, np.int64)
        powers[first : first + DIGITS] = 3 ** np.arange(min(DIGITS, 256 - first))
        digits = np.zeros(len(disk), np.int64)
        for column in range(disk.shape[1]):
            digits += powers[disk[:, column]] * (1 + live[:, column])
        finer: list[NDArray[Any]] = []
        for ids in classes:
            numbers = digits[ids]
            order = numbers.argsort(kind="stable")
            cuts = np.flatnonzero(np.diff(numbers[order])) + 1
            finer += np.split(ids[order], cuts)
        classes = finer
    return classes


class _Flow:
    """The flow network: nodes are the roles and, as node *width*, the new bundles.

    * *bundles*, *counts*: the bundles of each class, and their number.
    * *worth*: for (class, role) the value of that place at the start, as an index into LEVELS.
    * *holds*: for (class, role) whether the bundles have a chunk there, moves included.
    * *used*, *given*: for each role the chunks in use, and the chunks given to new bundles.
    * *stays*: for each role whether its member stays.
    """

    def __init__(
        self,
        disk: NDArray[np.uint8],
        live: NDArray[np.bool_],
        caps: Sequence[int],
        used: NDArray[np.int64],
        given: NDArray[np.int64],
        more: int,
        leaving: Collection[int],
    ) -> None:
        self.disk = disk
        self.live = live
        self.width = len(caps)
        self.caps = np.asarray(caps, np.int64)
        self.used = used.astype(np.int64)
        self.given = given
        self.more = more
        self.stays = np.ones(self.width, bool)
        self.stays[list(leaving)] = False
        self.bundles = _alike(disk, live, self.width)
        self.worth = np.zeros((len(self.bundles), self.width), np.uint8)
        firsts = np.array([ids[0] for ids in self.bundles])
        for column in range(disk.shape[1]):
            rows = np.arange(len(firsts))
            self.worth[rows, disk[firsts, column]] = 1 + live[firsts, column]
        self.holds = self.worth > 0
        self.counts = np.array([len(ids) for ids in self.bundles], np.int64)

    # -- paths ---------------------------------------------------------------------------------

    def push(self, source: int, amount: int, *, written_only: bool = False) -> int:
        """Free up to *amount* chunks at *source* along shortest paths; return the number freed."""
        pushed = 0
        while pushed < amount:
            path = self._path(source, written_only)
            if path is None:
                break
            # Push a part at a time to the member with the most free capacity: they fill evenly.
            end = path[-1][1]
            room = int(self.caps[end] - self.used[end] - self.given[end])
            count = min(amount - pushed, room, max(1, amount // PARTS))
            count = min([count, *(self._available(*step) for step in path)])
            for step in path:
                self._shift(*step, count)
            pushed += count
        return pushed

    def _path(self, source: int, written_only: bool) -> list[tuple[int, int, int]] | None:
        """Return the cheapest path from *source* to a member with free capacity, None if none.

        Its steps are (from, to, cost). Bellman-Ford, because costs can be negative.
        """
        cost = self._costs(source if written_only else None)
        nodes = self.width + 1
        distance = np.full(nodes, FAR, np.int64)
        before = np.full(nodes, -1)
        distance[source] = 0
        for _ in range(nodes):
            reach = distance[:, None] + cost
            best = reach.argmin(axis=0)
            shorter = reach[best, np.arange(nodes)]
            better = shorter < distance
            if not better.any():
                break
            distance[better], before[better] = shorter[better], best[better]
        rooms = self.caps - self.used - self.given
        ends = np.flatnonzero((rooms > 0) & self.stays & (distance[: self.width] < FAR // 2))
        if not len(ends):
            return None
        node = int(ends[np.lexsort((-rooms[ends], distance[ends]))[0]])
        path = []
        while node != source:
            path.append((int(before[node]), node, int(cost[before[node], node])))
            node = int(before[node])
        return path[::-1]

    def _costs(self, written_from: int | None) -> NDArray[np.int64]:
        """Return the least cost of a step between any two nodes, FAR where no step is possible.

        Only written chunks may leave the role *written_from*.
        """
        width = self.width
        cost = np.full((width + 1, width + 1), FAR, np.int64)
        inner = cost[:width, :width]
        leave = {x: (self.holds & (self.worth == x)).astype(np.float32) for x in range(3)}
        enter = {y: (~self.holds & (self.worth == y)).astype(np.float32) for y in range(3)}
        for x, out in leave.items():
            for y, into in enter.items():
                step = LEVELS[x] - LEVELS[y]
                possible = out.T @ into > 0
                if written_from is not None and x < 2:
                    possible[written_from] = False
                np.minimum(inner, np.where(possible, step, FAR), out=inner)
        inner[:, ~self.stays] = FAR
        cost[width, :width] = np.where(self.stays & (self.given < self.more), 0, FAR)
        cost[:width, width] = np.where(self.given > 0, 0, FAR)
        return cost

    # -- steps ---------------------------------------------------------------------------------

    def _classes(self, source: int, target: int, cost: int) -> NDArray[Any]:
        """Return the classes whose bundles can move a chunk from *source* to *target* at *cost*."""
        levels = np.array(LEVELS)
        steps = levels[self.worth[:, source]] - levels[self.worth[:, target]]
        able = self.holds[:, source] & ~self.holds[:, target] & (steps == cost)
        return np.flatnonzero(able)

    def _available(self, source: int, target: int, cost: int) -> int:
        if source == self.width:
            return int(self.more - self.given[target])
        if target == self.width:
            return int(self.given[source])
        return int(self.counts[self._classes(source, target, cost)].sum())

    def _shift(self, source: int, target: int, cost: int, count: int) -> None:
        """Move *count* chunks along one step of a path."""
        if source == self.width:
            self.given[target] += count
            return
        if target == self.width:
            self.given[source] -= count
            return
        self.used[source] -= count
        self.used[target] += count
        classes = self._classes(source, target, cost)
        largest = classes[np.argsort(-self.counts[classes], kind="stable")]
        for number in largest.tolist():
            if not count:
                return
            taken = min(count, int(self.counts[number]))
            if taken < self.counts[number]:
                number = self._split(number, taken)
            self.holds[number, source], self.holds[number, target] = False, True
            count -= taken

    def _split(self, number: int, taken: int) -> int:
        """Split *taken* bundles off class *number* into a new class; return the new number."""
        ids = self.bundles[number]
        self.bundles[number] = ids[taken:]
        self.counts[number] -= taken
        self.bundles.append(ids[:taken])
        self.counts = np.append(self.counts, taken)
        self.worth = np.vstack([self.worth, self.worth[number : number + 1]])
        self.holds = np.vstack([self.holds, self.holds[number : number + 1]])
        return len(self.bundles) - 1

    # -- the result ----------------------------------------------------------------------------

    def empty(self, leaving: Collection[int]) -> int:
        """Move as many chunks as possible off the *leaving* roles; return how many could not."""
        stuck = 0
        for role in leaving:
            here = int(self.used[role])
            first = self.push(role, int(self.live[self.disk == role].sum()), written_only=True)
            stuck += here - first - self.push(role, here - first)
        return stuck

    def moves(self, lacking: int, stuck: int) -> Moves:
        """Return the moves that the flow implies; *lacking*, *stuck*: the numbers of failures."""
        length = self.disk.shape[1]
        parts: list[Cells] = [np.zeros(0, np.int64)]
        targets: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)]
        moved = np.flatnonzero((self.holds != (self.worth > 0)).any(axis=1))
        for number in moved.tolist():
            ids = self.bundles[number]
            left = np.flatnonzero((self.worth[number] > 0) & ~self.holds[number])
            found = np.flatnonzero((self.worth[number] == 0) & self.holds[number])
            for source, target in zip(left.tolist(), found.tolist(), strict=True):
                columns = (self.disk[ids] == source).argmax(axis=1)
                parts.append(ids * length + columns)
                targets.append(np.full(len(ids), target, np.uint8))
        cells = np.concatenate(parts)
        written = int(self.live.reshape(-1)[cells].sum())
        return Moves(cells, np.concatenate(targets), written, lacking, stuck)
