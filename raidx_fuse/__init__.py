"""Virtual disks over unlike members. Importing this package imports nothing else."""
