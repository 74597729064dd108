"""The theme "pairs" of the campaign: every two operations meet, one held at any of its disk I/Os.

    operations.py  the catalogue: requests, volumes, layouts, members, settings, faults
    scene.py       the arrays and volumes on which they meet, and a history of each volume
    disks.py       disks that count their operations, hold one of them, and fail
    play.py        one meeting: the first operation is held at its k-th disk I/O, the second runs

A state is named ``raid5:partial:pairs:trim:shrink:25/w8/m0/k/-``: layout, journal mode, the first
operation, the second one, the disk I/O of the first at which they meet, the seed, and a cut as in
all states (state.py). A meeting is a state, too, that no cut follows: all content is compared when
both operations have ended, when members that failed are back, and when others are lost.

The losses of commit 79fb2b4 that need two operations, as this theme found them there:

    trim, shrink      another volume's flushed content is zeros        raid5  1,077 states, seed 15
    trim, delete      the same                                         raid5  1,324 states, seed 20
    trim, move        discarded content is back                        raid5  1 state, seed 0
    many, move        a write over all extents is stale in the rest    raid5  487 states, seed 8
    clean, stripe     a member is caught up without an older stripe    raid5  1,970 states, seed 3
    give-up, read     a stripe is not noted: its parity is wrong       raid5  61 states, seed 0
    create, deaf      an acknowledged volume is missing after a cut    raid0  73 states, seed 0

The states are counted in each pair alone, ``journal=partial``, seeds from 0 on, places drawn (the
fifth: every place). With three places for each seed: six are drawn today.
"""
