"""Experiments on modelled members in virtual time."""
