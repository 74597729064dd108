"""What monitors read: metrics for Prometheus, and the line for Nagios."""
