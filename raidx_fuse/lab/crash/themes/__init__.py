"""What the workloads of the campaign do beside reading and writing; `workload.py` lists them."""
