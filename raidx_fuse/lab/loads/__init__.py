"""Loads: traces, generated requests, and what drives and checks them."""
