"""The power-cut campaign: cut the power at every boundary between writes and flushes of the
members, lose members in the same instant, recover, and compare the array with its promises.

    workload.py  runs a random workload in virtual time over recorded disks
    themes/      what a workload does beside reading and writing: growth, restripe, ...
    requests/    which ranges are written, and which requests overlap in time
    player.py    the running workload: array, disks, history, and the steps of the themes
    hardware.py  how many members, how large, their first content, their pace
    disks.py     the simulated disks
    history.py   derives from what was written when which contents a cut may leave in each sector
    recording.py what one workload did, and which roles were without a member when
    oracle.py    says where a journal mode promises less; mounts what a cut left and compares
    walk.py      visits the boundaries of one workload, and crashes the recoveries as well
    state.py     names one crashed state, so that a printed line replays it exactly
    matrix.py    counts states and violations for layout x journal x verb x fault

``python -m raidx_fuse.lab.crash`` runs it.
"""
