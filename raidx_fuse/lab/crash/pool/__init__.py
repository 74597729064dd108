"""The campaign over volumes of two arrays: the theme "pool".

content.py    what each volume may be after a cut: there or not, its size, every sector
player.py     volumes created, resized, deleted, moved, swapped and written on recorded disks
recording.py  what a workload did, and which disks may be lost
judge.py      mounts what a cut left, both arrays or first each alone, and compares
workloads.py  these workloads as lab/crash/crashing.py crashes them
"""
