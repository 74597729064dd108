"""The requests of the campaign: their ranges, commit batches, and overlap in time."""
