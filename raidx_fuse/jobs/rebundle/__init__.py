"""Rebundling: chunks of a raidx layout move when members are added, removed or lost."""
