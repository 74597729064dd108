"""Simulated members (disk models, fault injection, power cuts) and the clock of virtual time."""
