"""Commands for those who write scripts, and for their shells."""
