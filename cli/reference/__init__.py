"""What documents the commands: units, pages of the manual, JSON schemas."""
