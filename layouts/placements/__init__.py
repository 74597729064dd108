"""Placements: which member and chunk holds each cell of each stripe."""
