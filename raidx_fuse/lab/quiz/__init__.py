"""Questions about layouts, made from a seed, with answers from the plans of the engine."""
