"""Writing: a request is split, prepared, routed past or through the log, and completed."""
