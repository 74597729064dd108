"""Pure arithmetic of codes, placements and plans: no I/O, no threads, no clocks."""
