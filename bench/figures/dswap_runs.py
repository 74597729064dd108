"""The systems of the Dswap paper's simulations (section 6.1), and runs of planners on them.

Arrays of twenty 18 GB disks. Volumes of 1 to 16 GB in steps of 0.25 GB fill an array up to the
wanted share; the last one is cut. The volumes of an array get bandwidth in proportion to their
sizes, then the bandwidths of an array are permuted. A hotspot is made on half of the arrays:
volumes of a chosen half of the array's volumes, one at a time and at random, get more load until
the array is overloaded as wanted.

The text is silent or unclear about these, and they are ours: that half of the arrays are overloaded
(cost in proportion to the system's size needs a number of hotspots in proportion to it); that each
is overloaded by the same 5 % unless Fig. 4(b) varies it; that a step is 1 % of the array's
bandwidth; that a random planner may try 100 times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raidx_fuse.pool.balance.plan import Plan, make_plan
from raidx_fuse.pool.balance.strategies import TRIES, make, random_reassign
from raidx_fuse.pool.balance.system import (
    ArraySpec,
    Assignment,
    System,
    VolumeSpec,
    make_system,
)

GB = 10**9
STEP_BYTES = GB // 4
ARRAY_BYTES = 20 * 18 * GB
BANDWIDTH = 100.0  # so that needs are percent
STEP = 1.0
ONCE = "random-reassign-once"  # a planner: random reassignment that may try once
LITERAL = "random-reassign-literal"  # the paper's sentence, word by word: `literal_reassign`


class Run(NamedTuple):
    """One system, made from *seed*, and the planners that plan for it.

    *space*, *load*: share of each array's space and bandwidth that is used; *over*: how far above
    the threshold of 80 % the overloaded arrays are; *permuted*: are bandwidths permuted?
    """

    planners: tuple[str, ...]
    seed: int
    arrays: int = 4
    space: float = 0.6
    load: float = 0.5
    over: float = 0.05
    permuted: bool = True


def paper_system(run: Run) -> System:
    """Return the system of *run*."""
    rng = np.random.default_rng(run.seed)
    hot = set(rng.permutation(run.arrays)[: max(1, run.arrays // 2)].tolist())
    arrays, volumes = [], []
    for j in range(run.arrays):
        arrays.append(ArraySpec(f"a{j}", BANDWIDTH, ARRAY_BYTES, 0.8))
        left = round(run.space * ARRAY_BYTES / STEP_BYTES)
        sizes = []
        while left:
            sizes.append(min(int(rng.integers(4, 65)), left))
            left -= sizes[-1]
        needs = np.array(sizes) / sum(sizes) * run.load * BANDWIDTH
        if run.permuted:
            needs = rng.permutation(needs)
        if j in hot:
            chosen = rng.permutation(len(sizes))[: max(1, len(sizes) // 2)]
            missing = (0.8 + run.over) * BANDWIDTH - needs.sum()
            while missing > 0:
                more = min(STEP, missing)
                needs[rng.choice(chosen)] += more
                missing -= more
        volumes += [
            VolumeSpec(f"v{j}.{i}", size * STEP_BYTES, f"a{j}", float(need))
            for i, (size, need) in enumerate(zip(sizes, needs, strict=True))
        ]
    return make_system(arrays, volumes)


def literal_reassign(system: System, seed: int) -> Plan:
    """Return a plan of random reassignment as the paper's section 3 words it.

    "A random permutation of volumes on only overloaded arrays is considered and these objects are
    assigned to underloaded arrays in permutation order. The process continues until sufficient load
    shifts": a volume also moves if its array is cool by then. `random_reassign` leaves it there.
    """
    rng = np.random.default_rng(seed)
    hot = Assignment(system).overloaded()
    cool = ~np.isin(np.arange(len(system.arrays)), hot)
    volumes = np.flatnonzero(np.isin(system.where, hot))
    for _ in range(TRIES if hot.size else 0):
        state = Assignment(system)
        for volume in rng.permutation(volumes).tolist():
            fits = np.flatnonzero(state.fits(volume) & cool)
            if fits.size:
                state.move(volume, int(rng.choice(fits)))
            if not state.overloaded().size:
                return make_plan(LITERAL, system, state.array_of)
    return make_plan(LITERAL, system, system.where)


def planned(run: Run) -> tuple[tuple[bool, float], ...]:
    """Return for each planner of *run*: is the hotspot gone, and the data moved, in percent."""
    system = paper_system(run)
    total = float(system.size.sum())
    plans = (
        random_reassign(system, seed=run.seed, tries=1)
        if name == ONCE
        else literal_reassign(system, run.seed)
        if name == LITERAL
        else make(name, system, seed=run.seed)
        for name in run.planners
    )
    return tuple((plan.solved, 100 * plan.cost_bytes / total) for plan in plans)
