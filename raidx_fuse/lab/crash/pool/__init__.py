"""The campaign over volumes of two arrays: the theme "pool".

content.py  what each volume may be after a cut: there or not, its size, every sector
player.py   volumes created, resized, deleted, moved, swapped and written on recorded disks
judge.py    mounts what a cut left, both arrays or first each alone, and compares
walk.py     visits the boundaries of one workload, and crashes the recoveries as well
"""
