"""The laboratory: loads, experiments in virtual time, and the power-cut campaign.

    published -> workloads -\\
                             request blocks -> shape -> drive -> an array, or a mounted image
    trace files -> traces --/

Start with `workloads.generate`, `traces.read_trace` and `simulate.simulate`.
"""
