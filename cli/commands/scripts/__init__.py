"""Commands for scripts and shells."""
