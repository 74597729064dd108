"""Helpers that the tests share; shipped, so that other programs can test their own members."""
