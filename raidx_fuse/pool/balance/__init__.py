"""The planner of a pool: which volumes move where so that no array is overloaded.

Pure arithmetic after "Efficient Data Migration in Self-managing Storage Systems" (Sundaram and
Shenoy): no I/O, no clock. `system` is the model, `utilisation` fills it from measurements,
`strategies` names the planners, `plan` says what a plan costs, in which order its moves have room,
and why each was chosen.
"""
