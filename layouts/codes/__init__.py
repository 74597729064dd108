"""Codes: grids of cells and the chains whose XOR is zero; solving and locating over GF(2)."""
