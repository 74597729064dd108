"""The laboratory: traces, generated loads, an open-loop driver, experiments in virtual time, and
the power-cut campaign (`crash/`).

    published -> workloads -\\
                             request blocks -> shape -> drive -> an array, or a mounted image
    trace files -> traces --/

Start with `workloads.generate`, `traces.read_trace` and `simulate.simulate`.
"""
