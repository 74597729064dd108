"""The power-cut campaign: cut the power everywhere, recover, compare with the promises.

The power is cut at every boundary between writes and flushes of the members; members may be lost in
the same instant.

    campaign.py  crashes many workloads at their boundaries, and their recoveries as well; counts
                 states and violations for layout x journal x verb x fault; replays a state
    workload.py  runs a random workload in virtual time over recorded disks
    themes/      what a workload does beside reading and writing: growth, restripe, volumes, ...
    pairs.py     lets every two operations meet, at every place
    player.py    the running workload: its requests, which are written when, which overlap in time
    mounting.py  arrays as a pool, as the daemon mounts them; requests to volumes; the laws
    hardware.py  how many members, how large, their first content; the parts that are used
    disks.py     the simulated disks, their pace and their faults
    history.py   records every write, and derives which contents a cut may leave in each sector
    recording.py the record of one workload: when which roles had no member, or all superblocks
                 call a member whole
    oracle.py    mounts the disks as a cut left them, and compares; knows what each mode promises
    state.py     names one crashed state, so that a printed line replays it exactly

An array is a pool of one volume: there is one history for each volume, one player, one recording,
one oracle. What a theme adds is its workload.

``python -m raidx_fuse.lab.crash`` runs it.
"""
