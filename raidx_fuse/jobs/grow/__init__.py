"""Growing an array onto more members by moving the fewest chunks."""
