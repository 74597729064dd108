"""What the campaign's workloads do beside reading and writing."""
