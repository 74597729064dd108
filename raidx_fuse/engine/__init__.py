"""The engine: reading and writing ranges of the image; stripe locks, chunk cache, parity."""
