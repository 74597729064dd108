"""The laboratory: traces, generated loads, an open-loop driver, and experiments in virtual time.

    published -> workloads -\\
                             request blocks -> shape -> drive -> an array, or a mounted image
    trace files -> traces --/

Start with `workloads.generate`, `traces.read_trace` and `simulate.simulate`.
"""
