"""The power-cut campaign: cut the power everywhere, recover, compare with the promises.

The power is cut at every boundary between writes and flushes of the members; members may be lost in
the same instant.

    workload.py  runs a random workload in virtual time over recorded disks
    themes/      what a workload does beside reading and writing: growth, restripe, volumes, ...
    at_changes.py  requests that overlap a change
    player.py    the running workload: arrays, disks, histories, and what is noted of each request;
                 which ranges are written, and which requests overlap in time
    volumes.py   requests to the volumes of a pool, of the theme "pool" and of pairs
    mounting.py  two arrays as a pool, as the daemon mounts them; what jobs and parity owe
    hardware.py  how many members, how large, their first content, their pace
    disks.py     the simulated disks
    parts.py     the parts of an image that a workload uses
    history.py   records every write, and derives which contents a cut may leave in each sector
    recording.py the record of one workload, and when which roles had no member
    durable.py   from when on all superblocks call a member whole, or have another layout
    oracle.py    mounts the disks as a cut left them, and compares; knows what each mode promises
    pairs/       lets every two operations meet, at every place
    crashing.py  visits the boundaries of one workload, and crashes the recoveries as well
    walk.py      crashes many workloads, counts their states, and replays one
    state.py     names one crashed state, so that a printed line replays it exactly
    matrix.py    counts states and violations for layout x journal x verb x fault

An array is a pool of one volume: there is one history for each volume, one player, one recording,
one oracle. What a theme adds is its workload.

``python -m raidx_fuse.lab.crash`` runs it.
"""
