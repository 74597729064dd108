"""`raidx layout ...`: codes and placements, computed without an array."""
