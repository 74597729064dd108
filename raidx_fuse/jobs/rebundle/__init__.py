"""Chunks of bundles find other members: joining, leaving, self-healing."""
