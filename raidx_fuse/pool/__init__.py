"""Volumes: what the front ends read and write."""
