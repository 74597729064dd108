"""The version of the program; pyproject.toml takes it from here."""

VERSION = "0.2.0"
