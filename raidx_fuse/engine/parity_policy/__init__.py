"""Parity update policies: which plan of a partial write is carried out."""
