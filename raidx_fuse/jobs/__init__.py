"""Background jobs: what to do in one window of stripes; the loop is in job.py."""
