"""Hotspots of a running pool: found and dissolved.

`settings` are the thresholds and rules, `sampler` takes the observations that monitor.py keeps,
`proposal` makes a plan of them with the planners of balance/, `balancer` carries it out.
"""
