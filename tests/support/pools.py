"""Random pools with a hotspot, for tests of planners."""

from __future__ import annotations

import numpy as np

from raidx_fuse.pool.balance.system import ArraySpec, System, VolumeSpec, make_system

TAU = 0.8


def random_pool(seed: int) -> System:
    """Return a pool of two to four arrays and 6 to 32 volumes, up to half of the arrays overloaded.

    Half of the pools have arrays of unlike bandwidth, on which a volume needs unlike shares. The
    space is 50 to 100 % used. One volume in 20 stays; three pools in ten keep two volumes apart.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    alike = rng.random() < 0.5
    fill = rng.uniform(0.5, 1.0)
    hot = int(rng.integers(1, max(2, count // 2 + 1)))
    arrays, volumes = [], []
    for j in range(count):
        bandwidth = 100.0 if alike else float(rng.uniform(50, 200))
        sizes = rng.integers(1, 17, int(rng.integers(3, 9)))
        weights = rng.random(len(sizes)) + 0.05
        load = TAU + rng.uniform(0.02, 0.2) if j < hot else rng.uniform(0.3, 0.75)
        needs = weights / weights.sum() * load * bandwidth
        capacity = max(int(sizes.sum()), round(float(sizes.sum()) / fill))
        arrays.append(ArraySpec(f"a{j}", bandwidth, capacity, TAU))
        for i, size in enumerate(sizes.tolist()):
            factors = np.ones(count) if alike else rng.uniform(0.5, 2, count)
            factors[j] = 1
            stays = bool(rng.random() < 0.05)
            need = (needs[i] * factors).tolist()
            volumes.append(VolumeSpec(f"v{j}.{i}", size, f"a{j}", need, stays))
    apart = []
    if rng.random() < 0.3:
        pair = rng.choice(len(volumes), 2, replace=False)
        apart = [[volumes[i].name for i in pair.tolist()]]
    return make_system(arrays, volumes, apart)
