"""Erasure codes: grids of cells with parity chains; decoding and error location over GF(2)."""
