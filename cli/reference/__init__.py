"""What documents the commands: pages of the manual, JSON schemas."""
