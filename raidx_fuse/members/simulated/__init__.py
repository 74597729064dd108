"""Members that model, fail or lose power on command, and the clock of virtual time."""
