"""Placements: the member and the member chunk that hold each cell of each stripe."""
