"""Reading and writing an array: stripe plans, locks, cache, parity."""
