"""The laboratory: loads, experiments in virtual time, and the power-cut campaign.

    published -> workloads -\\
                             blocks of requests -> drive -> an array, or a mounted image
    trace files -> traces --/

Start with `workloads.generate`, `traces.Trace` and `simulate.simulate`.
"""
