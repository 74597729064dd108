"""What documents the commands: their summaries, units, pages of the manual, JSON schemas."""
