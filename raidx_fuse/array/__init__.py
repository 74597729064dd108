"""The running array: opened, changed, reported on and closed."""
