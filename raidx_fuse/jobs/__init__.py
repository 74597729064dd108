"""Background jobs. A job defines the work in one window of stripes; job.py has the common loop."""
