"""Loads: traces, generated requests, the driver that sends them, and checks of their content."""
