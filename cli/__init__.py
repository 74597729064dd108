"""The `raidx` command: text, tables and JSON; no storage logic."""
