"""The write path: a request is split, prepared, routed through or past the log, and completed."""
