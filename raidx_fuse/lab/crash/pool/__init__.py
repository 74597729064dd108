"""The campaign over volumes of two arrays: the theme "pool".

player.py     volumes created, resized, deleted, moved, swapped and written on recorded disks
recording.py  what a workload did, and which disks may be lost
judge.py      mounts what a cut left, both arrays or first each alone, and compares
workloads.py  these workloads as lab/crash/crashing.py crashes them
"""
