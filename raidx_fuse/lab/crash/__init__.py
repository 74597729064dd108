"""The crash campaign: power cuts at every boundary, with lost members, against what was promised.

    workload.py  runs a random workload in virtual time over recorded disks
    together.py  lets requests come together, as the door takes them
    history.py   knows of every sector which contents a cut may leave, from the workload's own story
    oracle.py  says where a journal mode promises less
    oracle.py     mounts what a cut left, reads everything, and compares
    walk.py      goes over the boundaries of one workload and crashes the recoveries as well
    state.py     names one state, so that a printed line replays it exactly
    matrix.py    counts states and violations for layout x journal x verb x fault

``python -m raidx_fuse.lab.crash`` runs it.
"""
